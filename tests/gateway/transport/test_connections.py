"""Connections are bounded in number and in time: who fills TCP leaves the Unix socket alone, who stalls is cut off."""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gateway.appliance import Endpoints
from gateway.http.limits import MOST_CONNECTIONS, RESERVED_DESCRIPTORS, Deadlines, Shares, shares_of
from gateway.http.listen import bind_tcp
from tests.fakes.application import FakeApplication
from tests.gateway.transport.serving import WAIT_S, Reply, Serving, modern_call, serve

TCP = {"http": "127.0.0.1:0"}
KINDS = ("tcp", "unix")
NEVER = 3600.0
HEAD = b"POST /mcp HTTP/1.1\r\nHost: localhost\r\n"
REQUEST = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def only(**given: float) -> Deadlines:
    """The deadlines given, and no other that could hide that one of them is missing."""
    return Deadlines(**{"head_s": NEVER, "body_s": NEVER, "idle_s": NEVER, "unread_s": NEVER, **given})


async def connect(serving: Serving, kind: str) -> Stream:
    if kind == "unix":
        return await asyncio.open_unix_connection(str(serving.unix))
    return await asyncio.open_connection(*serving.tcp)


@asynccontextmanager
async def stalled(serving: Serving, kind: str, *said: bytes) -> AsyncIterator[Stream]:
    """A client that says this, gets whole answers in between, and then nothing more."""
    reader, writer = await connect(serving, kind)
    try:
        for number, part in enumerate(said):
            writer.write(part)
            with contextlib.suppress(ConnectionError):  # it may be over already
                await writer.drain()
            if number + 1 < len(said):
                await answer(reader)
        yield reader, writer
    finally:
        writer.close()


async def answer(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(WAIT_S):
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.startswith(b"content-length"))
        return head + await reader.readexactly(length)


async def rest(reader: asyncio.StreamReader) -> bytes:
    """All until the connection ends."""
    try:
        async with asyncio.timeout(WAIT_S):
            return await reader.read()
    except ConnectionError:
        return b""


def refused(serving: Serving, reason: str) -> float:
    for line in serving.metrics.render().decode().splitlines():
        if line.startswith(f'codespace_refused_requests_total{{reason="{reason}"}}'):
            return float(line.split()[-1])
    return 0.0


async def left(serving: Serving) -> None:
    """Until no connection has a place any more."""
    front = serving.appliance._front
    assert front is not None
    async with asyncio.timeout(WAIT_S):
        while front.tcp_room.open or front.unix_room.open:  # noqa: ASYNC110 (nobody is told)
            await asyncio.sleep(0)


