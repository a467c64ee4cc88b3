"""The proxy's process: takes commands from the runner's socket and serves each under its own lists.

It ends with its socket, and with its runner. It holds no secret and starts no program. Refuses to know what a command
is. Started by `client` alone, through `__main__`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures.thread  # noqa: F401 - this and the next are loaded late, when the lockdown forbids it
import encodings.idna  # noqa: F401
import json
import os
import socket
import sys
import threading
from typing import Any

from adapters.egress_proxy import lockdown, wire
from adapters.egress_proxy.budget import Budget
from adapters.egress_proxy.gate import Gate
from adapters.egress_proxy.journal import Journal
from adapters.egress_proxy.policy import BadRule, parse_policy
from adapters.egress_proxy.resolver import STACK_BYTES, FixedResolver, Resolver, SystemResolver
from adapters.egress_proxy.session import Places, Session
from adapters.egress_proxy.share import Shares

MAX_DESCRIPTORS = 1 + wire.MAX_LISTENERS


class Program:
    """`connection`: the runner's socket, non-blocking."""

    def __init__(self, connection: socket.socket, resolver: Resolver) -> None:
        self._socket = connection
        self._resolver = resolver
        self._journal = Journal(self._counts_changed)
        self._counts_changed_since = False
        self._counts_under_way = False
        self._send_turn = asyncio.Lock()
        self._sessions: set[Session] = set()
        self._places = Places()
        self._shares = Shares()
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Until the runner's end closes. Raises OSError, WireError."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(_say_unexpected)
        while True:
            readable = asyncio.Event()
            loop.add_reader(self._socket.fileno(), readable.set)
            try:
                await readable.wait()
            finally:
                loop.remove_reader(self._socket.fileno())
            try:
                message, fds = _receive(self._socket)
            except ConnectionError:
                return  # it closed with messages of ours unread
            if not message:
                return
            await self._take(message, fds)

    async def _take(self, packet: bytes, fds: list[int]) -> None:
        what, value = wire.decode(packet)
        if what != "serve":
            raise wire.WireError(f"{what} is no request")
        serve = wire.parse_serve(value)
        if len(fds) != 1 + len(serve.listeners):
            # The kernel leaves out what there is no room for.
            for fd in fds:
                os.close(fd)
            message = f"{len(fds)} of {1 + len(serve.listeners)} descriptors arrived"
            await self._send({"refused": {"id": serve.id, "message": message}})
            return
        listeners = [(kind, socket.socket(fileno=fd)) for kind, fd in zip(serve.listeners, fds[1:], strict=True)]
        try:
            policy = parse_policy(serve.allow, serve.deny)
        except BadRule as error:
            for fd in fds:
                os.close(fd)
            for _, listener in listeners:
                listener.detach()
            await self._send({"refused": {"id": serve.id, "message": str(error)}})
            return
        gate = Gate(serve.workspace_id, serve.process_id, policy, self._resolver, self._journal,
                    self._shares.of(serve.workspace_id), Budget(asyncio.get_running_loop().time()))  # fmt: skip
        session: Session = Session(gate, self._places, lambda: self._end(session))
        self._sessions.add(session)
        try:
            await session.start(fds[0], listeners)
        except OSError as error:
            self._end(session)
            await self._send({"refused": {"id": serve.id, "message": f"its sockets cannot be served: {error}"}})
            return
        await self._send({"serving": {"id": serve.id}})

    def _end(self, session: Session) -> None:
        self._sessions.discard(session)
        self._keep(session.close())

    def _keep(self, work: Any) -> None:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _counts_changed(self) -> None:
        """At most one message under way: the next one holds all."""
        self._counts_changed_since = True
        if not self._counts_under_way:
            self._counts_under_way = True
            self._keep(self._send_counts())

    async def _send_counts(self) -> None:
        while self._counts_changed_since:
            self._counts_changed_since = False
            await self._send({"counts": self._journal.counts()})
        self._counts_under_way = False

    async def _send(self, value: dict[str, Any]) -> None:
        async with self._send_turn:
            try:
                await asyncio.get_running_loop().sock_sendall(self._socket, wire.encode(value))
            except ConnectionError:
                pass  # it is gone, as the next look for a message says


def _receive(connection: socket.socket) -> tuple[bytes, list[int]]:
    message, ancillary, flags, _ = connection.recvmsg(
        wire.MAX_MESSAGE_BYTES, socket.CMSG_SPACE(4 * MAX_DESCRIPTORS), socket.MSG_CMSG_CLOEXEC
    )
    fds: list[int] = []
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.extend(int.from_bytes(data[at : at + 4], sys.byteorder) for at in range(0, len(data) - 3, 4))
    if flags & socket.MSG_TRUNC:
        raise wire.WireError("a message is too long")
    return message, fds


def _say(event: str, level: str, **fields: object) -> None:
    line = json.dumps({"event": event, "level": level, "component": "egress_proxy", **fields}, default=repr)
    try:
        os.write(2, line.encode() + b"\n")
    except OSError:
        pass


def _say_unexpected(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """A fault of ours in one connection ends that connection, and is said; the others go on."""
    _say("proxy_connection_broke", "error", error=repr(context.get("exception")), message=context.get("message"))


def serve(control_fd: int, parent_pid: int) -> int:
    """The program's whole life: 0 once the runner's end closed, 1 where it could not start or was spoken to wrongly."""
    connection = socket.socket(fileno=control_fd)
    try:
        confinement = lockdown.confine(parent_pid)
        what, value = wire.decode(connection.recv(wire.MAX_MESSAGE_BYTES))
        if what != "config":
            raise wire.WireError("the first message is no config")
        config = wire.parse_config(value)
        threading.stack_size(STACK_BYTES)
        resolver = SystemResolver() if config.names is None else FixedResolver(config.names)
    except (OSError, ValueError) as error:
        try:
            connection.send(wire.encode({"failed": f"{error}"}))
        except OSError:
            pass
        return 1
    connection.send(wire.encode({"hello": {"version": wire.VERSION, "confinement": confinement}}))
    connection.setblocking(False)
    try:
        asyncio.run(Program(connection, resolver).run())
    except (OSError, wire.WireError) as error:
        _say("proxy_failed", "error", error=str(error))
        return 1
    return 0
