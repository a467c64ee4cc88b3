"""The runner's end of the proxy: starts the process when it is first needed, hands commands over, counts decisions.

A proxy that died is started again for the next command; the commands it served have lost their network by then and
nothing else. One that is slow fails the start that waits for it and goes on serving the others; only one that said
nothing at all for long after it was asked is taken for dead. Whatever goes wrong is a ProxyFailed, and the command does
not start. Refuses to know protocols and to decide. Joined by `runner.__main__`, used by the sandbox's launcher.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from adapters.egress_proxy import wire
from runner.api import NetworkDecisions, WorkspaceTerms
from runner.ports import LaunchFailed

START_TIMEOUT_S = 20.0
SERVE_TIMEOUT_S = 10.0
SILENCE_S = 60.0
"""A proxy that lives answers each `serve` in the end; one that says nothing for this long after one serves nobody."""
END_GRACE_S = 2.0
_PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "__main__.py")


class ProxyFailed(LaunchFailed):
    """There is no proxy for the command, which therefore does not start; the text says why."""

    def __init__(self, message: str, errno: str = "ENETDOWN", remedy: str | None = None) -> None:
        remedy = remedy or "Start the command again, which starts the proxy again; the runner's log says what it said."
        super().__init__("network", errno, message, path="proxy", remedy=remedy)


def program() -> list[str]:
    """The proxy's command line: isolated from the environment and from installed packages."""
    return [sys.executable, "-I", "-S", "-B", "-X", "frozen_modules=on", "-X", "utf8", _PROGRAM]


class EgressProxy:
    """`names`: a resolver for tests, see `wire.Config`. `prefix`: a program to start it through. `stderr_fd`: where its
    decisions go, this process's standard error by default."""

    def __init__(
        self,
        *,
        names: Mapping[str, tuple[str, ...]] | None = None,
        prefix: Sequence[str] = (),
        stderr_fd: int | None = None,
    ) -> None:
        self._config = wire.Config(names)
        self._prefix, self._stderr_fd = tuple(prefix), stderr_fd
        self._running: _Running | None = None
        self._starting = asyncio.Lock()
        self._past: dict[tuple[str, str], int] = {}
        self._last_id = 0
        self._closed = False

    async def start(self) -> Mapping[str, str]:
        """Starts the process if none lives. What confines it, by name. Raises ProxyFailed."""
        return (await self._alive()).confinement

    async def serve(
        self, terms: WorkspaceTerms, process_id: str, pidfd: int, listeners: Sequence[tuple[str, int]]
    ) -> None:
        """Returns once the listening sockets of the command's network are served under the lists of its terms.

        `listeners`: (kind, descriptor), kinds as in `wire.KINDS`. `pidfd`: of the command; its end ends the service.
        All descriptors stay the caller's to close. Raises ProxyFailed.
        """
        fds = [pidfd, *(fd for _, fd in listeners)]
        self._last_id += 1
        serve = wire.Serve(
            self._last_id, terms.workspace_id, process_id, terms.network_allow, terms.network_deny,
            tuple(kind for kind, _ in listeners),
        )  # fmt: skip
        try:
            message = wire.serve_message(serve)
        except wire.WireError as error:
            raise ProxyFailed(f"the workspace's lists are too long for the proxy: {error}") from None
        running = await self._alive()
        try:
            await running.ask(serve.id, message, fds)
        except ProxyFailed:
            if not running.lost:
                raise
            # It died just now, and took its copies along; another gets them.
            await (await self._alive()).ask(serve.id, message, fds)

    @property
    def counts(self) -> Mapping[tuple[str, str], int]:
        """Decisions so far: (via, allowed or refused) to a number that never falls."""
        now = self._running.counts if self._running is not None else {}
        return {key: self._past.get(key, 0) + now.get(key, 0) for key in sorted({*self._past, *now})}

    def decisions(self) -> tuple[NetworkDecisions, ...]:
        """The counts as the runner tells them."""
        return tuple(
            NetworkDecisions.model_validate({"via": via, "decision": decision, "count": number})
            for (via, decision), number in self.counts.items()
        )

    @property
    def pid(self) -> int | None:
        """Of the living process, if there is one."""
        return self._running.pid if self._running is not None and not self._running.lost else None

    async def close(self) -> None:
        """Ends the process; commands lose their network. Idempotent."""
        self._closed = True
        async with self._starting:
            await self._bury()

    async def _alive(self) -> _Running:
        async with self._starting:
            if self._closed:
                raise ProxyFailed("the runner is shutting down")
            if self._running is None or self._running.lost:
                await self._bury()
                self._running = await _Running.start((*self._prefix, *program()), self._config, self._stderr_fd)
            return self._running

    async def _bury(self) -> None:
        running, self._running = self._running, None
        if running is None:
            return
        await running.end()
        for key, number in running.counts.items():
            self._past[key] = self._past.get(key, 0) + number


