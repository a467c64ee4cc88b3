"""One command's side of the proxy: its listening sockets, its lists, its connections, until it is over.

The sockets belong to the command's own network and were made there; who connects to them can only be that command, so
the lists that apply are known before the first byte. Everything ends when the command does. Refuses to know other
commands. Made by the program for each `serve`.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
from collections.abc import Awaitable, Callable, Sequence

from adapters.egress_proxy import http, socks
from adapters.egress_proxy.gate import BUFFER_BYTES, Gate, Refused, Streams, Unreachable
from adapters.egress_proxy.hosts import Host
from adapters.egress_proxy.journal import Record
from adapters.egress_proxy.names import MAX_QUERY_BYTES, STAND_INS, Answer, BadQuery, Names
from adapters.egress_proxy.relay import IDLE_TIMEOUT_S, Idle, copy, relay, shut
from adapters.egress_proxy.share import Share

HEAD_TIMEOUT_S = 30.0
MAX_CONNECTIONS = 256
MAX_TOGETHER = 3000
"""Twice as many descriptors, within the process's limit of them."""
QUERIES_AT_ONCE = 64
NAMES_REST_S = 0.05

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Places:
    """How many connections all commands have together: the process has a bound on its descriptors."""

    def __init__(self) -> None:
        self.taken = 0


