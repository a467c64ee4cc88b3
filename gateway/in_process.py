"""A runner in this very process as a `RunnerLink`: for `--runner in-process` and for tests.

The service is the same as in a worker; what is missing is the second process, and with it the loss of one (UDS-3).
Refuses to know: how the runner was built. Joined in `gateway.__main__`.
"""

from __future__ import annotations

import asyncio

from gateway.errors import Code, StartFailed, ToolError
from gateway.ports import LinkListener
from runner.api import Describe, ProcessExited, Runner, RunnerDescription, RunnerError


class InProcessLink:
    """Owns `runner` from here on and closes it. `start` asks it to describe itself once."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._listeners: list[LinkListener] = []
        self._description: RunnerDescription | None = None
        self._closing: asyncio.Task[None] | None = None

    @property
    def runner(self) -> Runner:
        if self._description is None:
            raise ToolError(
                Code.RUNNER_UNAVAILABLE, "the runner is not started or is closed, so nothing was done", retryable=True
            )
        return self._runner

    @property
    def description(self) -> RunnerDescription | None:
        return self._description

    def subscribe(self, listener: LinkListener) -> None:
        self._listeners.append(listener)

    async def start(self) -> None:
        try:
            description = await self._runner.describe(Describe())
        except RunnerError as error:
            raise StartFailed("the runner cannot describe itself", error.message, "see its log") from None
        instance_id = description.runner_instance_id
        self._runner.subscribe(lambda event: self._on_event(instance_id, event))
        self._description = description
        for listener in self._listeners:
            listener.runner_up(instance_id)

    def _on_event(self, instance_id: str, event: ProcessExited) -> None:
        for listener in self._listeners:
            listener.process_exited(instance_id, event)

    async def close(self) -> None:
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close(), name="runner-close")
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        description, self._description = self._description, None
        if description is not None:
            for listener in self._listeners:
                listener.runner_lost(description.runner_instance_id)
        await self._runner.close()
        if description is not None:
            for listener in self._listeners:
                listener.all_dead(description.runner_instance_id)
