"""Two makes of MCP client, since a client may cost more than any server: the SDK's own, and a raw one.

The raw one keeps its connection, writes one 2026-07-28 request and parses the JSON of the answer; over HTTP it is a
blocking socket, on standard input and output a pair of pipes. Refuses to know: which server answers.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol, TextIO

import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client

from gateway.cli.unix_http import CAPABILITIES_KEY, CLIENT_INFO_KEY, MODERN, PROTOCOL_VERSION_KEY, request_headers

WAIT_S = 30.0
OFFICIAL = f"official SDK client {version('mcp')}"
RAW_HTTP = "raw keep-alive client"
RAW_PIPES = "raw client on pipes"
META = {
    PROTOCOL_VERSION_KEY: MODERN,
    CAPABILITIES_KEY: {},
    CLIENT_INFO_KEY: {"name": "codespace-benchmarks", "version": "0"},
}
Address = Path | tuple[str, int]


class Caller(Protocol):
    async def call(self, tool: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """The structured result, empty where there is none. Raises `RuntimeError` for a refusal."""


class OfficialClient:
    def __init__(self, client: Client) -> None:
        self._client = client

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        result = await self._client.call_tool(tool, dict(arguments))
        if result.is_error:
            raise RuntimeError(f"{tool}: {result.content}")
        return result.structured_content or {}


class RawClient:
    """`exchange`: bytes of one request to the body of its answer."""

    def __init__(self, frame: Callable[[bytes, str], bytes], exchange: Callable[[bytes], bytes]) -> None:
        self._frame = frame
        self._exchange = exchange
        self._next_id = 0

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        self._next_id += 1
        params = {"name": tool, "arguments": dict(arguments), "_meta": META}
        request = {"jsonrpc": "2.0", "id": self._next_id, "method": "tools/call", "params": params}
        answer = json.loads(self._exchange(self._frame(json.dumps(request).encode(), tool)))
        if answer.get("id") != self._next_id or "result" not in answer or answer["result"].get("isError"):
            raise RuntimeError(f"{tool}: {json.dumps(answer)[:500]}")
        found: Mapping[str, Any] = answer["result"].get("structuredContent") or {}
        return found


# --- connections ------------------------------------------------------------------------------------------------------
@asynccontextmanager
async def official_http(address: Address, mode: str = MODERN) -> AsyncIterator[Caller]:
    """`mode`: a protocol version that is asked for without a probe, or `legacy` (2025-11-25, with initialize)."""
    transport = httpx2.AsyncHTTPTransport(uds=str(address)) if isinstance(address, Path) else None
    url = "http://localhost/mcp" if isinstance(address, Path) else f"http://{address[0]}:{address[1]}/mcp"
    async with (
        httpx2.AsyncClient(transport=transport, timeout=WAIT_S) as web,
        Client(streamable_http_client(url, http_client=web), mode=mode) as client,
    ):
        yield OfficialClient(client)


@asynccontextmanager
async def official_stdio(command: Sequence[str]) -> AsyncIterator[Caller]:
    parameters = StdioServerParameters(command=command[0], args=list(command[1:]), env=environment())
    with _nowhere() as log:
        async with Client(stdio_client(parameters, errlog=log), mode=MODERN) as client:
            yield OfficialClient(client)


@contextmanager
def _nowhere() -> Iterator[TextIO]:
    with open(os.devnull, "w") as sink:
        yield sink


@contextmanager
def raw_http(address: Address) -> Iterator[Caller]:
    with socket.socket(socket.AF_UNIX if isinstance(address, Path) else socket.AF_INET, socket.SOCK_STREAM) as sock:
        sock.settimeout(WAIT_S)
        sock.connect(str(address) if isinstance(address, Path) else address)
        if not isinstance(address, Path):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def frame(body: bytes, tool: str) -> bytes:
            headers = {"Host": "localhost", "Content-Length": str(len(body))}
            headers |= request_headers("tools/call", {"name": tool})
            lines = [f"{name}: {value}\r\n" for name, value in headers.items()]
            return f"POST /mcp HTTP/1.1\r\n{''.join(lines)}\r\n".encode() + body

        def exchange(request: bytes) -> bytes:
            sock.sendall(request)
            return _response(sock)

        yield RawClient(frame, exchange)


def _response(sock: socket.socket) -> bytes:
    """The body of one response with a length."""
    data = bytearray()
    while (end := data.find(b"\r\n\r\n")) < 0:
        _more(sock, data)
    head = bytes(data[:end]).lower()
    if not head.startswith(b"http/1.1 200") or b"\r\ncontent-length:" not in head:
        raise RuntimeError(f"no plain answer: {head[:500]!r}")
    length = int(head.partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0])
    while len(data) < end + 4 + length:
        _more(sock, data)
    return bytes(data[end + 4 :])


def _more(sock: socket.socket, data: bytearray) -> None:
    piece = sock.recv(1 << 20)
    if not piece:
        raise RuntimeError("the server hung up")
    data += piece


@contextmanager
def raw_stdio(command: Sequence[str]) -> Iterator[Caller]:
    pipe, null = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=null, env=environment()) as process:
        to_server, from_server = process.stdin, process.stdout
        assert to_server is not None
        assert from_server is not None

        def exchange(line: bytes) -> bytes:
            to_server.write(line)
            to_server.flush()
            answer = from_server.readline()
            if not answer:
                raise RuntimeError("the server ended")
            return answer

        try:
            yield RawClient(lambda body, tool: body + b"\n", exchange)
        finally:
            to_server.close()
            try:
                process.wait(WAIT_S)
            except subprocess.TimeoutExpired:
                process.kill()


def ignore_client_noise(loop: asyncio.AbstractEventLoop) -> None:
    """anyio's streams wake a reader that was cancelled in the same turn of the loop, which asyncio reports."""

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not isinstance(context.get("exception"), asyncio.InvalidStateError):
            loop.default_exception_handler(context)

    loop.set_exception_handler(handle)


def environment() -> dict[str, str]:
    """Ours, without what would be a setting of the appliance."""
    return {name: value for name, value in os.environ.items() if not name.startswith("CODESPACE_")}
