"""The worker as a `RunnerLink`: started, watched, replaced after its death, ended in order (UDS-1, PROC-7).

    down ── started ──► up ── connection, process or answers lost ──► down ── back-off ──► …     closed from any state

When a worker is lost its successor starts at once, and serves. What the lost one ran is another matter: `all_dead` is
told only when the end of its liveness FIFO proves it, however many successors have come since. Nothing is resumed.

Refuses to know: leases, workspaces, what a request means. Joined in `gateway.__main__` for `--runner uds`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from structlog.typing import FilteringBoundLogger

from gateway.errors import Code, StartFailed, ToolError
from gateway.liveness import LivenessDirectory
from gateway.ports import LinkListener
from gateway.worker_start import Worker, WorkerCommand, WorkerFailed, start_worker
from runner.api import Describe, ListProcesses, ProcessExited, Runner, RunnerDescription, RunnerError

FIRST_BACK_OFF_S = 0.1
LAST_BACK_OFF_S = 5.0
STEADY_S = 30.0
"""A worker that served this long ended by accident: its successor starts without back-off again."""
CLOSE_S = 2.5
"""What a worker gets to kill its commands in order, before SIGKILL ends it and thereby them."""
PROOF_S = 1.0
"""How long a closing link waits for the proof after that."""
DESCRIBE_S = 20.0
"""A worker probes its sandbox once before it can describe itself."""
LINGER_S = 2.0
"""What a worker whose connection is lost gets to kill its commands itself."""


HEARTBEAT_S = 10.0
SILENCE_S = 30.0
"""A worker that is stopped or hangs for this long is lost: its callers wait for nothing. Ours, well above what a loaded
machine or a debugger's short stop takes."""
NOBODY = "-"
"""No workspace has this id, so the answer to the heartbeat is short."""


@dataclass(frozen=True)
class BackOff:
    """Seconds to wait before a start: doubles from `first_s` to `last_s`, from anew after `steady_s` of service."""

    first_s: float = FIRST_BACK_OFF_S
    last_s: float = LAST_BACK_OFF_S
    steady_s: float = STEADY_S

    def next(self, previous_s: float, served_s: float) -> float:
        """`previous_s`: what was waited before the start that failed or served for `served_s`; 0 for none."""
        if served_s >= self.steady_s:
            return 0.0
        return min(self.last_s, max(self.first_s, previous_s * 2))