class Session:
    """`start` takes the descriptors over; `close` ends everything. `over` is called once the command has ended."""

    def __init__(self, gate: Gate, places: Places, over: Callable[[], None]) -> None:
        self._gate = gate
        self._places = places
        self._over = over
        self._names = Names(gate.policy.knows_name)
        self._servers: list[asyncio.Server] = []
        self._listeners: list[socket.socket] = []
        self._connections: set[asyncio.Task[None]] = set()
        self._pidfd = -1

    async def start(self, pidfd: int, listeners: Sequence[tuple[str, socket.socket]]) -> None:
        """Serves at once. Raises OSError, with `close` still to be called."""
        self._pidfd = pidfd
        self._listeners = [listener for _, listener in listeners]
        loop = asyncio.get_running_loop()
        handlers: dict[str, Handler] = {
            "proxy": self._proxy, "transparent": self._transparent, "names_tcp": self._names_by_tcp,
        }  # fmt: skip
        for kind, listener in listeners:
            listener.setblocking(False)
            if kind == "names_udp":
                loop.add_reader(listener.fileno(), self._names_by_udp, listener)
            else:
                serve = self._bounded(handlers[kind])
                self._servers.append(await asyncio.start_server(serve, sock=listener, limit=BUFFER_BYTES))
        loop.add_reader(pidfd, self._on_end)

    def _on_end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        self._over()

    async def close(self) -> None:
        """Idempotent. Returns once nothing of it is left."""
        loop = asyncio.get_running_loop()
        if self._pidfd >= 0:
            loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1
        for server in self._servers:
            server.close()
        while self._listeners:
            listener = self._listeners.pop()
            if listener.fileno() >= 0:  # a server has closed its own
                loop.remove_reader(listener.fileno())
                listener.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _bounded(self, handle: Handler) -> Handler:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            if len(self._connections) >= MAX_CONNECTIONS or self._places.taken >= MAX_TOGETHER:
                # Waiting would hold the connection; so this alone is logged only while there is a turn for it.
                if self._gate.turn_now():
                    self._gate.refuse("proxy", "", None, "too many connections are open already")
                else:
                    self._gate.journal.count("proxy", "refused")
                writer.transport.abort()
                return
            self._connections.add(task)
            self._places.taken += 1
            try:
                await self._gate.turn()
                await handle(reader, writer)
            except (OSError, TimeoutError):
                pass  # the command's own end is lost, or it said nothing
            finally:
                try:
                    await shut(writer)
                finally:
                    self._connections.discard(task)
                    self._places.taken -= 1

        return serve

    # --- the proxy's port -------------------------------------------------------------------------------------------
    async def _proxy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """HTTP or SOCKS, told by the first byte."""
        async with asyncio.timeout(HEAD_TIMEOUT_S):
            first = await reader.read(BUFFER_BYTES)
        if first[:1] == bytes((socks.VERSION,)):
            await self._socks(first, reader, writer)
        elif first:
            await self._http(first, reader, writer)

    async def _http(self, first: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        parser = http.HeadParser()
        try:
            request = parser.feed(first)
            async with asyncio.timeout(HEAD_TIMEOUT_S):
                while request is None:
                    data = await reader.read(BUFFER_BYTES)
                    if not data:
                        return
                    request = parser.feed(data)
        except http.BadRequest as error:
            self._gate.refuse("http", "", None, str(error))
            await _say(writer, "400 Bad Request", str(error))
            return
        via = "connect" if request.tunnel else "http"
        try:
            server = await self._gate.open(via, request.host, request.port)
        except Refused as error:
            await _say(writer, "403 Forbidden", f"{request.host} port {request.port}: {error}. {_WHO_DECIDES}")
            return
        except Unreachable as error:
            await _say(writer, "502 Bad Gateway", f"{request.host} port {request.port}: {error}")
            return
        try:
            if request.tunnel:
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                server[1].write(parser.rest)
                await relay((reader, writer), server)
            else:
                await _forward(self._gate, request, parser.rest, (reader, writer), server)
        finally:
            await shut(server[1])

    async def _socks(self, first: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        parser = socks.SocksParser()
        try:
            target = parser.feed(first)
            writer.write(parser.take_output())
            async with asyncio.timeout(HEAD_TIMEOUT_S):
                while target is None:
                    data = await reader.read(BUFFER_BYTES)
                    if not data:
                        return
                    target = parser.feed(data)
                    writer.write(parser.take_output())
        except socks.BadSocks as error:
            self._gate.refuse("socks5", "", None, str(error))
            writer.write(parser.take_output() + error.answer)
            return
        try:
            server = await self._gate.open("socks5", target.host, target.port)
        except Refused:
            writer.write(socks.reply(socks.NOT_ALLOWED))
            return
        except Unreachable as error:
            writer.write(socks.reply(socks.REFUSED if error.refused else socks.UNREACHABLE))
            return
        try:
            writer.write(socks.reply(socks.SUCCEEDED))
            server[1].write(parser.rest)
            await relay((reader, writer), server)
        finally:
            await shut(server[1])

    # --- programs that know no proxy ----------------------------------------------------------------------------------
    async def _transparent(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        address, port = writer.get_extra_info("sockname")[:2]
        meant = ipaddress.IPv4Address(address)
        host: Host | None = self._names.name_of(meant) if meant in STAND_INS else meant
        if host is None or meant.is_loopback:
            # Its own loopback is no way to the machine's.
            self._gate.refuse("transparent", address, port, "the address stands for no name")
            writer.transport.abort()
            return
        try:
            server = await self._gate.open("transparent", host, port)
        except (Refused, Unreachable):
            writer.transport.abort()
            return
        try:
            await relay((reader, writer), server)
        finally:
            await shut(server[1])

    def _answer(self, query: bytes) -> bytes:
        """Raises BadQuery."""
        answer: Answer = self._names.answer(query)
        name = answer.name or ""
        why = "the lists have the name" if answer.known else "the lists do not have the name; nothing was looked up"
        self._gate.note(Record("names", name, None, answer.known, why))
        return answer.packet

    def _names_by_udp(self, datagram: socket.socket) -> None:
        for _ in range(QUERIES_AT_ONCE):
            if not self._gate.turn_now():
                self._rest_from(datagram)
                return
            try:
                query, client = datagram.recvfrom(MAX_QUERY_BYTES)
                datagram.sendto(self._answer(query), client)
            except BadQuery:
                continue
            except OSError:
                return  # nothing more is there, or the answer has no receiver

    def _rest_from(self, datagram: socket.socket) -> None:
        """Queries wait in the socket, or are lost there as datagrams may be; their senders ask again."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(datagram.fileno())

        def go_on() -> None:
            if datagram.fileno() >= 0:
                loop.add_reader(datagram.fileno(), self._names_by_udp, datagram)

        loop.call_later(NAMES_REST_S, go_on)

    async def _names_by_tcp(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(HEAD_TIMEOUT_S):
            try:
                while True:
                    await self._gate.turn()
                    length = int.from_bytes(await reader.readexactly(2))
                    packet = self._answer(await reader.readexactly(length))
                    writer.write(len(packet).to_bytes(2) + packet)
                    await writer.drain()
            except (asyncio.IncompleteReadError, BadQuery):
                return


_WHO_DECIDES = "The operator decides which destinations this workspace may reach; a proxy setting changes nothing"


async def _say(writer: asyncio.StreamWriter, status: str, why: str) -> None:
    body = f"codespace egress proxy: {why}.\n".encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {len(body)}\r\n"
    writer.write(head.encode() + b"Connection: close\r\n\r\n" + body)
    await writer.drain()


async def _forward(gate: Gate, request: http.Request, rest: bytes, client: Streams, server: Streams) -> None:
    """One request, its body, then the answer until the server closes. What follows the body ends the connection: it
    would be a request that nobody judged."""
    server[1].write(request.head)
    meter = http.BodyMeter(request.body_bytes)
    try:
        async with asyncio.timeout(IDLE_TIMEOUT_S) as timeout:
            idle = Idle(timeout)
            async with asyncio.TaskGroup() as both:
                answering = both.create_task(copy(server[0], client[1], idle.moved))
                sending = both.create_task(_send_body(gate.share, meter, rest, client[0], server[1], idle.moved))
                answering.add_done_callback(lambda _: sending.cancel())
    except* http.ChunksTooSmall as errors:
        gate.refuse("http", str(request.host), request.port, str(errors.exceptions[0]))
    except* (OSError, http.BadRequest):
        pass  # one end is lost, or what the client sent on is no body


async def _send_body(
    share: Share,
    meter: http.BodyMeter,
    data: bytes,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    moved: Callable[[], None],
) -> None:
    while True:
        if data:
            if meter.over:
                raise ConnectionAbortedError("more than one request")
            if meter.chunked:
                # One connection of a workspace parses at a time, and a bounded part of what it holds.
                async with share.parsing:
                    taken = meter.feed(data)
                    await share.parsed(meter.lines)
            else:
                taken = meter.feed(data)
            writer.write(data[:taken])
            data = data[taken:]
            await writer.drain()
            moved()
            continue
        data = await reader.read(BUFFER_BYTES)
        if not data:
            if not meter.over:
                raise ConnectionAbortedError("the client went away")
            return