# --- time -------------------------------------------------------------------------------------------------------------
BODY = HEAD + b"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n"
STALLS: dict[str, tuple[Deadlines, tuple[bytes, ...]]] = {
    "says nothing": (only(head_s=0), ()),
    "half a line": (only(head_s=0), (b"PO",)),
    "half a head": (only(head_s=0), (HEAD,)),
    "empty lines": (only(head_s=0), (b"\r\n\r\n",)),
    "no body": (only(body_s=0), (BODY,)),
    "half a body": (only(body_s=0), (BODY + b"{",)),
    "half a chunk": (only(body_s=0), (HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nab",)),
    "half a body that is refused already": (only(body_s=0.5), (BODY.replace(b"localhost", b"evil"), b"{")),
    "nothing after an answer": (only(idle_s=0), (REQUEST, b"")),
    "half a head after an answer": (only(head_s=0.5), (REQUEST, HEAD)),
    "empty lines after an answer": (only(head_s=0.5), (REQUEST, b"\r\n")),
    "half a body after an answer": (only(body_s=0), (REQUEST, BODY + b"{")),
}


@pytest.mark.covers("NETIF-2")
@pytest.mark.parametrize("opened", [TCP], indirect=True)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", STALLS)
async def test_a_client_that_stalls_loses_its_connection_and_others_are_answered(
    opened: Endpoints, kind: str, case: str
) -> None:
    deadlines, said = STALLS[case]
    async with serve(opened, deadlines=deadlines) as serving:
        async with stalled(serving, kind, *said) as (reader, _):
            told = await rest(reader)
            assert told == b"" or told.startswith(b"HTTP/1.1 408 "), told
        await left(serving)
        assert refused(serving, "slow") == (0 if case == "nothing after an answer" else 1)


@pytest.mark.covers("NETIF-2")
@pytest.mark.parametrize("opened", [TCP], indirect=True)
@pytest.mark.parametrize("kind", KINDS)
async def test_dripping_bytes_wins_no_time(opened: Endpoints, kind: str) -> None:
    async with serve(opened, deadlines=only(head_s=0.2)) as serving, stalled(serving, kind, HEAD) as (reader, writer):
        ended = asyncio.ensure_future(rest(reader))
        async with asyncio.timeout(WAIT_S):
            while not ended.done():
                writer.write(b"X: y\r\n")
                await asyncio.wait({ended}, timeout=0.001)
        assert ended.result() == b"" or ended.result().startswith(b"HTTP/1.1 408 ")


@pytest.mark.covers("NETIF-2")
@pytest.mark.parametrize("opened", [TCP], indirect=True)
@pytest.mark.parametrize("kind", KINDS)
async def test_a_client_that_reads_no_answer_is_cut_off(opened: Endpoints, kind: str) -> None:
    # Large answers: what the kernel takes for a peer that does not read is soon full.
    application = FakeApplication({"hello.txt": "x" * 500_000})
    async with serve(opened, application=application, deadlines=only(unread_s=0)) as serving:
        body, headers = modern_call("read", {"workspace_id": "demo", "path": "hello.txt"})
        lines = "".join(f"{name}: {value}\r\n" for name, value in {"Host": "localhost", **headers}.items())
        one = f"POST /mcp HTTP/1.1\r\n{lines}Content-Length: {len(body)}\r\n\r\n".encode() + body
        reader, writer = await connect(serving, kind)
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        try:
            async with asyncio.timeout(6 * WAIT_S):
                while refused(serving, "slow") == 0:
                    writer.write(one)
                    await asyncio.wait({asyncio.ensure_future(writer.drain())}, timeout=0.01)
        finally:
            writer.transport.abort()
        await left(serving)


@pytest.mark.covers("NETIF-1", "PROC-7")
@pytest.mark.parametrize("opened", [TCP], indirect=True)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("accept", ["application/json, text/event-stream", "*/*"], ids=["short way", "SDK"])
async def test_a_call_of_2026_is_cancelled_by_closing_its_connection(opened: Endpoints, kind: str, accept: str) -> None:
    """Else whoever hangs up on long polls piles them up, until the runner takes no more."""
    body, headers = modern_call("read_process", {"process_id": "p", "wait_ms": 60_000})
    said = "".join(f"{name}: {value}\r\n" for name, value in {**headers, "Accept": accept}.items())
    async with serve(opened) as serving:
        async with stalled(serving, kind, HEAD + said.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body):
            await asyncio.wait_for(serving.application.waiting.wait(), WAIT_S)
        await asyncio.wait_for(serving.application.cancelled.wait(), WAIT_S)
        await left(serving)
        assert (await serving.call("workspace_info", {})).status == 200
        assert not [line for line in serving.log.getvalue().splitlines() if '"level": "error"' in line]


@pytest.mark.covers("NETIF-1")
async def test_a_call_of_2025_outlives_its_connection(opened: Endpoints) -> None:
    """There a lost connection is no cancellation: a client says notifications/cancelled."""
    async with serve(opened) as serving:
        headers = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}

        async def post(message: dict[str, Any]) -> Reply:
            return await serving.request(serving.unix, "POST", "/mcp", json.dumps(message).encode(), headers)

        about = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "0"}}
        begun = await post({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": about})
        headers |= {"Mcp-Session-Id": begun.headers["mcp-session-id"], "MCP-Protocol-Version": "2025-11-25"}
        assert (await post({"jsonrpc": "2.0", "method": "notifications/initialized"})).status == 202
        params = {"name": "read_process", "arguments": {"process_id": "p", "wait_ms": 60_000}}
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
        said = "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode()
        async with stalled(serving, "unix", HEAD + said + b"Content-Length: %d\r\n\r\n" % len(body) + body):
            await asyncio.wait_for(serving.application.waiting.wait(), WAIT_S)
        await left(serving)
        assert (await serving.call("workspace_info", {})).status == 200
        assert not serving.application.cancelled.is_set()


@pytest.mark.covers("PROC-4")
@pytest.mark.parametrize("opened", [TCP], indirect=True)
@pytest.mark.parametrize("kind", KINDS)
async def test_a_call_that_waits_is_bound_by_no_deadline_of_the_connection(opened: Endpoints, kind: str) -> None:
    """It waits while connections made after it are cut off by the same deadlines."""
    async with serve(opened, deadlines=Deadlines(head_s=0.5, body_s=0.5, idle_s=0.1, unread_s=0.1)) as serving:
        target: Any = serving.unix if kind == "unix" else serving.tcp
        waiting = asyncio.create_task(serving.call("read_process", {"process_id": "p", "wait_ms": 60000}, target))
        await asyncio.wait_for(serving.application.waiting.wait(), WAIT_S)
        for _ in range(2):
            async with stalled(serving, kind, HEAD) as (reader, _):
                await rest(reader)
        assert not waiting.done()
        serving.application.gate.set()
        assert (await asyncio.wait_for(waiting, WAIT_S)).status == 200


# --- number -----------------------------------------------------------------------------------------------------------
@pytest.mark.covers("NETIF-2")
@pytest.mark.parametrize("opened", [TCP], indirect=True)
@pytest.mark.parametrize(("full", "other"), [("tcp", "unix"), ("unix", "tcp")])
@pytest.mark.parametrize("said", [(), (HEAD,), (BODY,), (REQUEST, b"")], ids=["silent", "head", "body", "idle"])
async def test_whoever_fills_one_listener_is_refused_there_and_the_other_serves(
    opened: Endpoints, full: str, other: str, said: tuple[bytes, ...]
) -> None:
    most = 5
    async with serve(opened, shares=Shares(most, most), deadlines=only()) as serving:
        held = [await connect(serving, full) for _ in range(most)]
        for reader, writer in held:
            for part in said:
                writer.write(part)
                if part == REQUEST:
                    await answer(reader)
        try:
            for _ in range(3 * most):
                reader, writer = await connect(serving, full)
                told = await rest(reader)
                assert told == b"" or told.startswith(b"HTTP/1.1 503 ")
                writer.close()
            assert refused(serving, "connections") == 3 * most
            assert len(serving.events("connections_full")) == 1, "the log is not theirs to fill"
            target: Any = serving.unix if other == "unix" else serving.tcp
            assert (await serving.request(target, "GET", "/healthz")).status == 200
        finally:
            for _, writer in held:
                writer.close()
        await left(serving)
        again: Any = serving.unix if full == "unix" else serving.tcp
        assert (await serving.request(again, "GET", "/healthz")).status == 200


@pytest.mark.covers("NETIF-2")
@pytest.mark.parametrize("opened", [{"allow_uids": frozenset({54321})}], indirect=True)
async def test_peers_that_are_refused_take_no_place(opened: Endpoints) -> None:
    async with serve(opened, shares=Shares(1, 1), deadlines=only()) as serving:
        held = [await connect(serving, "unix") for _ in range(5)]
        for reader, writer in held:
            assert (await answer(reader)).startswith(b"HTTP/1.1 403 ")
            writer.close()
        assert refused(serving, "connections") == 0


@pytest.mark.parametrize("limit", [256, 512, 1024, 1400, 4096, 524288, resource.RLIM_INFINITY])
@pytest.mark.parametrize("in_use", [20, 100, 400])
def test_connections_leave_descriptors_for_commands(limit: int, in_use: int) -> None:
    shares = shares_of(limit, in_use)
    assert 16 <= shares.unix <= MOST_CONNECTIONS
    assert 16 <= shares.tcp <= MOST_CONNECTIONS
    if limit >= in_use + RESERVED_DESCRIPTORS + 32:
        assert shares.unix + shares.tcp + in_use + RESERVED_DESCRIPTORS <= limit


def test_a_listener_keeps_watch_over_silent_peers() -> None:
    (sock,) = bind_tcp("127.0.0.1:0", has_token=False)
    with sock, socket.create_connection(sock.getsockname()):
        accepted, _ = sock.accept()
        with accepted:
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 60
