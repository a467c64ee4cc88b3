"""The runner's end of the helper: starts the program, sends requests, matches replies; asyncio or uvloop alike.

A helper is used until it dies; then every request without a reply is `HelperGone`, and the owner starts another. It
must be started on a thread that lives as long as the runner, since the children die with that thread (their parent).
Refuses to know plans' contents. Called by the launcher.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from sandbox_helper import protocol
from sandbox_helper.protocol import Failure, Plan, ProtocolError, Run, Standing

START_TIMEOUT_S = 20.0
REPLY_TIMEOUT_S = 20.0
"""Far beyond what a reply takes on a busy machine. A helper that owes one longer is stopped or stuck, and replaced."""
_SOCKET_FD, _LIVENESS_FD = 3, 4


class HelperGone(Exception):
    """The helper ended, or said nothing sensible. `failure`: what it said of its own start."""

    def __init__(self, message: str, failure: Failure | None = None) -> None:
        super().__init__(message)
        self.failure = failure


@dataclass(frozen=True)
class Started:
    """A managed child of the runner's. `pidfd` is the receiver's to close. `stands_on`: of one that waits."""

    pid: int
    pidfd: int
    stands_on: tuple[Standing, ...] = ()


def program() -> list[str]:
    """The helper's command line up to its verb: the real interpreter, isolated, with nothing of the environment.

    An installation may hold a copy of the interpreter for the helper alone, so that an AppArmor profile can give it,
    and no other Python program, the permission to make user namespaces.
    """
    interpreter = os.path.join(sys.prefix, "libexec", "sandbox-python")
    if not os.access(interpreter, os.X_OK):
        interpreter = getattr(sys, "_base_executable", None) or sys.executable
    main = os.path.join(os.path.dirname(os.path.abspath(protocol.__file__)), "__main__.py")
    return [interpreter, "-I", "-S", "-E", "-X", "frozen_modules=on", main]


def library() -> str:
    """The directory of python-prctl."""
    spec = find_spec("prctl")
    if spec is None or spec.origin is None:
        raise HelperGone("python-prctl is not installed; install the project's dependencies")
    return os.path.dirname(spec.origin)


class HelperClient:
    """One helper process. `start` once, then `run` from one event loop."""

    def __init__(self, mode: str, liveness_fd: int | None, options: Sequence[str] = (), prefix: Sequence[str] = ()):
        self._mode, self._liveness_fd = mode, liveness_fd
        self._options, self._prefix = tuple(options), tuple(prefix)
        self._socket: socket.socket | None = None
        self._pending: dict[int, asyncio.Future[tuple[dict[str, Any], int | None]]] = {}
        self._known_plans: set[str] = set()
        self._next_id = 0
        self._hello: asyncio.Future[dict[str, Any]] | None = None
        self._writable: asyncio.Future[None] | None = None
        self._send_turn = asyncio.Lock()
        self._child: int | None = None
        self.session = 0
        """What its children's session is called: its pid, also once it is dead and reaped."""
        self.gone = asyncio.Event()
        self.on_gone: Callable[[], None] | None = None
        """Called once, with `gone` set."""

    @property
    def pid(self) -> int:
        """Raises HelperGone where it does not run or is reaped: whoever asks may signal it, and no number would be a
        safe answer (kill(-1, …) is every process there is)."""
        if self._child is None:
            raise HelperGone("the sandbox helper is reaped, or was never started")
        return self._child

    async def start(self) -> None:
        """Raises HelperGone with what failed."""
        loop = asyncio.get_running_loop()
        arguments = await asyncio.to_thread(self._arguments)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            for end in (ours, theirs):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, protocol.MAX_MESSAGE_BYTES)
            ours.setblocking(False)
            self._child = self.session = self._spawn(arguments, theirs.fileno())
        except OSError as error:
            ours.close()
            raise HelperGone(f"the sandbox helper did not start: {error}") from error
        finally:
            theirs.close()
        self._socket = ours
        self._hello = loop.create_future()
        loop.add_reader(ours.fileno(), self._on_readable)
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                hello = await self._hello
        except TimeoutError:
            await self.close()
            raise HelperGone(f"the sandbox helper said nothing in {START_TIMEOUT_S:.0f} s") from None
        except HelperGone:
            await self.close()
            raise
        if "failed" in hello:
            await self.close()
            failure = protocol.parse_failure(hello["failed"])
            raise HelperGone(f"the sandbox helper could not set itself up: {failure.message}", failure)
        if hello != {"hello": protocol.VERSION, "mode": self._mode}:
            await self.close()
            raise HelperGone("the sandbox helper speaks another protocol; install matching versions")

    def _arguments(self) -> list[str]:
        """Looks for files. Raises HelperGone."""
        arguments = [*self._prefix, *program(), "serve", "--fd", str(_SOCKET_FD), "--mode", self._mode]
        arguments += ["--library", library(), *self._options]
        if self._liveness_fd is not None:
            arguments += ["--liveness-fd", str(_LIVENESS_FD)]
        return arguments

    def _spawn(self, arguments: list[str], socket_fd: int) -> int:
        # Lifted out of the way first: the targets may be taken, and dup2 onto itself may keep close-on-exec.
        actions: list[tuple[Any, ...]] = [(os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0)]
        actions.append((os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0))
        lifted_liveness = -1
        if self._liveness_fd is not None:
            lifted_liveness = _lift(self._liveness_fd)
            actions.append((os.POSIX_SPAWN_DUP2, lifted_liveness, _LIVENESS_FD))
        lifted_socket = _lift(socket_fd)
        actions.append((os.POSIX_SPAWN_DUP2, lifted_socket, _SOCKET_FD))
        try:
            return os.posix_spawn(
                arguments[0], arguments, {}, file_actions=actions, setsid=True, setsigmask=(),
                setsigdef=[s for s in signal.valid_signals() if s not in (signal.SIGKILL, signal.SIGSTOP)],
            )  # fmt: skip
        finally:
            os.close(lifted_socket)
            if lifted_liveness >= 0:
                os.close(lifted_liveness)

    # --- requests -------------------------------------------------------------------------------------------------
    async def run(self, plan: Plan, plan_id: str, run: Run, descriptors: Sequence[int]) -> Started | Failure:
        """A started child, or why none was made. Raises HelperGone where that cannot be known, ProtocolError for a
        request that the helper refuses to read (nothing ran)."""
        for _ in range(2):
            if plan_id not in self._known_plans:
                await self._ask(lambda number: protocol.plan_request(number, plan_id, plan), ())
                self._known_plans.add(plan_id)
            reply, pidfd = await self._ask(
                lambda number: protocol.run_request(run._replace(id=number, plan_id=plan_id)), descriptors
            )
            if "unknown_plan" in reply:
                self._known_plans.discard(plan_id)
                continue
            if "failed" in reply:
                return protocol.parse_failure(reply["failed"])
            if pidfd is None or not isinstance(reply.get("pid"), int):
                raise HelperGone("the sandbox helper answered without a process")
            stands_on = protocol.parse_standing(reply["stands_on"]) if run.waits else ()
            return Started(reply["pid"], pidfd, stands_on)
        raise HelperGone("the sandbox helper forgets the plan it was just given")

    async def adopt(self, pidfds: Sequence[int]) -> None:
        """Hands over children that an earlier helper made. Raises HelperGone."""
        for at in range(0, len(pidfds), protocol.MAX_ADOPTED):
            await self._ask(protocol.adopt_request, pidfds[at : at + protocol.MAX_ADOPTED])

    async def _ask(self, make: Any, descriptors: Sequence[int]) -> tuple[dict[str, Any], int | None]:
        self._next_id += 1
        number = self._next_id
        message: bytes = make(number)
        if self._socket is None:
            raise HelperGone("the sandbox helper is gone")
        future: asyncio.Future[tuple[dict[str, Any], int | None]] = asyncio.get_running_loop().create_future()
        self._pending[number] = future
        try:
            async with asyncio.timeout(REPLY_TIMEOUT_S):
                await self._send(message, descriptors)
                return await future
        except TimeoutError:
            await self.kill()
            raise HelperGone(f"the sandbox helper did not answer in {REPLY_TIMEOUT_S:.0f} s and was killed") from None
        finally:
            self._pending.pop(number, None)

    async def _send(self, message: bytes, descriptors: Sequence[int]) -> None:
        async with self._send_turn:
            while True:
                if self._socket is None:
                    raise HelperGone("the sandbox helper is gone")
                try:
                    if descriptors:
                        socket.send_fds(self._socket, [message], list(descriptors))
                    else:
                        self._socket.send(message)
                except BlockingIOError:
                    await self._until_writable()
                except OSError as error:
                    self._lost()
                    raise HelperGone(f"the sandbox helper is gone: {error}") from error
                else:
                    return

    async def _until_writable(self) -> None:
        if self._socket is None:
            return
        loop, fd = asyncio.get_running_loop(), self._socket.fileno()
        self._writable = writable = loop.create_future()
        loop.add_writer(fd, _settle, writable)
        try:
            await writable
        finally:
            self._writable = None
            if self._socket is not None:
                loop.remove_writer(fd)

    # --- replies ----------------------------------------------------------------------------------------------------
    def _on_readable(self) -> None:
        while self._socket is not None:
            try:
                message, ancillary, _, _ = self._socket.recvmsg(
                    protocol.MAX_MESSAGE_BYTES, socket.CMSG_SPACE(4), socket.MSG_CMSG_CLOEXEC
                )
            except BlockingIOError:
                return
            except OSError:
                message, ancillary = b"", []
            if not message:
                self._lost()
                return
            self._take(message, _one_descriptor(ancillary))

    def _take(self, message: bytes, fd: int | None) -> None:
        try:
            reply = protocol.parse_object(message, "reply")
            if "protocol_error" in reply:
                raise ProtocolError("reply", str(reply["protocol_error"]))
        except ProtocolError:
            self._lost()
            return
        future = self._pending.get(reply.get("id", -1))
        if self._hello is not None and not self._hello.done():
            self._hello.set_result(reply)
        elif future is not None and not future.done():
            future.set_result((reply, fd))
        elif fd is not None:
            _kill_and_close(fd)

    def _lost(self) -> None:
        if self._socket is None:
            return
        asyncio.get_running_loop().remove_reader(self._socket.fileno())
        if self._writable is not None:
            asyncio.get_running_loop().remove_writer(self._socket.fileno())
            if not self._writable.done():
                self._writable.set_result(None)
        self._socket.close()
        self._socket = None
        for future in self._pending.values():
            if not future.done():
                future.set_exception(HelperGone("the sandbox helper ended"))
        if self._hello is not None and not self._hello.done():
            self._hello.set_exception(HelperGone("the sandbox helper ended before it was ready"))
        self.gone.set()
        if self.on_gone is not None:
            self.on_gone()

    async def kill(self) -> None:
        """Returns once the helper is dead: it makes no child any more, and holds no descriptor. It is reaped by
        `close`, so that its pid names its session until then."""
        if self._child is not None:
            try:
                os.kill(self._child, signal.SIGKILL)
                await asyncio.to_thread(os.waitid, os.P_PID, self._child, os.WEXITED | os.WNOWAIT)
            except (ProcessLookupError, ChildProcessError):
                pass  # reaped already
        self._lost()

    async def close(self) -> None:
        """Ends and reaps the helper; its children live on. Idempotent."""
        self._lost()
        child, self._child = self._child, None
        if child is not None:
            await reap(child)


