"""MCP on lines: framing, bounds, ends, and the SDK's server over two pipes."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import socket
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from gateway import logging as gateway_logging
from gateway.mcp.catalogue import listed
from gateway.mcp.server import ToolServer
from gateway.mcp.stdio import LineWire, serve_lines
from gateway.metrics import Metrics
from tests.fakes.application import FIRST_TOOLS, FakeApplication
from tests.gateway.transport.serving import WAIT_S

HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "0"}}
MODERN = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}


@contextlib.asynccontextmanager
async def wires(max_line_bytes: int = 1000) -> AsyncIterator[tuple[LineWire, list[int], socket.socket]]:
    """A wire, and the other ends: (wire, write end of its input, socket that reads its output)."""
    read_end, write_end = os.pipe()
    ours, theirs = socket.socketpair()
    wire = LineWire(read_end, ours.fileno(), max_line_bytes=max_line_bytes)
    theirs.settimeout(WAIT_S)
    open_ends = [write_end]
    try:
        yield wire, open_ends, theirs
    finally:
        for fd in open_ends:
            os.close(fd)
        wire.close()
        await asyncio.to_thread(wire.join, WAIT_S)
        os.close(read_end)
        ours.close()
        theirs.close()


async def collect(wire: LineWire, count: int) -> list[bytes | None]:
    found: list[bytes | None] = []
    async with asyncio.timeout(WAIT_S):
        async for line in wire.lines():
            found.append(line)
            if len(found) == count:
                break
    return found


def end(open_ends: list[int]) -> None:
    os.close(open_ends.pop())


async def test_lines_are_split_wherever_the_bytes_were_cut() -> None:
    async with wires() as (wire, open_ends, _):
        for piece in (b"o", b"ne\ntw", b"o\n\nfo", b"ur", b"\nlast"):
            os.write(open_ends[0], piece)
        end(open_ends)
        assert await collect(wire, 99) == [b"one", b"two", b"", b"four", b"last"]


async def test_a_line_over_the_limit_is_dropped_and_the_next_is_read() -> None:
    async with wires(10) as (wire, open_ends, _):
        os.write(open_ends[0], b"0123456789\n01234567890\nok\n" + b"x" * 60_000)
        os.write(open_ends[0], b"\nfine\n" + b"y" * 11)
        end(open_ends)
        assert await collect(wire, 99) == [b"0123456789", None, b"ok", None, b"fine", None]


async def test_what_is_sent_is_out_when_send_returns() -> None:
    async with wires() as (wire, _, theirs):
        big = b"z" * 1_000_000
        sending = asyncio.create_task(wire.send(big))
        with theirs.makefile("rb") as reader:
            got = await asyncio.to_thread(reader.readline)
        await asyncio.wait_for(sending, WAIT_S)
        assert got == big + b"\n"


async def test_sending_to_nobody_is_an_error_and_not_a_hang() -> None:
    async with wires() as (wire, _, theirs):
        theirs.close()
        with pytest.raises(OSError, match="Broken pipe"):
            await asyncio.wait_for(wire.send(b"hello"), WAIT_S)


class Line:
    """The client's side of a served wire."""

    def __init__(self, application: FakeApplication, write_fd: list[int], out: socket.socket, serving: Any) -> None:
        self.application, self._write_fd, self.serving = application, write_fd, serving
        self._in = out.makefile("rb")

    def send(self, *messages: Mapping[str, Any] | bytes) -> None:
        for message in messages:
            os.write(
                self._write_fd[0], (message if isinstance(message, bytes) else json.dumps(message).encode()) + b"\n"
            )

    async def receive(self) -> Any:
        line = await asyncio.wait_for(asyncio.to_thread(self._in.readline), WAIT_S)
        return json.loads(line)

    def hang_up(self) -> None:
        end(self._write_fd)

    def close(self) -> None:
        self._in.close()


@pytest.fixture
async def line() -> AsyncIterator[Line]:
    application = FakeApplication()
    log = gateway_logging.configure("info", stream=io.StringIO())
    server = ToolServer(application, listed(FIRST_TOOLS), version="0", metrics=Metrics(), log=log, local_peer="stdio")
    async with wires(8 * 1024 * 1024) as (wire, open_ends, theirs):
        serving = asyncio.create_task(serve_lines(server.sdk, wire))
        client = Line(application, open_ends, theirs, serving)
        yield client
        application.gate.set()
        if open_ends:
            end(open_ends)
        await asyncio.wait_for(serving, WAIT_S)
        client.close()


def call(request_id: int, tool: str, meta: Mapping[str, Any] | None = None, **arguments: Any) -> dict[str, Any]:
    params: dict[str, Any] = {"name": tool, "arguments": arguments}
    if meta is not None:
        params["_meta"] = dict(meta)
    return {"jsonrpc": "2.0", "id": request_id, "method": "tools/call", "params": params}


def initialize(request_id: int = 0) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request_id, "method": "initialize", "params": HELLO}


INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}


@pytest.mark.covers("NETIF-1")
async def test_both_eras_are_served_on_lines(line: Line) -> None:
    line.send(call(1, "read", MODERN, workspace_id="demo", path="hello.txt"))
    got = await line.receive()
    assert (got["id"], got["result"]["structuredContent"]["content"]) == (1, "hello\n")


@pytest.mark.covers("NETIF-1")
async def test_a_long_poll_does_not_hold_up_another_call(line: Line) -> None:
    line.send(initialize(), INITIALIZED)
    assert (await line.receive())["result"]["protocolVersion"] == "2025-11-25"
    line.send(
        call(1, "read_process", process_id="p", wait_ms=60_000), call(2, "read", workspace_id="demo", path="nope")
    )
    refused = await line.receive()
    assert (refused["id"], refused["result"]["isError"]) == (2, True)
    line.application.gate.set()
    assert (await line.receive())["id"] == 1


async def test_a_line_that_is_no_message_is_answered_and_the_next_is_served(line: Line) -> None:
    line.send(b"{not json", b"[1, 2]", b'{"jsonrpc": "1.0"}', b"", initialize())
    codes = [(await line.receive())["error"]["code"] for _ in range(3)]
    assert codes == [-32700, -32600, -32600]
    assert (await line.receive())["id"] == 0


@pytest.mark.covers("TOOL-2")
async def test_a_request_with_an_id_that_is_none_is_answered(line: Line) -> None:
    """It would pass for a notification, and its sender wait for ever."""
    ids: list[Any] = [None, True, 1.5, [], {"a": 1}]
    for wrong in ids:
        line.send({**call(1, "find", MODERN, workspace_id="demo", pattern="*"), "id": wrong})
        answer = await line.receive()
        assert (answer["id"], answer["error"]["code"]) == (None, -32600)
    line.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 9, "reason": '"id"'}})
    line.send(call(2, "find", MODERN, workspace_id="demo", pattern="*"))
    assert (await line.receive())["id"] == 2


@pytest.mark.covers("PROC-7")
async def test_the_end_of_input_ends_it_and_cancels_what_waits(line: Line) -> None:
    line.send(initialize(), INITIALIZED)
    await line.receive()
    line.send(call(1, "read_process", process_id="p", wait_ms=60_000))
    await asyncio.wait_for(line.application.waiting.wait(), WAIT_S)
    line.hang_up()
    await asyncio.wait_for(line.serving, WAIT_S)
