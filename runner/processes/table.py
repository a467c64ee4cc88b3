"""All commands of this runner: how many may run, which handles are still known (PROC-5, PROC-9).

Knows ids and ages; it refuses to know how a command runs. Called by `runner.service`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from runner.api import ErrorCode, RunnerError
from runner.processes.lifecycle import State
from runner.processes.process import Process

MAX_FINISHED = 64
FINISHED_TTL_S = 15 * 60.0


class ProcessTable:
    """Handles by `process_id`. A finished one is kept FINISHED_TTL_S, and only the last MAX_FINISHED of them.

    `clock`: seconds, monotonic.
    """

    def __init__(
        self,
        *,
        max_running: int,
        clock: Callable[[], float],
        max_finished: int = MAX_FINISHED,
        ttl_s: float = FINISHED_TTL_S,
    ) -> None:
        self._max_running, self._max_finished, self._ttl_s = max_running, max_finished, ttl_s
        self._clock = clock
        self._all: dict[str, Process] = {}
        # Insertion order is the order of finishing, so the oldest comes first.
        self._finished_at: dict[str, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, process: Process) -> None:
        """Raises `RunnerError` TOO_MANY_PROCESSES, or INVALID_ARGUMENT for an id that is known already."""
        self.evict()
        if process.process_id in self._all:
            raise RunnerError(
                ErrorCode.INVALID_ARGUMENT,
                f"process_id {process.process_id} is already used; every command needs a new one",
                details={"argument": "process_id"},
            )
        running = sum(1 for other in self._all.values() if not other.state.is_over)
        if running >= self._max_running:
            raise RunnerError(
                ErrorCode.TOO_MANY_PROCESSES,
                f"{running} commands are running and {self._max_running} are allowed; wait for one to end, or end one",
                retryable=True,
                details={"running": running, "limit": self._max_running},
            )
        self._all[process.process_id] = process

    def remove(self, process_id: str) -> None:
        """For a command that is proved not to have started: its id was never a handle."""
        del self._all[process_id]

    def get(self, process_id: str) -> Process:
        """Raises `RunnerError` PROCESS_NOT_FOUND."""
        self.evict()
        process = self._all.get(process_id)
        if process is None or process.state is State.STARTING:
            raise RunnerError(
                ErrorCode.PROCESS_NOT_FOUND,
                f"process {process_id[:80]} is not known: it never ran here, ended over {self._ttl_s / 60:.0f} minutes "
                f"or {self._max_finished} commands ago, or belonged to a runner that has ended",
            )
        return process

    def finished(self, process_id: str) -> None:
        """The command is over: its age counts from now."""
        self._finished_at[process_id] = self._clock()
        self.evict()

    def evict(self) -> None:
        """Forgets what is too old or too many, and sets the alarm for the next: a ring is not kept by idleness."""
        now = self._clock()
        for process_id, at in list(self._finished_at.items()):
            if len(self._finished_at) <= self._max_finished and now - at < self._ttl_s:
                break
            del self._finished_at[process_id]
            del self._all[process_id]
        if self._timer is None and self._finished_at:
            self._timer = asyncio.get_running_loop().call_later(self._ttl_s, self._on_timer)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def __iter__(self) -> Iterator[Process]:
        self.evict()
        return iter(list(self._all.values()))

    def _on_timer(self) -> None:
        self._timer = None
        self.evict()
