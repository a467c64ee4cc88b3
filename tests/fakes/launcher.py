"""Launchers without a sandbox: real child processes, pipes and terminals, none of the namespaces.

`FakeLauncher` starts commands for real and can be told how the next launch fails. `FakeManaged` gives the promises of
`runner.ports.ManagedProcess` as far as a process group can.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import signal
import struct
import subprocess
import termios
from collections.abc import Awaitable, Callable, Sequence

from runner.api import Isolation, IsolationReport, Protection, WorkspaceTerms
from runner.ports import LaunchFailed, LaunchRequest, ManagedExit, ManagedProcess

ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/tmp", "TERM": "xterm"}


class FakeManaged:
    """A child in a session of its own; its group stands in for the namespace."""

    def __init__(self, child: subprocess.Popen[bytes], stdin_fd: int | None, output_fd: int, tty: bool) -> None:
        self.pid = child.pid
        self.isolation = Isolation(command_sandbox="none", network="none", protections={})
        self.stdin_fd: int | None = stdin_fd
        self.output_fd = output_fd
        self._child, self._tty = child, tty
        self._over = asyncio.Event()
        self._exit: ManagedExit | None = None
        self._pidfd = os.pidfd_open(child.pid)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._pidfd, self._on_exit)

    def _on_exit(self) -> None:
        self._loop.remove_reader(self._pidfd)
        self._kill_group()
        code = self._child.wait()
        os.close(self._pidfd)
        if code < 0:
            self._exit = ManagedExit(exit_code=128 - code, signal=None, command_signal=signal.Signals(-code).name)
        else:
            self._exit = ManagedExit(exit_code=code, signal=None, command_code=code)
        self._over.set()

    async def wait(self) -> ManagedExit:
        await self._over.wait()
        assert self._exit is not None
        return self._exit

    def signal_tree(self, signum: signal.Signals) -> None:
        if not self._over.is_set():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signum)

    def kill(self) -> None:
        self.signal_tree(signal.SIGKILL)

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def resize(self, rows: int, cols: int) -> None:
        fcntl.ioctl(self.output_fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))

    def close_stdin(self) -> None:
        if self.stdin_fd is not None and not self._tty:
            os.close(self.stdin_fd)
            self.stdin_fd = None

    def close(self) -> None:
        self.close_stdin()
        os.close(self.output_fd)


class FakeLauncher:
    """`before`: awaited at the start of each launch, so that a test can hold or fail it. `launched`: what started."""

    def __init__(self, before: Callable[[LaunchRequest], Awaitable[None]] | None = None) -> None:
        self.before = before
        self.launched: list[FakeManaged] = []
        self.tidied: list[tuple[str, tuple[str, ...]]] = []
        self.started = False
        self.closed = False

    async def start(self) -> None:
        self.started = True

    async def report(self, terms: WorkspaceTerms | None) -> IsolationReport:
        """As large as the terms' FAKE_REPORT_CHARACTERS asks for."""
        size = int(terms.env.get("FAKE_REPORT_CHARACTERS", "0")) if terms is not None else 0
        protections = (Protection(name="fake", state="active", required=False, detail="\x01" * size),) if size else ()
        return IsolationReport(
            command_sandbox="none", available=True, network_enforcement="none", protections=protections
        )

    async def launch(self, request: LaunchRequest) -> ManagedProcess:
        if self.before is not None:
            await self.before(request)
        # Popen waits for the exec, so it does not run on the loop.
        spawned = await asyncio.to_thread(_spawn_tty if request.tty_size else _spawn_pipes, request)
        managed = FakeManaged(*spawned, tty=request.tty_size is not None)
        self.launched.append(managed)
        return managed

    async def tidy(self, root: str, protect: Sequence[str]) -> tuple[str, ...]:
        self.tidied.append((root, tuple(protect)))
        return tuple(protect)

    async def close(self) -> None:
        self.closed = True


_Spawned = tuple[subprocess.Popen[bytes], int, int]
"""Child, our end of its input, our end of its output."""


def _spawn_pipes(request: LaunchRequest) -> _Spawned:
    in_read, in_write = os.pipe()
    out_read, out_write = os.pipe()
    try:
        child = _spawn(request, in_read, out_write, None)
    except BaseException:
        os.close(in_write)
        os.close(out_read)
        raise
    finally:
        os.close(in_read)
        os.close(out_write)
    os.set_blocking(out_read, False)
    return child, in_write, out_read


def _spawn_tty(request: LaunchRequest) -> _Spawned:
    assert request.tty_size is not None
    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", *request.tty_size, 0, 0))
    try:
        child = _spawn(request, slave, slave, slave)
    except BaseException:
        os.close(master)
        raise
    finally:
        os.close(slave)
    os.set_blocking(master, False)
    return child, master, master


def _spawn(request: LaunchRequest, stdin: int, output: int, slave: int | None) -> subprocess.Popen[bytes]:
    def take_terminal() -> None:
        if slave is not None:
            fcntl.ioctl(slave, termios.TIOCSCTTY, 0)

    try:
        return subprocess.Popen(
            request.argv,
            stdin=stdin,
            stdout=output,
            stderr=output,
            cwd=request.terms.root,
            env={**ENVIRONMENT, **request.terms.env},
            start_new_session=True,
            preexec_fn=take_terminal if slave is not None else None,
        )
    except OSError as error:
        name = errno.errorcode.get(error.errno or 0, "EIO")
        raise LaunchFailed("exec", name, f"cannot run {request.argv[0]}: {os.strerror(error.errno or 0)}") from error
