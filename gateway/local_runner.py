"""Opens the runner of `--runner in-process` with its proof of death, when the link is started and not before.

The data directory is locked by then, so the proof lies in a place that is ours. Refuses to know: adapters, which
`gateway.__main__` joins. Everything else is `gateway.in_process`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Protocol

from gateway.errors import Code, StartFailed, ToolError
from gateway.in_process import InProcessLink
from gateway.liveness import Liveness, LivenessDirectory
from gateway.ports import LinkListener
from runner.api import Runner, RunnerDescription

PROOF_S = 1.0
"""How long a closing link waits until nothing holds the liveness FIFO any more."""


class StartableRunner(Runner, Protocol):
    async def start(self) -> None: ...


class LocalLink:
    """`RunnerLink`. `build(liveness_fd)` makes the runner; it needs a running loop."""

    def __init__(self, build: Callable[[int], StartableRunner], deaths: LivenessDirectory) -> None:
        self._build = build
        self._deaths = deaths
        self._listeners: list[LinkListener] = []
        self._link: InProcessLink | None = None
        self._liveness: Liveness | None = None
        self._write_end: int | None = None

    @property
    def runner(self) -> Runner:
        if self._link is None:
            raise ToolError(
                Code.RUNNER_UNAVAILABLE, "the runner is not started or is closed, so nothing was done", retryable=True
            )
        return self._link.runner

    @property
    def description(self) -> RunnerDescription | None:
        return None if self._link is None else self._link.description

    def subscribe(self, listener: LinkListener) -> None:
        self._listeners.append(listener)

    async def start(self) -> None:
        """Raises `StartFailed`; what was opened by then is closed by `close`."""
        try:
            self._liveness, write_end = await self._deaths.create()
        except OSError as error:
            raise StartFailed(
                f"the liveness FIFO cannot be made ({error.strerror})",
                str(error.filename),
                "look at the data directory",
            ) from None
        self._write_end = write_end
        runner = self._build(write_end)
        self._link = InProcessLink(runner)
        for listener in self._listeners:
            self._link.subscribe(listener)
        await runner.start()
        await self._link.start()

    async def close(self) -> None:
        if self._link is not None:
            await self._link.close()
        write_end, self._write_end = self._write_end, None
        if write_end is not None:
            os.close(write_end)
        liveness, self._liveness = self._liveness, None
        if liveness is not None:
            proof = asyncio.ensure_future(liveness.dead())
            await asyncio.wait({proof}, timeout=PROOF_S)
            liveness.give_up()
            await asyncio.wait({proof})