async def reap(pid: int) -> None:
    """Kills and reaps a child of this process, without blocking the loop."""
    if pid <= 0:
        raise ValueError(f"{pid} is no process but a group of them")
    try:
        os.kill(pid, signal.SIGKILL)
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        await readable(pidfd)
        _wait(pidfd)
    except ChildProcessError:
        pass
    finally:
        os.close(pidfd)


async def reap_pidfd(pidfd: int, *, kill: bool) -> None:
    """Reaps a child by its pidfd, which is closed."""
    try:
        await end_child(pidfd, kill=kill)
    finally:
        os.close(pidfd)


async def end_child(pidfd: int, *, kill: bool = True) -> None:
    """Reaps a child by its pidfd, which stays open. Idempotent."""
    try:
        if kill:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        await readable(pidfd)
        _wait(pidfd)
    except (ChildProcessError, ProcessLookupError):
        pass


def _wait(pidfd: int) -> None:
    """At once, since the pidfd said that the child is over."""
    os.waitid(os.P_PIDFD, pidfd, os.WEXITED)


async def readable(fd: int) -> None:
    """Until `fd` is readable. Safe to cancel."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()
    loop.add_reader(fd, _settle, future)
    try:
        await future
    finally:
        loop.remove_reader(fd)


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _lift(fd: int) -> int:
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10)


def _one_descriptor(ancillary: list[tuple[int, int, bytes]]) -> int | None:
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS and len(data) >= 4:
            return int.from_bytes(data[:4], sys.byteorder)
    return None


def _kill_and_close(pidfd: int) -> None:
    """A child nobody waits for any more."""
    try:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    except ProcessLookupError:
        pass
    os.close(pidfd)
