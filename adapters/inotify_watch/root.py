"""The watch of one root through its failures: a watcher, followed on the event loop and replaced when it is lost.

    starting --scanned--> running --Lost--> lost --scanned again--> running, epoch + 1
                                             ^ |
                                             +-+ the scan failed: again, later and later

Called by `backend`. It knows no workspace and no listener: `publish` takes the events.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from adapters.filesystem.beneath import Opener
from adapters.inotify_watch.changes import Change, Doubt, Lost, Said
from runner.ports import WatchEvent

if TYPE_CHECKING:
    from adapters.inotify_watch.watcher import TreeWatcher

RENAME_WAIT_S = 0.1
"""How long the first half of a rename waits for its second, which the kernel gives right after it (inotify(7))."""
PAUSE_S = 0.01
"""Between two reads of events: a command that touches files as fast as it can must not hold the loop. Meanwhile the
kernel joins equal events; what is still too much overflows."""
CHECK_S = 5.0
"""How often the root's path is checked to lead to the directory that is watched."""
MAX_DELAY_S = 60.0
_STEADY_S = 30.0
"""A watcher that ran so long is replaced at once, without delay."""

Result = TypeVar("Result")


@dataclass(frozen=True)
class Coverage:
    """`watched`: the whole tree, a part of it (limits of the kernel or ours, permission), or none of it for now.
    `reason`: why it was lost last; None while nothing was."""

    epoch: int
    watched: Literal["whole", "partial", "none"]
    reason: str | None = None


class RootWatch:
    """Start it once. `epoch`: the last one that was used before."""

    def __init__(
        self,
        root: str,
        opener: Opener,
        publish: Callable[[WatchEvent], None],
        *,
        epoch: int,
        max_watches: int | None,
        first_delay_s: float,
        check_s: float,
    ) -> None:
        self.root = root
        self.coverage = Coverage(epoch, "none")
        self._opener, self._publish = opener, publish
        self._max_watches, self._first_delay_s, self._check_s = max_watches, first_delay_s, check_s
        self._seq = 0
        self._watcher: TreeWatcher | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Returns once the tree is watched. Raises `OSError`."""
        self._replace(await self._new_watcher())
        self._task = asyncio.create_task(self._run(), name="inotify watch")

    async def close(self) -> None:
        """Idempotent."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        self._drop()

    # --- the life of a watcher ----------------------------------------------------------------------------------------
    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        delay = 0.0
        while True:
            began = loop.time()
            try:
                await self._follow()
            except Exception as error:  # noqa: BLE001 - whatever it is: nobody sees the tree until it is replaced
                self.coverage = replace(self.coverage, watched="none", reason=_reason(error))
                self._emit("resync_required")
            if loop.time() - began > _STEADY_S:
                delay = 0.0
            while True:
                await asyncio.sleep(delay)
                delay = min(max(2 * delay, self._first_delay_s), MAX_DELAY_S)
                try:
                    watcher = await self._new_watcher()
                except Exception as error:  # noqa: BLE001 - as above; it is tried again, later and later
                    self.coverage = replace(self.coverage, reason=f"cannot watch the root: {_reason(error)}")
                else:
                    break
            self._replace(watcher)

    async def _new_watcher(self) -> TreeWatcher:
        making = asyncio.ensure_future(asyncio.to_thread(self._make))
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            with contextlib.suppress(Exception):
                (await making).close()
            raise

    def _make(self) -> TreeWatcher:
        # Imported here, in a thread: loading inotify takes tens of milliseconds and runs a program.
        from adapters.inotify_watch.watcher import TreeWatcher, fair_share

        watcher = TreeWatcher(self._opener, self.root, self._max_watches or fair_share())
        try:
            watcher.scan()
        except BaseException:
            watcher.close()
            raise
        return watcher

    def _replace(self, watcher: TreeWatcher) -> None:
        """The new watcher runs: only now the epoch is raised and said."""
        self._drop()
        self._watcher = watcher
        self.coverage = Coverage(
            self.coverage.epoch + 1, "partial" if watcher.partial else "whole", self.coverage.reason
        )
        self._seq = 0
        self._emit("resync_required")

    def _drop(self) -> None:
        if self._watcher is not None:
            self._watcher.close()
            self._watcher = None

    # --- following one watcher ----------------------------------------------------------------------------------------
    async def _follow(self) -> None:
        """Until the watcher is lost: raises `Lost`, always."""
        watcher = self._watcher
        assert watcher is not None
        loop = asyncio.get_running_loop()
        check_at = loop.time() + self._check_s
        while True:
            if loop.time() >= check_at:
                await _to_its_end(asyncio.to_thread(watcher.check_root))
                check_at = loop.time() + self._check_s
            if await self._tell(watcher, watcher.take()):
                await asyncio.sleep(PAUSE_S)
            elif watcher.doubts:
                await _to_its_end(asyncio.to_thread(watcher.settle))
            elif not watcher.expects_more:
                await _readable(watcher.fileno(), check_at - loop.time())
            elif not await _readable(watcher.fileno(), RENAME_WAIT_S):
                await self._tell(watcher, watcher.give_up_waiting())

    async def _tell(self, watcher: TreeWatcher, changes: Iterable[Said]) -> bool:
        """Emits what changed and scans what is new. Whether there was anything."""
        any_change = False
        fresh: dict[str, None] = {}
        for change in changes:
            any_change = True
            if isinstance(change, Change):
                self._emit_all([change])
            elif isinstance(change, Doubt):
                self._emit("resync_required")
            elif change.at_once:
                await self._scan(watcher, [change.path])
            else:
                fresh[change.path] = None
        if fresh:
            await self._scan(watcher, list(fresh))
        return any_change

    async def _scan(self, watcher: TreeWatcher, tops: Sequence[str]) -> None:
        try:
            met = await _to_its_end(asyncio.to_thread(watcher.scan, tops))
        except OSError as error:
            raise Lost(f"a new directory cannot be scanned: {error.strerror}") from error
        if met is None or (watcher.partial and self.coverage.watched == "whole"):
            self.coverage = replace(self.coverage, watched="partial" if watcher.partial else "whole")
            self._emit("resync_required")
        self._emit_all(met or ())

    def _emit_all(self, changes: Iterable[Change]) -> None:
        for change in changes:
            self._emit(change.kind, change.path, change.from_path)

    def _emit(
        self,
        kind: Literal["create", "modify", "remove", "rename", "resync_required"],
        path: str | None = None,
        from_path: str | None = None,
    ) -> None:
        self._seq += 1
        self._publish(WatchEvent(kind, self.coverage.epoch, self._seq, path, from_path))


def _reason(error: Exception) -> str:
    if isinstance(error, Lost):
        return error.reason
    return (isinstance(error, OSError) and error.strerror) or repr(error)


async def _readable(fd: int, timeout_s: float) -> bool:
    """Whether there is something to read, within that time. The reader is removed again: nothing spins meanwhile."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(fd, readable.set)
    try:
        async with asyncio.timeout(timeout_s):
            return await readable.wait()
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(fd)


async def _to_its_end(work: Coroutine[Any, Any, Result]) -> Result:
    """Awaits work that uses a descriptor in a thread: even a cancelled caller goes on only when it is over."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise
