"""An appliance with a fake application on real sockets, and raw HTTP to it. Called by the tests of the transports."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import io
import json
import os
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from gateway import logging as gateway_logging
from gateway.appliance import Appliance, Endpoints, open_endpoints
from gateway.cli.unix_http import MODERN, UnixConnection, request_headers
from gateway.http.limits import Deadlines, Shares
from gateway.metrics import Metrics
from tests.fakes.application import FIRST_TOOLS, FakeApplication

WAIT_S = 10.0


@contextlib.contextmanager
def short_directory() -> Iterator[Path]:
    """A socket path holds 108 bytes, so pytest's own directories are too deep."""
    path = tempfile.mkdtemp(prefix="cs")
    try:
        yield Path(path)
    finally:
        shutil.rmtree(path)


@dataclass(frozen=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


def request(
    target: Path | tuple[str, int],
    method: str,
    path: str,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    *,
    timeout_s: float = WAIT_S,
) -> Reply:
    """One HTTP request on a connection of its own. Blocks, `timeout_s` at most for each wait."""
    connection: http.client.HTTPConnection = (
        UnixConnection(target, timeout_s)
        if isinstance(target, Path)
        else http.client.HTTPConnection(*target, timeout=timeout_s)
    )
    try:
        connection.request(method, path, body, dict(headers or {}))
        response = connection.getresponse()
        return Reply(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
    finally:
        connection.close()


def modern_call(tool: str, arguments: Mapping[str, Any], request_id: int | str = 1) -> tuple[bytes, dict[str, str]]:
    """Body and headers of a tools/call of protocol 2026-07-28."""
    meta = {"io.modelcontextprotocol/protocolVersion": MODERN, "io.modelcontextprotocol/clientCapabilities": {}}
    params = {"name": tool, "arguments": dict(arguments), "_meta": meta}
    body = json.dumps({"jsonrpc": "2.0", "id": request_id, "method": "tools/call", "params": params}).encode()
    return body, request_headers("tools/call", params)


@dataclass
class Serving:
    application: FakeApplication
    appliance: Appliance
    endpoints: Endpoints
    metrics: Metrics
    log: io.StringIO
    running: asyncio.Task[None] = field(repr=False)

    @property
    def unix(self) -> Path:
        return self.endpoints.unix.path

    @property
    def tcp(self) -> tuple[str, int]:
        host, port = self.endpoints.tcp[0].getsockname()[:2]
        return host, port

    def events(self, name: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.log.getvalue().splitlines()]
        return [line for line in lines if line["event"] == name]

    async def request(self, *args: Any, **kwargs: Any) -> Reply:
        return await asyncio.to_thread(request, *args, **kwargs)

    async def call(self, tool: str, arguments: Mapping[str, Any], target: Any = None, **headers: str) -> Reply:
        body, plain = modern_call(tool, arguments)
        return await self.request(target or self.unix, "POST", "/mcp", body, {**plain, **headers})

    def sessions(self) -> int:
        """Sessions of the older era that are open."""
        assert self.appliance._http is not None
        return len(self.appliance._http._sessions._server_instances)

    def drop_connections(self) -> None:
        """Every client loses its connection, whatever it waits for."""
        assert self.appliance._front is not None
        self.appliance._front.abort_connections()

    async def stop(self) -> None:
        self.appliance.stop()
        await asyncio.wait_for(self.running, WAIT_S)


@contextlib.asynccontextmanager
async def serve(
    endpoints: Endpoints,
    *,
    tools: frozenset[str] = FIRST_TOOLS,
    application: FakeApplication | None = None,
    shares: Shares | None = None,
    deadlines: Deadlines | None = None,
) -> AsyncIterator[Serving]:
    """Returns once it accepts; stops it at the end unless the test did."""
    log = io.StringIO()
    metrics = Metrics()
    application = application or FakeApplication(tools=tools)
    appliance = Appliance(
        application,
        version="0.0",
        metrics=metrics,
        log=gateway_logging.configure("info", stream=log),
        shares=shares,
        deadlines=deadlines,
    )
    running = asyncio.create_task(appliance.serve(endpoints))
    try:
        serving = asyncio.create_task(appliance.serving.wait())
        await asyncio.wait((running, serving), timeout=WAIT_S, return_when=asyncio.FIRST_COMPLETED)
        serving.cancel()
        if running.done():
            running.result()
        assert appliance.serving.is_set(), "the appliance did not come up"
        yield Serving(application, appliance, endpoints, metrics, log, running)
    finally:
        appliance.stop()
        await asyncio.wait_for(running, WAIT_S)


@contextlib.contextmanager
def endpoints(
    *,
    http: str | None = None,
    token: str | None = None,
    allow_uids: frozenset[int] | None = None,
    allow_hosts: tuple[str, ...] = (),
) -> Iterator[Endpoints]:
    """Endpoints on a Unix socket in a directory of their own. Outside the loop: binding blocks."""
    uids = frozenset({0, os.getuid()}) if allow_uids is None else allow_uids
    with (
        short_directory() as directory,
        open_endpoints(directory / "mcp.sock", http, token, uids, allow_hosts) as opened,
    ):
        yield opened


@contextlib.asynccontextmanager
async def sdk_client(
    serving: Serving, mode: str = "auto", *, tcp: bool = False, token: str | None = None
) -> AsyncIterator[Client]:
    """The SDK's own client on a connection of its own. `mode`: auto, legacy (2025-11-25) or 2026-07-28."""
    transport = None if tcp else httpx2.AsyncHTTPTransport(uds=str(serving.unix))
    url = "http://{}:{}/mcp".format(*serving.tcp) if tcp else "http://localhost/mcp"
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    async with (
        httpx2.AsyncClient(transport=transport, headers=headers, timeout=WAIT_S) as web,
        Client(streamable_http_client(url, http_client=web), mode=mode) as client,
    ):
        yield client


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
