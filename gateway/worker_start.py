"""One worker process, from nothing to a connection whose peer is proved (UDS-1).

A private directory of mode 0700, a listener in it, the worker as a session leader with a clean environment and nothing
of ours but the write end of its liveness FIFO; then one connection, taken only from the process that was started.
Refuses to know: what a runner does, restarts. Called by `worker_process`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from gateway.liveness import Liveness, LivenessDirectory
from gateway.runner_client import UdsRunner
from runner.api import RunnerLost

T = TypeVar("T")

START_S = 20.0
"""A worker that has not said hello by then is not coming. Ours: a cold start on a loaded machine takes about one."""


END_S = 2.0
"""What a killed process gets to be gone."""


class WorkerFailed(Exception):
    """This attempt to start a worker came to nothing; the process, if there was one, is killed. Text: why."""


@dataclass(frozen=True)
class WorkerCommand:
    """What to run; the defaults are the program `runner` of this installation.

    `argv`: up to where the options begin. `cwd`: where its modules are found. `environment`: all that it gets.
    """

    argv: tuple[str, ...] = (sys.executable, "-m", "runner")
    cwd: str = str(Path(__file__).resolve().parent.parent)
    environment: tuple[tuple[str, str], ...] = (
        ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
        ("LANG", "C.UTF-8"),
        ("PYTHONUTF8", "1"),
        ("PYTHONDONTWRITEBYTECODE", "1"),
    )


class Child:
    """The worker as our child: signalled and reaped by its pidfd, so never mistaken for another process."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        loop = asyncio.get_running_loop()
        self.pid = process.pid
        self.exited: asyncio.Future[int] = loop.create_future()
        self._loop = loop
        self._process = process
        self._pidfd = os.pidfd_open(process.pid)
        loop.add_reader(self._pidfd, self._reap)

    def _reap(self) -> None:
        code = self._process.poll()
        if code is None:
            return
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        if not self.exited.done():
            self.exited.set_result(code)

    def kill(self) -> None:
        """SIGKILL. No effect once it is reaped: `Popen` signals nothing whose status it has."""
        self._process.kill()

    async def put_down(self) -> None:
        """SIGKILL, and the wait for its effect, which only the kernel could delay: then for END_S at most."""
        self.kill()
        await asyncio.wait({self.exited}, timeout=END_S)


@dataclass(frozen=True)
class Worker:
    """A worker that has said hello. `liveness` outlives it until nothing it started is alive."""

    instance_id: str
    runner: UdsRunner
    child: Child
    liveness: Liveness

    async def discard(self, reason: str) -> None:
        """Ends a worker that was never put to use."""
        self.runner.abort(reason)
        await self.child.put_down()
        self.liveness.give_up()


async def start_worker(
    command: WorkerCommand, max_processes: int, deaths: LivenessDirectory, on_lost: Callable[[str], None]
) -> Worker:
    """Raises `WorkerFailed`; then nothing of the attempt is left but dying processes. Safe to cancel.

    `on_lost` is the connection's, see `UdsRunner`; it may be called before this returns.
    """
    async with contextlib.AsyncExitStack() as undo:
        runner = UdsRunner(on_lost)
        undo.callback(runner.abort, "its start failed")
        try:
            async with asyncio.timeout(START_S):
                child, liveness, connection = await _connect(command, max_processes, deaths, undo)
                loop = asyncio.get_running_loop()
                undo.callback(connection.close)
                await loop.create_unix_connection(lambda: runner, sock=connection)
                instance_id = await _or_death(runner.hello(), child)
        except TimeoutError:
            raise WorkerFailed(f"it did not connect and say hello within {START_S:g} s") from None
        except OSError as error:
            raise WorkerFailed(f"{error.strerror}: {error.filename or command.argv[0]}") from None
        undo.pop_all()
        return Worker(instance_id, runner, child, liveness)


async def _connect(
    command: WorkerCommand, max_processes: int, deaths: LivenessDirectory, undo: contextlib.AsyncExitStack
) -> tuple[Child, Liveness, socket.socket]:
    """Starts the process and takes its connection; what must go if the attempt fails later is left to `undo`."""
    directory = await asyncio.to_thread(tempfile.mkdtemp, prefix="codespace-worker-")  # mode 0700, mkdtemp(3)
    try:
        path = os.path.join(directory, "runner.sock")
        with _listen(path) as listener:
            liveness, write_end = await deaths.create()
            # It may begin to start helpers, but no command: nobody waits for the proof of that death.
            undo.callback(liveness.give_up)
            try:
                child = Child(_spawn(command, path, max_processes, write_end))
            finally:
                os.close(write_end)
            undo.push_async_callback(child.put_down)
            return child, liveness, await _accept(listener, child)
    finally:
        await asyncio.to_thread(shutil.rmtree, directory)


def _listen(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.setblocking(False)
        before = os.umask(0o177)
        try:
            listener.bind(path)
        finally:
            os.umask(before)
        listener.listen(4)
    except BaseException:
        listener.close()
        raise
    return listener


def _spawn(command: WorkerCommand, path: str, max_processes: int, liveness_fd: int) -> subprocess.Popen[bytes]:
    """On the loop's own thread, for some milliseconds: a worker that asks for a signal at its parent's death gets it at
    that of the thread which forked it (PR_SET_PDEATHSIG, prctl(2)), and threads of a pool come and go."""
    options: Sequence[str] = (
        *("--socket", path),
        *("--liveness-fd", str(liveness_fd)),
        *("--max-processes", str(max_processes)),
    )
    # stdout too leads to stderr: in stdio mode standard output belongs to the protocol.
    return subprocess.Popen(
        [*command.argv, *options],
        stdin=subprocess.DEVNULL,
        stdout=2,
        pass_fds=(liveness_fd,),
        start_new_session=True,
        env=dict(command.environment),
        cwd=command.cwd,
    )


async def _accept(listener: socket.socket, child: Child) -> socket.socket:
    """The connection of the worker itself; whoever else connects is turned away."""
    loop = asyncio.get_running_loop()
    while True:
        connection, _ = await _or_death(loop.sock_accept(listener), child)
        packed = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        pid, uid, _gid = struct.unpack("3i", packed)
        if pid == child.pid and uid == os.geteuid():
            return connection
        connection.close()


async def _or_death(work: Coroutine[Any, Any, T], child: Child) -> T:
    """The result of `work`, or `WorkerFailed` as soon as the worker is dead."""
    task = asyncio.ensure_future(work)
    first: set[asyncio.Future[Any]] = {task, child.exited}
    try:
        await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
    if task.cancelled():
        raise WorkerFailed(f"it ended with status {child.exited.result()} before it was ready; its log says why")
    try:
        return task.result()
    except RunnerLost as error:
        raise WorkerFailed(error.message) from None
