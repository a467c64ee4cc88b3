"""The Unix socket: how it is bound, who may use it, both protocol eras on it."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.appliance import Endpoints
from gateway.errors import ConfigurationError, OperatorError, StartFailed
from gateway.http.listen import UnixListener, bind_unix
from tests.gateway.transport.serving import request, sdk_client, serve, short_directory

OWN = frozenset({0, os.getuid()})


@pytest.fixture
def directory() -> Iterator[Path]:
    with short_directory() as path:
        yield path


def dead_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))


@pytest.mark.covers("NETIF-2")
def test_the_socket_has_mode_0660_whatever_the_umask(directory: Path) -> None:
    before = os.umask(0o000)
    try:
        listener = bind_unix(directory / "s", OWN)
        found = os.stat(directory / "s")
        assert os.umask(0o000) == 0o000, "the umask of the process was changed"
    finally:
        os.umask(before)
    listener.close()
    assert stat.S_ISSOCK(found.st_mode)
    assert stat.S_IMODE(found.st_mode) == 0o660
    assert list(directory.iterdir()) == []


@pytest.mark.covers("NETIF-2")
def test_a_stale_socket_is_replaced_and_nothing_else_is_left(directory: Path) -> None:
    dead_socket(directory / "s")
    listener = bind_unix(directory / "s", OWN)
    assert [path.name for path in directory.iterdir()] == ["s"]
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(directory / "s"))
        listener.sock.accept()[0].close()
    listener.close()


@pytest.mark.covers("NETIF-2")
def test_a_live_socket_is_refused_and_stays_usable(directory: Path) -> None:
    listener = bind_unix(directory / "s", OWN)
    with pytest.raises(StartFailed) as refused:
        bind_unix(directory / "s", OWN)
    assert str(directory / "s") in str(refused.value)
    assert "another program serves this socket" in str(refused.value)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(directory / "s"))
        client.connect_ex(str(directory / "s"))
    listener.close()


def test_a_live_socket_with_a_full_backlog_is_refused_too(directory: Path) -> None:
    with socket.socket(socket.AF_UNIX) as busy:
        busy.bind(str(directory / "s"))
        busy.listen(0)
        waiting = [socket.socket(socket.AF_UNIX) for _ in range(4)]
        try:
            for client in waiting:
                client.setblocking(False)
                client.connect_ex(str(directory / "s"))
            with pytest.raises(StartFailed):
                bind_unix(directory / "s", OWN)
        finally:
            for client in waiting:
                client.close()


@pytest.mark.parametrize("round_", range(25))
def test_of_programs_that_start_at_once_exactly_one_gets_a_stale_name(directory: Path, round_: int) -> None:
    dead_socket(directory / "s")
    start = threading.Barrier(4)
    won: list[UnixListener] = []
    lost: list[OperatorError] = []

    def attempt() -> None:
        start.wait(10)
        try:
            won.append(bind_unix(directory / "s", OWN))
        except OperatorError as error:
            lost.append(error)

    threads = [threading.Thread(target=attempt) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert (len(won), len(lost)) == (1, 3)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(directory / "s"))
    won[0].close()
    assert list(directory.iterdir()) == []


def test_closing_leaves_a_socket_alone_that_took_the_name_meanwhile(directory: Path) -> None:
    first = bind_unix(directory / "s", OWN)
    (directory / "s").unlink()
    second = bind_unix(directory / "s", OWN)
    first.close()
    assert (directory / "s").exists()
    second.close()
    assert not (directory / "s").exists()


def test_something_that_is_no_socket_is_never_removed(directory: Path) -> None:
    (directory / "s").write_text("precious")
    with pytest.raises(StartFailed, match="no socket"):
        bind_unix(directory / "s", OWN)
    assert (directory / "s").read_text() == "precious"


def test_a_symbolic_link_at_the_name_is_refused(directory: Path) -> None:
    (directory / "s").symlink_to(directory / "elsewhere")
    with pytest.raises(StartFailed, match="no socket"):
        bind_unix(directory / "s", OWN)
    assert not (directory / "elsewhere").exists()


def test_a_path_that_no_client_could_connect_to_is_refused(directory: Path) -> None:
    with pytest.raises(ConfigurationError, match="107 bytes"):
        bind_unix(directory / ("x" * 120), OWN)


def test_a_name_as_long_as_a_socket_path_may_be_works(directory: Path) -> None:
    path = directory / ("x" * (106 - len(str(directory))))
    listener = bind_unix(path, OWN)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
    listener.close()


def test_a_directory_that_everybody_may_write_to_is_refused(directory: Path) -> None:
    directory.chmod(0o777)
    with pytest.raises(ConfigurationError, match="everybody may write"):
        bind_unix(directory / "s", OWN)
    directory.chmod(0o1777)
    bind_unix(directory / "s", OWN).close()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a directory away")
def test_a_directory_of_somebody_who_is_not_allowed_is_refused(directory: Path) -> None:
    os.chown(directory, 4242, 4242)
    with pytest.raises(ConfigurationError, match="belongs to uid 4242"):
        bind_unix(directory / "s", OWN)
    bind_unix(directory / "s", OWN | {4242}).close()


def test_a_missing_directory_is_made_for_the_owner_alone(directory: Path) -> None:
    listener = bind_unix(directory / "a" / "s", OWN)
    assert stat.S_IMODE(os.stat(directory / "a").st_mode) == 0o700
    listener.close()


@pytest.mark.covers("NETIF-1", "TOOL-1")
async def test_both_protocol_eras_give_the_same_list_and_result(opened: Endpoints) -> None:
    async with serve(opened) as serving:
        seen: list[Any] = []
        for mode, revision in (("legacy", "2025-11-25"), ("2026-07-28", "2026-07-28")):
            async with sdk_client(serving, mode) as client:
                assert client.protocol_version == revision
                tools = (await client.list_tools()).tools
                got = await client.call_tool("read", {"workspace_id": "demo", "path": "hello.txt"})
                refused = await client.call_tool("read", {"workspace_id": "demo", "path": "nope"})
                assert refused.is_error
                seen.append(([t.model_dump() for t in tools], got.structured_content, refused.structured_content))
        assert seen[0] == seen[1]
        assert seen[0][1] == {
            "path": "hello.txt",
            "content": "hello\n",
            "encoding": "utf-8",
            "size": 6,
            "truncated": False,
        }


@pytest.mark.covers("NETIF-3", "NETIF-1")
async def test_a_session_that_ends_while_its_messages_arrive_is_no_error_of_the_server(opened: Endpoints) -> None:
    plain = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "0"}}
    initialize = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
    cancelled = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 9}}
    async with serve(opened) as serving:
        unix = serving.unix
        for _ in range(20):
            begun = await serving.request(unix, "POST", "/mcp", json.dumps(initialize).encode(), plain)
            headers = {**plain, "Mcp-Session-Id": begun.headers["mcp-session-id"], "MCP-Protocol-Version": "2025-11-25"}
            notice = json.dumps(cancelled).encode()
            notices = [serving.request(unix, "POST", "/mcp", notice, headers) for _ in range(4)]
            ending = serving.request(unix, "DELETE", "/mcp", None, headers)
            *answers, ended = await asyncio.gather(*notices, ending)
            assert ended.status == 200
            assert {answer.status for answer in answers} <= {202, 404}
        assert serving.sessions() == 0
        assert [line for line in serving.log.getvalue().splitlines() if '"level": "error"' in line] == []


async def test_workspace_info_names_the_listed_tools_and_the_transports(opened: Endpoints) -> None:
    async with serve(opened) as serving, sdk_client(serving) as client:
        got = (await client.call_tool("workspace_info", {})).structured_content
        assert got is not None
        assert got["tools_exposed"] == [tool.name for tool in (await client.list_tools()).tools]
        assert got["transports"] == ["unix"]


@pytest.mark.covers("NETIF-2")
async def test_an_allowed_peer_is_named_in_the_context_of_its_calls(opened: Endpoints) -> None:
    async with serve(opened) as serving:
        serving.application.fault = RuntimeError("look at the log")
        await serving.call("workspace_info", {})
        logged = serving.events("tool_failed")
        assert logged[0]["peer"] == f"unix:uid={os.getuid()}:{os.getpid()}"
        assert logged[0]["tool"] == "workspace_info"


@pytest.mark.covers("NETIF-2")
@pytest.mark.parametrize("opened", [{"allow_uids": frozenset({4242})}], indirect=True)
async def test_a_peer_whose_uid_is_not_listed_is_refused_before_http(opened: Endpoints) -> None:
    async with serve(opened) as serving:
        reply = await serving.request(serving.unix, "GET", "/healthz")
        assert reply.status == 403
        assert f"uid {os.getuid()} may not use this socket" in reply.json()["error"]["message"]
        assert serving.events("peer_refused")[0]["uid"] == os.getuid()
        assert serving.application.calls == []
        assert b'codespace_refused_requests_total{reason="peer"} 1.0' in serving.metrics.render()


@pytest.mark.covers("NETIF-2")
@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
async def test_another_user_is_refused_by_the_kernel_or_by_the_check(
    opened: Endpoints, as_ordinary_user: Callable[..., Any]
) -> None:
    async with serve(opened) as serving:

        def ask() -> int | str:
            try:
                return request(serving.unix, "GET", "/healthz").status
            except PermissionError:
                return "EACCES"

        await asyncio.to_thread(os.chmod, serving.unix.parent, 0o755)
        assert await asyncio.to_thread(as_ordinary_user, ask) == "EACCES"
        await asyncio.to_thread(os.chmod, serving.unix, 0o666)
        assert await asyncio.to_thread(as_ordinary_user, ask) == 403
        assert (await serving.request(serving.unix, "GET", "/healthz")).status == 200
