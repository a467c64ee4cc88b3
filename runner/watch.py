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


@dataclass(frozen=True, slots=True)
class _Follower:
    root: str
    task: asyncio.Task[None]


class WatchHints:
    """One subscription a workspace, started at most once a root and retried on a later use if it could not start."""

    def __init__(self, backend: WatchBackend | None, log: Log) -> None:
        self._backend, self._log = backend, log
        self._followers: dict[str, _Follower] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._states: dict[str, WatchState] = {}

    def touch(self, workspace: WorkspaceRef) -> None:
        """Called on every read, find and patch. Returns at once."""
        workspace_id, root = workspace.workspace_id, workspace.root
        before = self._followers.get(workspace_id)
        if self._backend is None or (before is not None and before.root == root):
            return
        if before is not None:
            before.task.cancel()  # the workspace has another root by now
        task = asyncio.get_running_loop().create_task(
            self._follow(self._backend, workspace_id, root), name=f"watch {workspace_id}"
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self._followers[workspace_id] = _Follower(root, task)

    def state(self, workspace_id: str) -> WatchState | None:
        """None until the watch has said something."""
        return self._states.get(workspace_id)

    async def close(self) -> None:
        """Idempotent."""
        self._followers.clear()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
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
        follower = self._followers.get(workspace_id)
        if follower is not None and follower.task is asyncio.current_task():
            del self._followers[workspace_id]
