"""MCP clients for the load driver, over the appliance's Unix socket: the SDK's own, and plain HTTP/1.1 kept alive.

Both make a tool call and give its structured content, or `Refused`. Both can abandon a call (send it and go away) and
lose their connection. They refuse to know what is asked and whether an answer is right. Called by `benchmarks.load`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import anyio
import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from gateway.cli.unix_http import CAPABILITIES_KEY, MODERN, PROTOCOL_VERSION_KEY, request_headers

ANSWER_BOUND_S = 150.0
"""No call of the driver asks for more than a few seconds of waiting; without an answer by then it is lost."""
_LINE_LIMIT = 1 << 20


class Refused(Exception):
    """A tool error, as answered. `operation_id` is None where the error carries none."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        super().__init__(f"{error['code']}: {error['message']}")
        self.code: str = error["code"]
        self.details: Mapping[str, Any] = error["details"]
        self.operation_id: str | None = error.get("operation_id")


class NoAnswer(Exception):
    """The server did not answer as a server: a connection that ended, a wrong status, silence."""


class LoadClient(Protocol):
    """One MCP client. Use it from one task; calls may overlap."""

    async def open(self) -> None:
        """Connects. Raises NoAnswer."""

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Structured content. Raises Refused for a tool error, NoAnswer for anything else."""

    async def abandon(self, tool: str, arguments: Mapping[str, Any]) -> None:
        """Sends the call and goes away before its answer, or just after."""

    async def reconnect(self) -> None:
        """Drops every connection and makes new ones."""

    async def close(self) -> None:
        """Idempotent."""


class RawClient:
    """HTTP/1.1 kept alive: a connection serves one call at a time and goes back to the idle ones."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._next_id = 0

    async def open(self) -> None:
        self._idle.append(await self._connect())

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        try:
            return await asyncio.open_unix_connection(str(self._socket), limit=_LINE_LIMIT)
        except OSError as error:
            raise NoAnswer(f"cannot connect: {error}") from error

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        reader, writer = self._idle.pop() if self._idle else await self._connect()
        self._next_id += 1
        request_id = self._next_id
        try:
            async with asyncio.timeout(ANSWER_BOUND_S):
                writer.write(self._request(request_id, tool, arguments))
                await writer.drain()
                status, body = await _response(reader)
        except (OSError, EOFError, ValueError, TimeoutError) as error:
            writer.close()
            raise NoAnswer(f"{tool}: {type(error).__name__}: {error}") from error
        except BaseException:
            writer.close()
            raise
        self._idle.append((reader, writer))
        if status != 200:
            raise NoAnswer(f"{tool}: HTTP {status}: {body[:200]!r}")
        answer = json.loads(body)
        if answer.get("id") != request_id or "result" not in answer:
            raise NoAnswer(f"{tool}: no result of request {request_id}: {body[:200]!r}")
        return _content(answer["result"])

    def _request(self, request_id: int, tool: str, arguments: Mapping[str, Any]) -> bytes:
        meta = {PROTOCOL_VERSION_KEY: MODERN, CAPABILITIES_KEY: {}}
        params = {"name": tool, "arguments": dict(arguments), "_meta": meta}
        message = {"jsonrpc": "2.0", "id": request_id, "method": "tools/call", "params": params}
        body = json.dumps(message).encode()
        lines = ["POST /mcp HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in request_headers("tools/call", params).items()]
        return "\r\n".join([*lines, "", ""]).encode() + body

    async def abandon(self, tool: str, arguments: Mapping[str, Any]) -> None:
        _, writer = await self._connect()
        writer.write(self._request(0, tool, arguments))
        await writer.drain()
        writer.close()

    async def reconnect(self) -> None:
        await self.close()
        await self.open()

    async def close(self) -> None:
        for _, writer in self._idle:
            writer.close()
        self._idle.clear()


async def _response(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Status and body. Raises EOFError, OSError, ValueError (not HTTP, or not JSON's content type)."""
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}
    body = await reader.readexactly(int(headers["content-length"]))
    status = int(first.split(" ")[1])
    if status == 200 and headers.get("content-type", "").partition(";")[0] != "application/json":
        raise ValueError(f"content type {headers.get('content-type')!r}")
    return status, body


def _content(result: Mapping[str, Any]) -> dict[str, Any]:
    content: dict[str, Any] = result["structuredContent"]
    if result.get("isError"):
        raise Refused(content["error"])
    return content


class SdkClient:
    """The official SDK's client. `mode`: as the SDK has it: "auto", "legacy" (2025-11-25) or a version."""

    def __init__(self, socket: Path, mode: str = "auto") -> None:
        self._socket, self._mode = socket, mode
        self._stack = contextlib.AsyncExitStack()
        self._client: Client | None = None

    async def open(self) -> None:
        transport = httpx2.AsyncHTTPTransport(uds=str(self._socket))
        web = httpx2.AsyncClient(transport=transport, timeout=ANSWER_BOUND_S)
        await self._stack.enter_async_context(web)
        session = Client(streamable_http_client("http://localhost/mcp", http_client=web), mode=self._mode)
        self._client = await self._stack.enter_async_context(session)

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        assert self._client is not None
        try:
            async with asyncio.timeout(ANSWER_BOUND_S):
                result = await self._client.call_tool(tool, dict(arguments))
        except TimeoutError as error:
            raise NoAnswer(f"{tool}: no answer in {ANSWER_BOUND_S:.0f} s") from error
        except Exception as error:
            raise NoAnswer(f"{tool}: {type(error).__name__}: {error}") from error
        content: dict[str, Any] | None = result.structured_content
        if content is None:
            raise NoAnswer(f"{tool}: no structured content: {result.content!r:.200}")
        if result.is_error:
            raise Refused(content["error"])
        return content

    async def abandon(self, tool: str, arguments: Mapping[str, Any]) -> None:
        """A few turns of the loop let the request out; how far it comes differs, as with a real client."""
        asking = asyncio.create_task(self.call(tool, arguments))
        await asyncio.wait({asking}, timeout=0.005)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)

    async def reconnect(self) -> None:
        await self.close()
        await self.open()

    async def close(self) -> None:
        self._client = None
        stack, self._stack = self._stack, contextlib.AsyncExitStack()
        try:
            await stack.aclose()
        except* (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass  # the SDK had the answer of an abandoned call in its hands, and nobody to give it to
