"""Runs an ASGI application on sockets that are bound already.

uvicorn's HTTP protocol without its server: signals, binding and the order of shutting down are ours. The peer of a Unix
socket is read when the connection is made, before a byte of HTTP (SO_PEERCRED, unix(7)). Refuses to know: routes, MCP.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import struct
from dataclasses import dataclass
from typing import Any

import uvicorn
from structlog.typing import FilteringBoundLogger
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from gateway.http.door import Door
from gateway.metrics import Metrics

KEEP_ALIVE_S = 300
"""An idle connection is closed after this; agents pause between calls."""
MAX_CONNECTIONS = 512
"""Beyond this a request is answered 503: descriptors are for commands too."""
REFUSED_LINGER_S = 1.0
"""A refused peer is cut off after this, if it does not hang up by itself."""

_UCRED = struct.Struct("iII")


@dataclass(frozen=True)
class Peer:
    pid: int
    uid: int
    gid: int


def peer_of(transport: asyncio.BaseTransport) -> Peer:
    """Credentials of the program at the other end, as they were when it connected."""
    # uvloop's socket object has no getsockopt, so a duplicate of the descriptor is asked.
    with socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno())) as duplicate:
        return Peer(*_UCRED.unpack(duplicate.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)))


@dataclass(frozen=True)
class PeerRule:
    """Which peers of a Unix socket may talk, by uid."""

    allow_uids: frozenset[int]
    metrics: Metrics
    log: FilteringBoundLogger


class UnixHttpProtocol(HttpToolsProtocol):
    """HTTP for allowed peers; any other gets one 403, and what it sends is not looked at."""

    def __init__(self, rule: PeerRule, config: uvicorn.Config, state: ServerState) -> None:
        super().__init__(config, state, {})
        self._rule = rule
        self._refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        peer = peer_of(transport)
        self.client = (f"unix:uid={peer.uid}", peer.pid)
        if peer.uid in self._rule.allow_uids:
            return
        self._refused = True
        self._rule.metrics.request_refused("peer")
        self._rule.log.warning("peer_refused", uid=peer.uid, pid=peer.pid)
        text = f"uid {peer.uid} may not use this socket; the operator may add it to CODESPACE_ALLOW_UIDS"
        body = json.dumps({"error": {"reason": "peer", "message": text}}).encode()
        head = f"HTTP/1.1 403 Forbidden\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        transport.write(head.encode() + b"connection: close\r\n\r\n" + body)
        # Closing at once would break the client's own sending before it reads why.
        self.loop.call_later(REFUSED_LINGER_S, transport.abort)

    def data_received(self, data: bytes) -> None:
        if not self._refused:
            super().data_received(data)


class HttpServer:
    """Serves until `close`. Every task and connection is gone when `close` returns."""

    def __init__(self) -> None:
        self._state = ServerState()
        self._servers: list[asyncio.Server] = []
        self._doors: list[Door] = []

    async def serve_unix(self, sock: socket.socket, door: Door, rule: PeerRule) -> None:
        config = self._config(door)
        loop = asyncio.get_running_loop()
        # Not create_unix_server: from Python 3.13 on that one looks for the socket's file, to remove it at the end, by
        # the name that it was bound with; ours has been renamed since, and whoever bound it removes it.
        self._servers.append(await loop.create_server(lambda: UnixHttpProtocol(rule, config, self._state), sock=sock))

    async def serve_tcp(self, sock: socket.socket, door: Door) -> None:
        config = self._config(door)
        loop = asyncio.get_running_loop()
        self._servers.append(await loop.create_server(lambda: HttpToolsProtocol(config, self._state, {}), sock=sock))

    def _config(self, door: Door) -> uvicorn.Config:
        self._doors.append(door)
        config = uvicorn.Config(
            door,
            interface="asgi3",
            http=HttpToolsProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            limit_concurrency=MAX_CONNECTIONS,
        )
        config.load()
        return config

    def stop_accepting(self) -> None:
        """New connections are refused, idle ones closed; answers under way go on. Idempotent."""
        for server in self._servers:
            server.close()
        for connection in list(self._state.connections):
            connection.shutdown()

    async def close(self, grace_s: float) -> None:
        """Gives answers under way up to `grace_s` seconds, then cancels what is left, long polls included."""
        self.stop_accepting()
        for door in self._doors:
            door.close()
        tasks = set(self._state.tasks)
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=grace_s)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late, timeout=grace_s)
        self.abort_connections()

    def abort_connections(self) -> None:
        """Cuts every connection off, whatever it waits for. What was called goes on."""
        for connection in list(self._state.connections):
            _abort(connection)


def _abort(connection: Any) -> None:
    transport = connection.transport
    if transport is not None:
        transport.abort()
