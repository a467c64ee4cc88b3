"""A real worker with the real sandbox, and the pids below it, for tests of faults."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass

from gateway.runner_client import UdsRunner
from runner.api import ErrorCode, ListProcesses, RunnerError, WorkspaceTerms
from tests.contract.rig import Rig, workspace
from tests.fakes.worker_host import REAL_WORKER, HostedWorker, hosted_worker
from tests.leaks import children_of

STUBBORN = (
    "trap '' TERM HUP INT; exec 9>{fifo}; "
    "( setsid sh -c 'trap \"\" TERM HUP INT; while :; do sleep 86400; done' & ); "
    "echo ready; while :; do sleep 86400; done"
)


@dataclass
class Session:
    """A real worker, our client, and the words of the contract suite for it. `lost`: why the connection ended."""

    worker: HostedWorker
    rig: Rig
    lost: asyncio.Future[str]

    async def hold(self, name: str = "fifo") -> tuple[str, asyncio.Task[bytes]]:
        """A command that ignores every polite signal, and a task that ends when nothing of it is alive."""
        fifo = f"{self.rig.root}/{name}"
        await asyncio.to_thread(_make_fifo, fifo)
        opening = asyncio.create_task(asyncio.to_thread(os.open, fifo, os.O_RDONLY))
        process_id = await self.rig.sh(STUBBORN.format(fifo=name), terms=self.unlimited())
        await self.rig.until(process_id, "ready")
        return process_id, asyncio.create_task(asyncio.to_thread(_read_to_end, await opening))

    async def next_command(self) -> None:
        """Works after a helper's death. One start that met the dying helper may be refused, provably unrun."""
        try:
            output, _ = await self.rig.run("echo next")
        except RunnerError as error:
            if (error.code, error.retryable) != (ErrorCode.PROCESS_SPAWN_FAILED, True):
                raise
            output, _ = await self.rig.run("echo next")
        assert output == "next\n"

    def unlimited(self) -> WorkspaceTerms:
        return self.rig.terms(timeout_s=0)

    def helper(self) -> int:
        """The pid of the worker's sandbox helper, which leads its session."""
        (pid,) = [pid for pid in self._helpers() if os.getsid(pid) == pid]
        return pid

    def first_process(self) -> int:
        """PID 1 of the one command that runs, as seen from here."""
        (pid,) = [pid for pid in self._helpers() if os.getsid(pid) != pid and _children(pid)]
        return pid

    async def prime(self, terms: WorkspaceTerms) -> int:
        """One command under these terms; returns the sandbox that waits for the next."""
        await self.rig.run("true", terms=terms)
        while True:
            found = await asyncio.to_thread(self._waiting)
            # Its word was there before these requests, so the worker knows of it once they are answered; and one that
            # waited for other terms is gone.
            for _ in range(5):
                await self.rig.runner.list_processes(ListProcesses())
            if len(found) == 1 and await asyncio.to_thread(self._waiting) == found:
                return found[0]

    def _waiting(self) -> list[int]:
        """First processes that sleep in a read of their report socket."""
        return [pid for pid in _children(self.worker.child.pid) if _sleeps_in(pid).startswith("unix_stream")]

    def command(self) -> int:
        """The one command that runs, as seen from here."""
        (pid,) = children_of(self.first_process())
        return pid

    def _helpers(self) -> list[int]:
        """The helper, and every PID 1: forked by it, so with its command line, and in its session."""
        children = children_of(self.worker.child.pid).items()
        return [pid for pid, line in children if "sandbox_helper" in line and not line.startswith("Z")]


def _children(pid: int) -> list[int]:
    """Of a process with one thread that forks; without a look at every process of the machine."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as children:
            return [int(child) for child in children.read().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def _sleeps_in(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/wchan", encoding="ascii") as wchan:
            return wchan.read()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _make_fifo(path: str) -> None:
    os.mkfifo(path)
    os.chmod(path, 0o666)


def _read_to_end(fd: int) -> bytes:
    try:
        return os.read(fd, 1)
    finally:
        os.close(fd)


@contextlib.asynccontextmanager
async def session(*options: str) -> AsyncIterator[Session]:
    """`options`: more of them for the worker."""
    loop = asyncio.get_running_loop()
    with workspace() as root:
        async with hosted_worker((*REAL_WORKER, *options)) as worker:
            lost: asyncio.Future[str] = loop.create_future()
            runner = UdsRunner(lost.set_result)
            await loop.create_unix_connection(lambda: runner, sock=worker.connection)
            await runner.hello()
            try:
                yield Session(worker, Rig(runner, root, "sandbox"), lost)
            finally:
                await runner.close()