class WorkerLink:
    """`RunnerLink` over a worker process. `log` gets one line a start, a loss and a proof."""

    def __init__(
        self,
        log: FilteringBoundLogger,
        *,
        max_processes: int,
        deaths: LivenessDirectory,
        command: WorkerCommand | None = None,
        back_off: BackOff | None = None,
    ) -> None:
        self._log = log
        self._max_processes = max_processes
        self._deaths = deaths
        self._command = command or WorkerCommand()
        self._back_off = back_off or BackOff()
        self._listeners: list[LinkListener] = []
        self._worker: Worker | None = None
        self._description: RunnerDescription | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._burials: set[asyncio.Task[None]] = set()
        self._closing: asyncio.Task[None] | None = None

    # --- RunnerLink ---------------------------------------------------------------------------------------------------
    @property
    def runner(self) -> Runner:
        if self._worker is None:
            raise ToolError(
                Code.RUNNER_UNAVAILABLE,
                "the runner is not connected, so nothing was done: it is being restarted, try again",
                retryable=True,
            )
        return self._worker.runner

    @property
    def description(self) -> RunnerDescription | None:
        return self._description

    def subscribe(self, listener: LinkListener) -> None:
        self._listeners.append(listener)

    async def start(self) -> None:
        """Returns with the first worker up. Raises `StartFailed`: a worker that cannot be started once is a fault of
        the installation, not of the moment."""
        loop = asyncio.get_running_loop()
        lost: asyncio.Future[str] = loop.create_future()
        try:
            worker = await self._attempt(lost)
        except WorkerFailed as error:
            raise StartFailed(
                f"the runner worker did not start ({error})", self._command.argv[0], "see its log"
            ) from None
        self._keeper = loop.create_task(self._keep(worker, lost), name="worker-keeper")
        self._keeper.add_done_callback(self._keeper_ended)

    async def close(self) -> None:
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close(), name="worker-close")
        await asyncio.shield(self._closing)

    # --- life ---------------------------------------------------------------------------------------------------------
    async def _attempt(self, lost: asyncio.Future[str]) -> Worker:
        def on_lost(reason: str) -> None:
            # At once: whoever hears RunnerLost next finds the link down and the handles dropped.
            if self._worker is not None and self._worker.runner is worker.runner:
                self._down(reason)
            lost.set_result(reason)

        worker = await start_worker(self._command, self._max_processes, self._deaths, on_lost)
        try:
            worker.runner.subscribe(lambda event: self._on_event(worker.instance_id, event))
            async with asyncio.timeout(DESCRIBE_S):
                description = await worker.runner.describe(Describe())
        except (RunnerError, TimeoutError) as error:
            await worker.discard("it cannot describe itself")
            raise WorkerFailed(f"it cannot describe itself: {error or 'no answer'}") from None
        except BaseException:
            await worker.discard("its start was given up")
            raise
        if lost.done():  # between its answer and this line
            await worker.discard("lost")
            raise WorkerFailed(lost.result())
        # No await from here on: a later loss finds the worker in its place.
        self._worker, self._description = worker, description
        self._log.info("worker_up", pid=worker.child.pid, runner_instance_id=worker.instance_id)
        for listener in self._listeners:
            listener.runner_up(worker.instance_id)
        return worker

    async def _keep(self, worker: Worker, lost: asyncio.Future[str]) -> None:
        """Until closed: waits for the loss of the worker, tells it, and starts the next."""
        loop = asyncio.get_running_loop()
        waited_s, since = 0.0, loop.time()
        while True:
            worker.runner.abort(await self._watch(worker, lost))
            served_s = loop.time() - since
            while True:
                waited_s = self._back_off.next(waited_s, served_s)
                await asyncio.sleep(waited_s)
                lost, since = loop.create_future(), loop.time()
                try:
                    worker = await self._attempt(lost)
                    break
                except WorkerFailed as error:
                    served_s = 0.0
                    self._log.error(
                        "worker_failed", reason=str(error), next_attempt_in_s=self._back_off.next(waited_s, 0)
                    )

    async def _watch(self, worker: Worker, lost: asyncio.Future[str]) -> str:
        """Returns, with the reason, when the connection is lost, the process has ended, or it answers no more."""
        either: set[asyncio.Future[Any]] = {lost, worker.child.exited}
        while True:
            done, _ = await asyncio.wait(either, timeout=HEARTBEAT_S, return_when=asyncio.FIRST_COMPLETED)
            if done:
                return "the worker process ended"
            try:
                async with asyncio.timeout(SILENCE_S):
                    await worker.runner.list_processes(ListProcesses(workspace_id=NOBODY))
            except TimeoutError:
                return f"the worker has not answered for {SILENCE_S:g} s"
            except RunnerError as error:
                self._log.debug("worker_heartbeat", reason=error.message)  # if it is lost, `lost` says so next

    def _keeper_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self._log.error("worker_keeper_failed", exc_info=task.exception())

    def _down(self, reason: str) -> None:
        worker, self._worker, self._description = self._worker, None, None
        assert worker is not None
        self._log.error("worker_lost", reason=reason, runner_instance_id=worker.instance_id)
        for listener in self._listeners:
            listener.runner_lost(worker.instance_id)
        self._bury_later(worker, LINGER_S)

    def _bury_later(self, worker: Worker, linger_s: float) -> None:
        task = asyncio.get_running_loop().create_task(self._bury(worker, linger_s), name="worker-bury")
        self._burials.add(task)
        task.add_done_callback(self._burials.discard)

    async def _bury(self, worker: Worker, linger_s: float) -> None:
        """Sees a lost worker to its end, and waits for the proof that nothing it started is alive: however long."""
        await asyncio.wait({worker.child.exited}, timeout=linger_s)
        worker.child.kill()
        try:
            await asyncio.shield(worker.child.exited)
            await worker.liveness.dead()
        except asyncio.CancelledError:
            worker.liveness.give_up()
            raise
        self._log.info("worker_all_dead", runner_instance_id=worker.instance_id)
        for listener in self._listeners:
            listener.all_dead(worker.instance_id)

    def _on_event(self, instance_id: str, event: ProcessExited) -> None:
        for listener in self._listeners:
            listener.process_exited(instance_id, event)

    # --- close --------------------------------------------------------------------------------------------------------
    async def _close(self) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait({self._keeper})
        worker, self._worker, self._description = self._worker, None, None
        if worker is not None:
            for listener in self._listeners:
                listener.runner_lost(worker.instance_id)
            self._bury_later(worker, CLOSE_S)
            await worker.runner.close()
        if not self._burials:
            return
        _, late = await asyncio.wait(set(self._burials), timeout=CLOSE_S + PROOF_S)
        for task in late:
            self._log.error("worker_not_proved_dead", note="a process of a command may still be ending")
            task.cancel()
        if late:
            await asyncio.wait(late)
