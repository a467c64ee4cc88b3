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

from gateway.http.connection import BoundedHttpProtocol
from gateway.http.door import Door
from gateway.http.limits import Deadlines, Room, Shares
from gateway.metrics import Metrics

REFUSED_AT_ONCE = 32
"""Refused peers that are told why at the same time; any more are cut off."""
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


class UnixHttpProtocol(BoundedHttpProtocol):
    """HTTP for allowed peers; any other gets one 403, and what it sends is not looked at. `outside`: where refused
    peers wait for the end of their connection, so that they take no place of an allowed one."""

    def __init__(
        self,
        rule: PeerRule,
        outside: Room,
        room: Room,
        deadlines: Deadlines,
        config: uvicorn.Config,
        state: ServerState,
    ) -> None:
        super().__init__(room, deadlines, config, state)
        self._rule = rule
        self._outside = outside
        self._refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        peer = peer_of(transport)
        self._refused = peer.uid not in self._rule.allow_uids
        if self._refused:
            self.room = self._outside
        super().connection_made(transport)
        self.client = (f"unix:uid={peer.uid}", peer.pid)
        if not self._refused or not self.entered:
            return
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

    def __init__(
        self, shares: Shares, metrics: Metrics, log: FilteringBoundLogger, deadlines: Deadlines | None = None
    ) -> None:
        self._deadlines = deadlines or Deadlines()
        self.unix_room = Room("unix", shares.unix, metrics, log)
        self.tcp_room = Room("tcp", shares.tcp, metrics, log)
        self._outside = Room("refused peers", REFUSED_AT_ONCE, metrics, log)
        self._state = ServerState()
        self._servers: list[asyncio.Server] = []
        self._doors: list[Door] = []

    async def serve_unix(self, sock: socket.socket, door: Door, rule: PeerRule) -> None:
        config = self._config(door)
        loop = asyncio.get_running_loop()
        # Not create_unix_server: from Python 3.13 on that one looks for the socket's file, to remove it at the end, by
        # the name that it was bound with; ours has been renamed since, and whoever bound it removes it.
        bounds = (self._outside, self.unix_room, self._deadlines)
        self._servers.append(
            await loop.create_server(lambda: UnixHttpProtocol(rule, *bounds, config, self._state), sock=sock)
        )

    async def serve_tcp(self, sock: socket.socket, door: Door) -> None:
        config = self._config(door)
        loop = asyncio.get_running_loop()
        bounds = (self.tcp_room, self._deadlines)
        self._servers.append(
            await loop.create_server(lambda: BoundedHttpProtocol(*bounds, config, self._state), sock=sock)
        )

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
            # An annotation of uvicorn's alone wants whole seconds.
            timeout_keep_alive=self._deadlines.idle_s,  # type: ignore[arg-type]
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