class _Running:
    """One process and its socket."""

    def __init__(self, process: asyncio.subprocess.Process, connection: socket.socket) -> None:
        self._process, self._socket = process, connection
        self._answers: dict[int, asyncio.Future[None]] = {}
        self._unanswered: set[int] = set()
        self._silence: asyncio.TimerHandle | None = None
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._send_turn = asyncio.Lock()
        self.confinement: Mapping[str, str] = {}
        self.counts: dict[tuple[str, str], int] = {}
        self.pid = process.pid
        self.lost = False
        asyncio.get_running_loop().add_reader(connection.fileno(), self._on_readable)

    @classmethod
    async def start(cls, command: Sequence[str], config: wire.Config, stderr_fd: int | None) -> _Running:
        """Raises ProxyFailed."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        try:
            for end in (ours, theirs):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, wire.MAX_MESSAGE_BYTES)
            ours.send(wire.config_message(config))
            process = await asyncio.create_subprocess_exec(
                *command,
                str(theirs.fileno()),
                str(os.getpid()),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=stderr_fd,
                env={},
                cwd="/",
                start_new_session=True,
                pass_fds=(theirs.fileno(),),
            )
        except (OSError, wire.WireError) as error:
            ours.close()
            raise ProxyFailed(f"the egress proxy did not start: {error}") from error
        finally:
            theirs.close()
        running = cls(process, ours)
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                await running._ready
        except TimeoutError:
            await running.end()
            raise ProxyFailed(f"the egress proxy said nothing in {START_TIMEOUT_S:.0f} s") from None
        except BaseException:
            await running.end()
            raise
        return running

    async def ask(self, number: int, message: bytes, fds: Sequence[int]) -> None:
        """Raises ProxyFailed; one that says EAGAIN leaves the proxy to those it serves."""
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        try:
            async with asyncio.timeout(SERVE_TIMEOUT_S):
                await self._send(message, fds)
                self._unanswered.add(number)
                self._listen()
                await answer
        except TimeoutError:
            # Slow, or dead: its silence tells later. If it answers yet, it finds that the command has ended.
            raise ProxyFailed(
                f"the egress proxy did not answer in {SERVE_TIMEOUT_S:.0f} s",
                "EAGAIN",
                "Start the command again; commands that run keep their network.",
            ) from None
        finally:
            self._answers.pop(number, None)

    def _listen(self) -> None:
        """While a `serve` is unanswered, whether anybody still waits or not; each word begins it anew."""
        if self._silence is None and self._unanswered:
            self._silence = asyncio.get_running_loop().call_later(SILENCE_S, self._on_silence)

    def _on_silence(self) -> None:
        fired = self._silence
        self._on_readable()  # what came while this process itself was late counts
        if self._silence is fired:
            self._lose(f"the egress proxy said nothing for {SILENCE_S:.0f} s")

    def _end_silence(self) -> None:
        silence, self._silence = self._silence, None
        if silence is not None:
            silence.cancel()

    async def _send(self, message: bytes, fds: Sequence[int]) -> None:
        async with self._send_turn:
            while True:
                if self.lost:
                    raise ProxyFailed("the egress proxy is gone")
                try:
                    socket.send_fds(self._socket, [message], list(fds))
                except BlockingIOError:
                    await self._writable()
                except OSError as error:
                    self._lose(f"the egress proxy is gone: {error}")
                else:
                    return

    async def _writable(self) -> None:
        loop, event, fd = asyncio.get_running_loop(), asyncio.Event(), self._socket.fileno()
        loop.add_writer(fd, event.set)
        try:
            await event.wait()
        finally:
            loop.remove_writer(fd)

    def _on_readable(self) -> None:
        while not self.lost:
            try:
                message = self._socket.recv(wire.MAX_MESSAGE_BYTES)
            except BlockingIOError:
                return
            except OSError as error:
                self._lose(f"the egress proxy is gone: {error}")
                return
            if not message:
                self._lose("the egress proxy ended")
                return
            self._end_silence()
            try:
                self._take(*wire.decode(message))
            except (wire.WireError, ValueError, TypeError, KeyError, AttributeError) as error:
                self._lose(f"the egress proxy makes no sense: {error}")
            else:
                if not self.lost:
                    self._listen()

    def _take(self, what: str, value: Any) -> None:
        if what == "hello" and not self._ready.done():
            if value["version"] != wire.VERSION:
                raise wire.WireError("it speaks another version")
            self.confinement = dict(value["confinement"])
            self._ready.set_result(None)
        elif what == "failed":
            self._lose(f"the egress proxy did not start: {value}")
        elif what == "counts":
            self.counts = {(via, decision): int(number) for via, decision, number in value}
        elif what in ("serving", "refused"):
            self._unanswered.discard(value["id"])
            answer = self._answers.get(value["id"])
            if answer is None or answer.done():
                return
            if what == "serving":
                answer.set_result(None)
            else:
                answer.set_exception(ProxyFailed(f"the egress proxy refused: {value['message']}"))
        else:
            raise wire.WireError(f"unknown message {what}")

    def _lose(self, why: str) -> None:
        if self.lost:
            return
        self.lost = True
        self._end_silence()
        asyncio.get_running_loop().remove_reader(self._socket.fileno())
        for waiting in (self._ready, *self._answers.values()):
            if not waiting.done():
                waiting.set_exception(ProxyFailed(why))
                # Whoever waits gets it; nobody else has to.
                waiting.exception()

    async def end(self) -> None:
        """End of the socket, then SIGKILL after a grace; returns once it is reaped. Idempotent."""
        self._lose("the egress proxy was ended")
        self._socket.close()
        try:
            async with asyncio.timeout(END_GRACE_S):
                await self._process.wait()
        except TimeoutError:
            if self._process.returncode is None:
                self._process.kill()
            await self._process.wait()
