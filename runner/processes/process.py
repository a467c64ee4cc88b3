"""One command: its managed child, ring, input, deadline and readers, joined on the event loop.

The walk through `runner.processes.lifecycle`; the effects live in `output`, `input` and the launcher's object. It
refuses to know where the command runs, leases and wire. Called by `runner.processes.table` and `runner.service`.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

from runner.api import (
    ErrorCode,
    Isolation,
    ProcessExited,
    ProcessOutput,
    ProcessStatus,
    ProcessSummary,
    ReadProcess,
    RunnerError,
    StartProcess,
    shown_argv,
)
from runner.log import Log
from runner.ports import ManagedExit, ManagedProcess
from runner.processes.chunks import Chunk, cut
from runner.processes.input import InputWriter
from runner.processes.lifecycle import GONE, STEPS, Cause, State, Step, Verdict, judge
from runner.processes.output import OutputPump
from runner.processes.ring import MAX_CAPACITY_BYTES, OutputRing

TERMINATE_GRACE_S = 2.0
"""Between TERM and KILL."""
DRAIN_S = 0.25
"""Between the death of the managed child and the end of the output, at most."""


class Process:
    """A command from the request to start it until its handle is evicted.

    `on_exit` is called exactly once, in the callback that learns that nothing of the command is alive, before any
    reader can see it. Methods run on the loop that made the object.
    """

    def __init__(
        self,
        request: StartProcess,
        *,
        scratch: memoryview,
        on_exit: Callable[[ProcessExited], None],
        log: Log,
        grace_s: float = TERMINATE_GRACE_S,
        drain_s: float = DRAIN_S,
    ) -> None:
        self.process_id = request.process_id
        self.workspace_id = request.terms.workspace_id
        self.argv = request.argv
        self.tty = request.tty
        self.state = State.STARTING
        self.started_at_utc = datetime.now(UTC)
        self._timeout_s = request.terms.limits.timeout_s
        self._loop = asyncio.get_running_loop()
        self._ring = OutputRing(_ring_bytes(request.terms.limits.output_retained_kb))
        self._scratch, self._on_exit, self._log = scratch, on_exit, log
        self._grace_s, self._drain_s = grace_s, drain_s
        self._isolation = Isolation(
            command_sandbox="none" if request.terms.sandbox == "off" else "linux-sandbox",
            network="none" if request.terms.sandbox == "off" else request.terms.network,
            protections={},
        )
        self._managed: ManagedProcess | None = None
        self._pump: OutputPump | None = None
        self._input: InputWriter | None = None
        self._cause: Cause | None = None
        self._verdict: Verdict | None = None
        self._exited_at_utc: datetime | None = None
        self._timers: list[asyncio.TimerHandle] = []
        self._waiters: set[asyncio.Future[None]] = set()
        self._supervisor: asyncio.Task[None] | None = None
        self._killed = False

    # --- the life ---------------------------------------------------------------------------------------------------
    def started(self, managed: ManagedProcess) -> None:
        """The launcher saw the exec. Takes the managed process over, its descriptors included."""
        self._step(Step.STARTED)
        self.started_at_utc = datetime.now(UTC)
        self._managed = managed
        self._isolation = _with_deadline(managed.isolation, self._timeout_s)
        self._pump = OutputPump(self._loop, managed.output_fd, self._ring, self._scratch, self._wake)
        # Before anything that may fail: whatever does, the command is reaped and said to be over.
        self._supervisor = self._loop.create_task(self._supervise(managed), name=f"supervise {self.process_id}")
        if self._timeout_s:
            self._timers.append(self._loop.call_later(self._timeout_s, self._end, Cause.TIMEOUT))
        try:
            self._pump.start()
            if managed.stdin_fd is not None:
                self._input = InputWriter(self._loop, managed.stdin_fd)
        except (OSError, MemoryError) as error:
            # epoll_ctl(2): ENOMEM, ENOSPC. A command whose output nobody takes would wait for ever.
            self._log("pipes_failed", level="error", process_id=self.process_id, error=repr(error))
            managed.kill()
        if self._killed:
            managed.kill()
        elif self._cause is not None:
            self._escalate()

    def lost(self, ended: Callable[[], Awaitable[None]] | None) -> None:
        """The launch is uncertain. `ended`: returns when nothing of it can be alive."""
        self._step(Step.LOST)
        if ended is not None:
            self._supervisor = self._loop.create_task(self._await_gone(ended), name=f"settle {self.process_id}")

    def terminate(self) -> None:
        """TERM to the tree, KILL after the grace. Idempotent; no effect on a command that is over."""
        self._end(Cause.TERMINATED)

    def kill(self) -> None:
        """KILL at once. Idempotent; no effect on a command that is over."""
        if self.state.is_over:
            return
        self._cause = self._cause or Cause.TERMINATED
        self._killed = True
        if self._managed is not None:
            self._managed.kill()

    async def wait_over(self) -> None:
        """Returns once nothing of the command is alive. Bound it: an uncertain command may never say."""
        while not self.state.is_over:
            await self._change()

    async def wait_ended(self) -> None:
        """Returns once it is over, its output has ended and its descriptors are closed. Bound it."""
        while self.state is not State.ENDED:
            await self._change()

    def _end(self, cause: Cause) -> None:
        if self.state.is_over or self._cause is not None:
            return
        if self._managed is not None and _has_exited(self._managed.pid):
            return  # by itself, before anything here could have made it: only the news is still under way
        self._cause = cause
        if self._managed is not None and not self._killed:
            self._escalate()

    def _escalate(self) -> None:
        assert self._managed is not None
        managed = self._managed
        try:
            managed.signal_tree(signal.SIGTERM)
            # A stopped process acts on TERM only once it runs again; KILL needs no such help.
            managed.signal_tree(signal.SIGCONT)
        except OSError as error:
            self._log("signal_tree_failed", level="warning", process_id=self.process_id, error=repr(error))
            managed.kill()
        else:
            self._timers.append(self._loop.call_later(self._grace_s, managed.kill))

    async def _supervise(self, managed: ManagedProcess) -> None:
        try:
            exit = await managed.wait()
        except Exception as error:  # noqa: BLE001 - whatever it is, the command's fate is no longer known
            self._log("wait_failed", level="error", process_id=self.process_id, error=repr(error))
            managed.kill()
            self._step(Step.LOST)
            return
        self._reaped(exit)
        await self._drain()
        managed.close()
        self._managed = None
        self._step(Step.DRAINED)
        self._wake()

    def _reaped(self, exit: ManagedExit) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        if exit.note:
            self._log("sandbox_note", level="warning", process_id=self.process_id, note=exit.note)
        self._over(Step.REAPED, judge(self._cause, exit))
        if self._input is not None:
            self._input.close()

    async def _drain(self) -> None:
        """Its writers are dead: the end of the output is at hand, unless something outside holds it open."""
        assert self._pump is not None
        try:
            async with asyncio.timeout(self._drain_s):
                while not self._pump.ended:
                    await self._change()
        except TimeoutError:
            pass
        self._pump.finish()
        if self._pump.failure is not None:
            self._log("output_failed", level="error", process_id=self.process_id, error=repr(self._pump.failure))

    async def _await_gone(self, ended: Callable[[], Awaitable[None]]) -> None:
        await ended()
        self._over(Step.GONE, GONE)

    def _over(self, step: Step, verdict: Verdict) -> None:
        self._step(step)
        self._verdict = verdict
        self._exited_at_utc = datetime.now(UTC)
        self._on_exit(
            ProcessExited(
                process_id=self.process_id,
                workspace_id=self.workspace_id,
                termination=verdict.termination,
                exited_at_utc=self._exited_at_utc,
            )
        )
        self._wake()

    def _step(self, step: Step) -> None:
        self.state = STEPS[self.state, step]

    # --- readers ----------------------------------------------------------------------------------------------------
    @property
    def _output_ended(self) -> bool:
        """An uncertain command has no output anyone could read, so it ends with the command."""
        return self._pump.ended if self._pump is not None else self.state is State.ENDED

    async def read(self, request: ReadProcess) -> ProcessOutput:
        """See `runner.api.Runner.read_process`."""

        def take() -> Chunk:
            return cut(self._ring, request.cursor, request.max_bytes, request.encoding, ended=self._output_ended)

        chunk = take()
        if request.wait_ms and not (chunk.text or chunk.eof):
            try:
                async with asyncio.timeout(request.wait_ms / 1000):
                    while not (chunk.text or chunk.eof):
                        await self._change()
                        chunk = take()
            except TimeoutError:
                pass
        return ProcessOutput(
            process_id=self.process_id,
            cursor=chunk.cursor,
            chunk=chunk.text,
            encoding=request.encoding,
            eof=chunk.eof,
            output_lost=chunk.lost,
            retained_from=self._ring.retained_from,
        )

    async def status(self, wait_ms: int) -> ProcessStatus:
        """Waits for output that is new since the call, or for the end: of the command and of its output."""
        total = self._ring.total
        if wait_ms:
            try:
                async with asyncio.timeout(wait_ms / 1000):
                    while self.state is State.DRAINING or (not self.state.is_over and self._ring.total == total):
                        await self._change()
            except TimeoutError:
                pass
        return self._status()

    def _status(self) -> ProcessStatus:
        verdict = self._verdict
        return ProcessStatus(
            process_id=self.process_id,
            state="exited" if verdict else "running",
            termination=verdict.termination if verdict else None,
            exit_code=verdict.exit_code if verdict else None,
            command_exit=verdict.command_exit if verdict else None,
            limit=verdict.limit if verdict else None,
            output_total=self._ring.total,
            output_retained_from=self._ring.retained_from,
            eof=self._output_ended,
            started_at_utc=self.started_at_utc,
            exited_at_utc=self._exited_at_utc,
            isolation=self._isolation,
        )

    def summary(self) -> ProcessSummary:
        return ProcessSummary(
            process_id=self.process_id,
            workspace_id=self.workspace_id,
            argv=shown_argv(self.argv),
            tty=self.tty,
            state="exited" if self.state.is_over else "running",
            started_at_utc=self.started_at_utc,
        )

    async def _change(self) -> None:
        """Returns at the next change. Wakes from `_wake` alone: nothing here polls."""
        waiter = self._loop.create_future()
        self._waiters.add(waiter)
        try:
            await waiter
        finally:
            self._waiters.discard(waiter)

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    # --- input and terminal -----------------------------------------------------------------------------------------
    async def write_stdin(self, data: bytes, *, eof: bool) -> int:
        """Bytes written within the bound. `eof` takes effect only after all of `data`."""
        managed, writer = self._require_running(), self._input
        if writer is None:
            raise RunnerError(ErrorCode.PROCESS_NOT_RUNNING, f"process {self.process_id} has no input")
        try:
            written = await writer.write(data)
            if written == len(data) and eof and not self.state.is_over:
                if self.tty:
                    await writer.write_end_of_file()
                else:
                    writer.close_after_rest(managed.close_stdin)
        except RunnerError:
            self._require_running()
            raise
        return written

    def resize(self, rows: int, cols: int) -> None:
        if not self.tty:
            raise RunnerError(
                ErrorCode.PROCESS_NOT_TTY,
                f"process {self.process_id} has pipes, not a terminal; start the command with tty to resize it",
            )
        self._require_running().resize(rows, cols)

    def _require_running(self) -> ManagedProcess:
        if self.state is not State.RUNNING or self._managed is None:
            raise RunnerError(
                ErrorCode.PROCESS_NOT_RUNNING,
                f"process {self.process_id} is no longer running; process_status tells how it ended",
            )
        return self._managed


def _ring_bytes(retained_kb: int) -> int:
    wanted = retained_kb * 1024
    return min(wanted, MAX_CAPACITY_BYTES) if wanted else MAX_CAPACITY_BYTES


def _has_exited(pid: int) -> bool:
    """Whether a child of ours is dead already, without taking its status from the one who waits for it (waitid(2))."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


def _with_deadline(isolation: Isolation, timeout_s: int) -> Isolation:
    limits = dict(isolation.limits)
    limits["timeout_s"] = "deadline" if timeout_s else "off"
    return isolation.model_copy(update={"limits": limits})
