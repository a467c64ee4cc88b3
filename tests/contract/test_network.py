"""An `enabled` network through the whole runner: its proxy is started by it, and the answers are the contract's."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from runner.api import Describe, WorkspaceTerms
from tests.contract.conftest import SANDBOXED
from tests.contract.rig import Rig

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.parametrize("shared_rig", SANDBOXED, indirect=True),
    pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl"),
]


@pytest_asyncio.fixture(loop_scope="module")
async def port() -> AsyncIterator[int]:
    """Of a server on the machine's loopback, which an operator has to list by address."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\nConnection: close\r\n\r\nreached\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()


def enabled(rig: Rig, *allow: str) -> WorkspaceTerms:
    return rig.terms().model_copy(update={"network": "enabled", "network_allow": allow})


@pytest.mark.covers("NET-2", "NET-4")
async def test_a_listed_address_is_reached_through_the_runners_own_proxy_and_no_other(rig: Rig, port: int) -> None:
    url = f"http://127.0.0.1:{port}/"
    script = f"curl -s --noproxy none.test {url}; curl -s --noproxy '*' {url}; echo $?"
    process_id = await rig.sh(script, terms=enabled(rig, f"127.0.0.1:{port}"))
    output = await rig.output(process_id)
    assert output.splitlines()[0] == "reached"
    assert output.splitlines()[-1] != "0", "the command's own loopback is no way to the machine's"
    assert (await rig.exited(process_id)).isolation.network == "enabled"
    refused = await rig.sh(script, terms=enabled(rig, f"127.0.0.1:{port + 1}"))
    assert "is loopback" in await rig.output(refused)
    decisions = (await rig.runner.describe(Describe())).network_decisions
    counts = {(made.via, made.decision): made.count for made in decisions}
    assert counts["http", "allowed"] == counts["http", "refused"] == 1


@pytest.mark.covers("NET-4")
async def test_a_name_is_resolved_by_the_machines_own_resolver_inside_the_lockdown(rig: Rig, port: int) -> None:
    script = f"curl -s --noproxy none.test http://localhost:{port}/"
    listed = (f"localhost:{port}", f"127.0.0.1:{port}", f"[::1]:{port}")
    assert await rig.output(await rig.sh(script, terms=enabled(rig, *listed))) == "reached\n"
    refused = await rig.output(await rig.sh(script, terms=enabled(rig, listed[0])))
    assert "loopback" in refused, "the name alone is not enough"


@pytest.mark.covers("NET-1", "POL-2")
async def test_a_restricted_workspace_beside_it_reaches_nothing(rig: Rig, port: int) -> None:
    script = f"curl -s -x http://127.0.0.1:3128 http://127.0.0.1:{port}/; echo $?; env | grep -ci proxy"
    process_id = await rig.sh(script)
    assert await rig.output(process_id) == "7\n0\n"
