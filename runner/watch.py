"""Starts the watch of a workspace on its first use and follows its epoch (WATCH-1, WATCH-3).

Hints only: no answer, precondition or permission may depend on anything here, and no failure here may fail a request.
Called by `runner.service`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from runner.api import WorkspaceRef
from runner.log import Log
from runner.ports import WatchBackend


@dataclass(frozen=True, slots=True)
class WatchState:
    """The last event seen. `resyncs`: how often everything that was derived from earlier events became doubtful."""

    epoch: int
    seq: int
    resyncs: int


class WatchHints:
    """One subscription a workspace root, started at most once and retried on a later use if it could not start."""

    def __init__(self, backend: WatchBackend | None, log: Log) -> None:
        self._backend, self._log = backend, log
        self._followers: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._states: dict[str, WatchState] = {}

    def touch(self, workspace: WorkspaceRef) -> None:
        """Called on every read, find and patch. Returns at once."""
        key = (workspace.workspace_id, workspace.root)
        if self._backend is None or key in self._followers:
            return
        follower = asyncio.get_running_loop().create_task(self._follow(self._backend, *key), name=f"watch {key[0]}")
        self._followers[key] = follower

    def state(self, workspace_id: str) -> WatchState | None:
        """None until the watch has said something."""
        return self._states.get(workspace_id)

    async def close(self) -> None:
        """Idempotent."""
        followers, self._followers = list(self._followers.values()), {}
        for follower in followers:
            follower.cancel()
        await asyncio.gather(*followers, return_exceptions=True)
        if self._backend is not None:
            await self._backend.close()

    async def _follow(self, backend: WatchBackend, workspace_id: str, root: str) -> None:
        try:
            events = backend.subscribe(workspace_id)
            await backend.watch(workspace_id, root)
            async for event in events:
                before = self._states.get(workspace_id)
                resyncs = (before.resyncs if before else 0) + (event.kind == "resync_required")
                self._states[workspace_id] = WatchState(event.epoch, event.seq, resyncs)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - a hint that cannot be had is no reason to fail a request
            self._log("watch_failed", level="warning", workspace_id=workspace_id, error=repr(error))
        self._followers.pop((workspace_id, root), None)
