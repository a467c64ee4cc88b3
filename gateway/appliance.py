"""The running appliance: brings the parts up in order, waits for a signal, takes them down in order.

`serve` and `stdio` are the two shapes of it. What speaks MCP and HTTP takes longer to load than the runner takes to
start, so it is loaded meanwhile, in a thread, and nothing of it is imported with this module. Refuses to know: how the
parts are made (`gateway.__main__` joins them), what they answer. Shutting down is bounded, 5 s for all of it: first
nothing new is let in, then everything that runs is ended, then what is still being answered gets its answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import AsyncIterator, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from structlog.typing import FilteringBoundLogger

from gateway.application import Application
from gateway.errors import OperatorError
from gateway.http.door import LOCAL_HOSTS, Door, HostNames
from gateway.http.limits import Deadlines, Shares, present_shares
from gateway.http.listen import UnixListener, bind_tcp, bind_unix
from gateway.metrics import Metrics
from gateway.standard_streams import take_standard_streams

if TYPE_CHECKING:
    from gateway.http.app import HttpApp
    from gateway.http.server import HttpServer
    from gateway.mcp.server import ToolServer

CLOSE_S = 4.0
"""Bound of the application's own shutdown."""
ANSWER_GRACE_S = 0.5
"""What answers get once everything that runs has ended: they have nothing left to wait for."""


@dataclass(frozen=True)
class Endpoints:
    """Bound and listening sockets, and who may use them.

    `token`: for TCP alone; on the Unix socket the peer's uid counts. `hosts`: names under which the server is called.
    """

    unix: UnixListener
    tcp: tuple[socket.socket, ...]
    token: str | None
    allow_uids: frozenset[int]
    hosts: HostNames


@contextlib.contextmanager
def open_endpoints(
    path: Path, http: str | None, token: str | None, allow_uids: frozenset[int], allow_hosts: Collection[str]
) -> Iterator[Endpoints]:
    """Binds before anything else is started, since a taken socket is the likeliest refusal. Blocks; raises
    `OperatorError`. `http`: HOST:PORT."""
    with contextlib.ExitStack() as bound:
        unix = bind_unix(path, allow_uids)
        bound.callback(unix.close)
        tcp = () if http is None else tuple(bind_tcp(http, has_token=token is not None))
        for sock in tcp:
            bound.callback(sock.close)
        hosts = HostNames([*LOCAL_HOSTS, *_host_of(http), *allow_hosts])
        yield Endpoints(unix, tcp, token, allow_uids, hosts)


