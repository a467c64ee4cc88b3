"""A watched directory on the real disk."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from adapters.inotify_watch.backend import InotifyWatchBackend
from adapters.inotify_watch.subscription import Subscription
from runner.ports import WatchEvent

PATIENCE_S = 10


@dataclass
class Watched:
    """A root, its backend, and every event that a first subscription has given."""

    root: Path
    outside: Path
    backend: InotifyWatchBackend
    subscription: Subscription
    events: list[WatchEvent] = field(default_factory=list)

    async def start(self) -> None:
        await asyncio.wait_for(self.backend.watch("demo", str(self.root)), PATIENCE_S)
        first = await self.until(lambda event: event.kind == "resync_required")
        assert first.seq == 1

    async def until(self, wanted: Callable[[WatchEvent], bool]) -> WatchEvent:
        """The next event that is wanted; all on the way are kept."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                event = await anext(self.subscription)
                self.events.append(event)
                if wanted(event):
                    return event

    async def said(self, kind: str, path: str) -> WatchEvent:
        """The next event of that kind and path."""
        return await self.until(lambda event: (event.kind, event.path) == (kind, path))

    async def settled(self) -> list[WatchEvent]:
        """All events so far: a file made now is the mark, since the kernel keeps the order."""
        mark = self.root / f"mark{len(self.events)}"
        mark.touch()
        await self.said("create", mark.name)
        return self.events


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    root, outside = tmp_path.resolve() / "root", tmp_path.resolve() / "outside"
    root.mkdir()
    outside.mkdir()
    return root, outside


@pytest.fixture
async def watched(folders: tuple[Path, Path]) -> AsyncIterator[Watched]:
    backend = InotifyWatchBackend(first_delay_s=0.01, check_s=0.1)
    yield Watched(*folders, backend, backend.subscribe("demo"))
    await backend.close()
