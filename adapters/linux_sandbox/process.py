"""A started command as the runner holds it: pidfd, pipes, the end of PID 1 and of the command.

The runner is the parent of PID 1; it is reaped here and nowhere else. Refuses to know output rings and deadlines.
Made by the launcher, used by the runner's process table.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import struct
import termios
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Literal

from adapters.linux_sandbox.cgroups import Leaf, Struck
from adapters.linux_sandbox.cover_watch import CoverWatch
from runner.api import Isolation
from runner.ports import ManagedExit
from sandbox_helper.protocol import Plan, ProtocolError, parse_command_end

_TIOCGPTPEER = 0x5441
_SIGXCPU, _SIGXFSZ = signal.SIGXCPU, signal.SIGXFSZ
STATUS_BYTES = 4096


@dataclass
class Channels:
    """Descriptors of the runner's: `status` (read), `control` (write), `output` (read), `stdin` (write; the output's
    with a terminal). Non-blocking, all of them. `said`: what was read of `status` already."""

    status: int
    control: int
    output: int
    stdin: int
    terminal: bool
    said: bytes = b""

    def close(self) -> None:
        """All of them. Once."""
        for fd in {self.status, self.control, self.output, self.stdin}:
            os.close(fd)


class SandboxedProcess:
    """Implements `runner.ports.ManagedProcess`. `ended`: awaited once PID 1 is reaped, before `wait` returns. `leaf`:
    the command's control group, closed then."""

    def __init__(
        self,
        pid: int,
        pidfd: int,
        channels: Channels,
        isolation: Isolation,
        plan: Plan,
        ended: Callable[[], Awaitable[None]],
        leaf: Leaf | None = None,
    ) -> None:
        self.pid = pid
        self.isolation = isolation
        self.output_fd = channels.output
        self.stdin_fd: int | None = channels.stdin
        self.pidfd = pidfd
        self._channels = channels
        self._limits = plan.limits
        self.helper_mode = plan.mode
        self._ended = ended
        self._leaf = leaf
        self._covers: CoverWatch | None = None
        self._note: str | None = None
        self._closed = False
        self._ending: asyncio.Task[None] | None = None
        self._exit: asyncio.Future[ManagedExit] = asyncio.get_running_loop().create_future()
        # Held so that reading the master never ends while the command merely closed its terminal for a while.
        self._slave = _open_slave(channels.output) if channels.terminal else -1
        try:
            asyncio.get_running_loop().add_reader(pidfd, self._on_end)
        except BaseException:
            if self._slave >= 0:
                os.close(self._slave)
            raise

    def watch_covers(self, watch: CoverWatch) -> None:
        """Ends the command as soon as a protected name has lost its cover; its end says why."""
        self._covers = watch
        watch.start(self._on_lost_cover)

    def _on_lost_cover(self, note: str) -> None:
        if not self._exit.done():
            self._note = note
            self.kill()

    def _on_end(self) -> None:
        asyncio.get_running_loop().remove_reader(self.pidfd)
        try:
            result = os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED)
        except ChildProcessError:  # reaped by somebody else: its end is known, its status is not
            result = None
        if self._slave >= 0:
            os.close(self._slave)
            self._slave = -1
        self._ending = asyncio.get_running_loop().create_task(self._finish(self._interpret(result)))

    async def _finish(self, ended: ManagedExit) -> None:
        try:
            if self._covers is not None:
                await self._covers.stop()
            if self._leaf is not None:
                ended = attributed(ended, await asyncio.to_thread(self._leaf.close))
            await self._ended()
        finally:
            if not self._exit.done():
                self._exit.set_result(replace(ended, note=self._note) if self._note else ended)

    def _interpret(self, result: os.waitid_result | None) -> ManagedExit:
        code, number = None, None
        if result is not None and result.si_code == os.CLD_EXITED:
            code = result.si_status
        elif result is not None:
            number = result.si_status
        try:
            end = parse_command_end(self._channels.said + self._read_status())
        except (OSError, ProtocolError):
            if result is None:
                return ManagedExit(None, None, note="its status was taken by another wait")
            # Killed, it could say nothing. Ended by itself without a word, its own status says nothing of the command.
            return ManagedExit(None, number, note=None if code is None else "PID 1 did not say how the command ended")
        said = end.code if end.signal is None else 128 + end.signal
        if code is not None and code != said:
            return ManagedExit(None, None, note=f"PID 1 ended with {code} and said {said} of the command")
        limit: Literal["cpu_s", "file_size_mb"] | None = None
        if end.signal == _SIGXFSZ:
            limit = "file_size_mb"
        elif end.signal == _SIGXCPU or (end.signal == signal.SIGKILL and 0 < self._limits.cpu_s * 1000 <= end.cpu_ms):
            limit = "cpu_s"
        name = None if end.signal is None else _signal_name(end.signal)
        return ManagedExit(code, number, end.code, name, limit)

    def _read_status(self) -> bytes:
        try:
            return os.read(self._channels.status, STATUS_BYTES)
        except BlockingIOError:
            return b""

    async def wait(self) -> ManagedExit:
        """See the port."""
        return await asyncio.shield(self._exit)

    def signal_tree(self, signum: signal.Signals) -> None:
        """A stopped process takes a signal only once it goes on, so CONT follows TERM, INT and HUP."""
        numbers = [signum]
        if signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            numbers.append(signal.SIGCONT)
        if self._closed or self._exit.done():
            return
        try:
            os.write(self._channels.control, bytes(numbers))
        except (BrokenPipeError, BlockingIOError):
            pass  # over, or PID 1 has 64 KiB of signals to pass on already

    def kill(self) -> None:
        """See the port."""
        if self._closed or self._exit.done():
            return
        try:
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def resize(self, rows: int, cols: int) -> None:
        """See the port. Raises OSError where the process has no terminal."""
        fcntl.ioctl(self.output_fd, termios.TIOCSWINSZ, struct.pack("4H", rows, cols, 0, 0))

    def close_stdin(self) -> None:
        """See the port. A terminal's master stays open: it is the output as well."""
        fd, self.stdin_fd = self.stdin_fd, None
        if fd is not None and not self._channels.terminal:
            os.close(fd)

    def close(self) -> None:
        """See the port. Before the end it kills: a pid without a holder would never be reaped."""
        if self._closed:
            return
        if not self._exit.done():
            self.kill()
            raise RuntimeError("a running process was closed; wait for it first")
        self._closed = True
        self.close_stdin()
        for fd in (self.pidfd, self._channels.status, self._channels.control, self._channels.output):
            os.close(fd)


def attributed(ended: ManagedExit, struck: frozenset[Struck]) -> ManagedExit:
    """Names the limit of the command's group that ended it: a kill for want of memory, or a failure after processes
    were refused. One that was met and survived ended nothing."""
    if ended.limit is not None:
        return ended
    killed = ended.signal == signal.SIGKILL or ended.command_signal == "SIGKILL"
    if "memory_mb" in struck and killed:
        # The whole group was killed, so that PID 1 could not tell of the command any more.
        return replace(ended, command_signal="SIGKILL", command_code=None, limit="memory_mb")
    if "processes" in struck and ended.command_code != 0:
        return replace(ended, limit="processes")
    return ended


def _open_slave(master: int) -> int:
    """By ioctl: the terminal's name means nothing outside its mount namespace."""
    return fcntl.ioctl(master, _TIOCGPTPEER, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIGRTMIN+{number - signal.SIGRTMIN}"