class Appliance:
    """One use: `serve` or `stdio`, once. Both raise `OperatorError` where a part does not come up."""

    def __init__(
        self,
        application: Application,
        *,
        version: str,
        metrics: Metrics,
        log: FilteringBoundLogger,
        shares: Shares | None = None,
        deadlines: Deadlines | None = None,
    ) -> None:
        """`shares`: of connections, or None for what the limit on open files allows when it serves."""
        self._application = application
        self._version = version
        self._metrics = metrics
        self._log = log
        self._shares = shares
        self._deadlines = deadlines
        self._stop = asyncio.Event()
        self.serving = asyncio.Event()
        """Set once requests are answered."""
        self._reloads: set[asyncio.Task[None]] = set()
        self._reload_turn = asyncio.Lock()
        self._http: HttpApp | None = None
        self._front: HttpServer | None = None

    def stop(self) -> None:
        """As SIGTERM does. Idempotent."""
        self._stop.set()

    async def serve(self, endpoints: Endpoints) -> None:
        """MCP over HTTP until SIGTERM or SIGINT. SIGHUP reloads the registry."""
        unix, tcp = endpoints.unix, endpoints.tcp
        with self._signals():
            async with self._application_running():
                server = await self._start(["unix", "tcp"] if tcp else ["unix"], local_peer="unknown")
                if server is None:
                    return
                from gateway.http.app import HttpApp
                from gateway.http.server import HttpServer, PeerRule

                shares = self._shares
                if shares is None:
                    shares = await asyncio.to_thread(present_shares)
                    self._log.debug("connection_shares", unix=shares.unix, tcp=shares.tcp)
                http = self._http = HttpApp(self._application, server, self._metrics, self._version, self._log)
                front = self._front = HttpServer(shares, self._metrics, self._log, self._deadlines)
                async with http.running():
                    door = Door(http, hosts=endpoints.hosts, token=None, metrics=self._metrics, log=self._log)
                    await front.serve_unix(unix.sock, door, PeerRule(endpoints.allow_uids, self._metrics, self._log))
                    for sock in tcp:
                        guarded = Door(
                            http, hosts=endpoints.hosts, token=endpoints.token, metrics=self._metrics, log=self._log
                        )
                        await front.serve_tcp(sock, guarded)
                    addresses = ["{}:{}".format(*sock.getsockname()[:2]) for sock in tcp]
                    self._log.info("ready", socket=str(unix.path), http=addresses, pid=os.getpid())
                    self.serving.set()
                    try:
                        await self._stop.wait()
                        self._log.info("shutting_down")
                        front.stop_accepting()
                        await asyncio.to_thread(unix.close)
                        await self._close_application()
                    finally:
                        await front.close(ANSWER_GRACE_S)
        self._log.info("stopped")

    async def stdio(self) -> None:
        """MCP on standard input and output until the input ends, or SIGTERM or SIGINT."""
        with self._signals():
            read_fd, write_fd = take_standard_streams()
            async with self._application_running():
                server = await self._start(["stdio"], local_peer=f"stdio:uid={os.getuid()}")
                if server is None:
                    return
                from gateway.mcp.stdio import LineWire, serve_lines

                wire = LineWire(read_fd, write_fd)
                serving = asyncio.ensure_future(serve_lines(server.sdk, wire))
                stopping = asyncio.ensure_future(self._stop.wait())
                self._log.info("ready", stdio=True, pid=os.getpid())
                self.serving.set()
                try:
                    await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    serving.cancel()
                    stopping.cancel()
                    await asyncio.wait((serving, stopping))
                    wire.close()
                if not serving.cancelled() and (error := serving.exception()) is not None:
                    raise error
        self._log.info("stopped")

    async def _start(self, transports: list[str], *, local_peer: str) -> ToolServer | None:
        """None where a signal came first."""
        starting = asyncio.ensure_future(self._application.start())
        loading = asyncio.ensure_future(asyncio.to_thread(_load))
        stopping = asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            starting.cancel()
            await asyncio.wait((starting, stopping, loading))
        if starting.cancelled() or self._stop.is_set():
            return None
        starting.result()
        loading.result()
        from gateway.mcp.catalogue import listed
        from gateway.mcp.server import ToolServer

        tools = listed(self._application.available_tools())
        self._application.set_exposure(tools=[tool.name for tool in tools], transports=transports)
        return ToolServer(
            self._application,
            tools,
            version=self._version,
            metrics=self._metrics,
            log=self._log,
            local_peer=local_peer,
        )

    @contextlib.asynccontextmanager
    async def _application_running(self) -> AsyncIterator[None]:
        """Closes it however the body ends; a start that failed half-way included."""
        try:
            yield
        finally:
            await self._close_application()

    async def _close_application(self) -> None:
        for task in self._reloads:
            task.cancel()
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._application.close()
        except TimeoutError:
            # Going on ends this process, and with it the worker and every namespace below it.
            self._log.error("close_overdue", waited_s=CLOSE_S)

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        loop.add_signal_handler(signal.SIGHUP, self._begin_reload)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                loop.remove_signal_handler(number)

    def _begin_reload(self) -> None:
        if self._stop.is_set():
            return
        task = asyncio.ensure_future(self._reload())
        self._reloads.add(task)
        task.add_done_callback(self._reloads.discard)

    async def _reload(self) -> None:
        async with self._reload_turn:
            try:
                await self._application.reload()
            except OperatorError as error:
                self._log.error("reload_refused", problem=str(error))
            except Exception:  # noqa: BLE001 - nobody waits for this task, so it is said here or nowhere
                self._log.exception("reload_failed")
            else:
                self._log.info("reloaded")


def _load() -> None:
    """What the rest of the start needs. Blocks for as long as everything before it took together."""
    import gateway.http.app
    import gateway.http.server
    import gateway.mcp.stdio  # noqa: F401
    from gateway.mcp.catalogue import ALL_TOOLS
    from gateway.mcp.server import described

    for tool in ALL_TOOLS:
        described(tool)


def _host_of(http: str | None) -> list[str]:
    """The name the operator listens on is one the server may be called by; a wildcard address is no name."""
    host = "" if http is None else http.rpartition(":")[0]
    return [host] if host not in ("", "0.0.0.0", "[::]") else []
