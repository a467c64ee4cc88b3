"""Serves MCP on standard input and output: one JSON-RPC message a line.

Reading and writing block in two daemon threads: they work for pipes, terminals and files alike, and never hold up the
end of the program. Refuses to know: tools, HTTP, which descriptors they are. Called by `codespace stdio`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import json
import os
import queue
import threading
from collections.abc import AsyncIterator
from typing import Any

import anyio
import mcp.types as types
from mcp.server.lowlevel import Server
from mcp.shared.message import SessionMessage
from pydantic import ValidationError

MAX_LINE_BYTES = 8 * 1024 * 1024
"""As the body bound of HTTP."""
_CHUNK_BYTES = 64 * 1024


class LineWire:
    """Lines in and lines out over two descriptors, with back-pressure both ways. Owns neither descriptor."""

    def __init__(self, read_fd: int, write_fd: int, *, max_line_bytes: int = MAX_LINE_BYTES) -> None:
        self._read_fd = read_fd
        self._write_fd = write_fd
        self._max = max_line_bytes
        self._loop = asyncio.get_running_loop()
        self._chunks: asyncio.Queue[bytes] = asyncio.Queue(maxsize=4)
        self._outgoing: queue.SimpleQueue[tuple[bytes, asyncio.Future[None]] | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._read_all, name="stdin", daemon=True),
            threading.Thread(target=self._write_all, name="stdout", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def _read_all(self) -> None:
        while True:
            try:
                chunk = os.read(self._read_fd, _CHUNK_BYTES)
            except OSError:
                chunk = b""  # a hang-up of the terminal reads as EIO: the end, like EOF
            try:
                asyncio.run_coroutine_threadsafe(self._chunks.put(chunk), self._loop).result()
            except (RuntimeError, concurrent.futures.CancelledError):
                return  # the loop is closed, or about to be
            if not chunk:
                return

    def _write_all(self) -> None:
        while (item := self._outgoing.get()) is not None:
            data, done = item
            error: OSError | None = None
            try:
                view = memoryview(data)
                while view:
                    view = view[os.write(self._write_fd, view) :]
            except OSError as caught:
                error = caught
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(_settle, done, error)

    async def lines(self) -> AsyncIterator[bytes | None]:
        """Each line without its end; None stands for one that was longer than allowed and is dropped. Ends at EOF.

        A last line without an end counts.
        """
        buffer = bytearray()
        dropping = False
        while chunk := await self._chunks.get():
            start = 0
            while (end := chunk.find(b"\n", start)) >= 0:
                buffer += chunk[start:end]
                start = end + 1
                if dropping or len(buffer) > self._max:
                    yield None
                else:
                    yield bytes(buffer)
                buffer.clear()
                dropping = False
            buffer += chunk[start:]
            if len(buffer) > self._max:
                dropping = True
                buffer.clear()
        if dropping:
            yield None
        elif buffer:
            yield bytes(buffer)

    def close(self) -> None:
        """Lets the writing thread end once it has written what it has. The reading one ends with the input, or with
        the process. Idempotent."""
        self._outgoing.put(None)

    def join(self, timeout_s: float) -> None:
        """Waits for both threads, each this long at most. Blocks."""
        for thread in self._threads:
            thread.join(timeout_s)

    async def send(self, line: bytes) -> None:
        """Returns once the operating system has all of it. Raises `OSError` when the reader is gone."""
        done: asyncio.Future[None] = self._loop.create_future()
        self._outgoing.put((line + b"\n", done))
        await done


def _settle(done: asyncio.Future[None], error: OSError | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)


async def serve_lines(server: Server[Any], wire: LineWire) -> None:
    """Serves one client until its input ends or its output is closed. Safe to cancel."""
    to_server, from_client = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    to_client, from_server = anyio.create_memory_object_stream[SessionMessage](0)

    async def send(line: bytes) -> None:
        try:
            await wire.send(line)
        except OSError:  # the client is gone: nobody is left to answer
            tasks.cancel_scope.cancel()

    async def read() -> None:
        async with to_server:
            async for line in wire.lines():
                if line is not None and not line.strip():
                    continue
                message = _parse(line)
                if isinstance(message, bytes):
                    await send(message)
                else:
                    with contextlib.suppress(anyio.BrokenResourceError):
                        await to_server.send(SessionMessage(message))

    async def write() -> None:
        async with from_server:
            async for message in from_server:
                await send(message.message.model_dump_json(by_alias=True, exclude_unset=True).encode())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        tasks.start_soon(write)
        await server.run(from_client, to_client, server.create_initialization_options())
        # The server closed its end of `to_client`, so `write` ends by itself once everything is out.
        from_client.close()


def _parse(line: bytes | None) -> types.JSONRPCMessage | bytes:
    """The message, or the answer to a line that is none."""
    if line is None:
        return _no_message(types.INVALID_REQUEST, f"a message is over {MAX_LINE_BYTES} bytes; send less at once")
    try:
        message = types.jsonrpc_message_adapter.validate_json(line, by_name=False)
        # A request whose id is none, such as null, passes for a notification, and whoever sent it would wait for ever.
        if isinstance(message, types.JSONRPCNotification) and b'"id"' in line and "id" in json.loads(line):
            return _no_message(types.INVALID_REQUEST, "the id of a request is a string or a whole number")
        return message
    except ValidationError as error:
        broken = any(e["type"] == "json_invalid" for e in error.errors(include_input=False, include_url=False))
        if broken:
            return _no_message(types.PARSE_ERROR, "the line is not JSON")
        return _no_message(types.INVALID_REQUEST, "the line is not one JSON-RPC 2.0 message")


def _no_message(code: int, text: str) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": text}}).encode()
