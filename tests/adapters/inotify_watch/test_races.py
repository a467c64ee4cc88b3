"""Directories and links exchanged under a watched root: nothing from outside is said."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from adapters.inotify_watch.backend import InotifyWatchBackend
from tests.adapters.filesystem.swapper import make_bait, swapping
from tests.adapters.inotify_watch.conftest import Watched

ROUNDS = 300


async def marks(watched: Watched) -> AsyncIterator[int]:
    """Makes one new name after the other; bounded."""
    for number in range(200):
        (watched.root / f"mark{number}").touch()
        yield number
    raise AssertionError("the watch does not come back")


@pytest.mark.covers("WATCH-1")
async def test_no_name_from_outside_is_said_while_directories_and_links_are_exchanged(watched: Watched) -> None:
    make_bait(watched.root, watched.outside)
    await watched.start()
    seen: set[str] = set()

    async def follow() -> None:
        async for event in watched.subscription:
            seen.add(str(event.path))

    following = asyncio.create_task(follow())
    with swapping(watched.root):
        for number in range(ROUNDS):
            (watched.outside / f"private{number}").touch()
            (watched.outside / "sub" / f"private{number}").touch()
            await asyncio.wait([following], timeout=0.001)
    # The flood may have cost a watcher or two: it is over once a new name is said.
    async for number in marks(watched):
        await asyncio.wait([following], timeout=0.05)
        if f"mark{number}" in seen:
            break
    following.cancel()
    assert {"real", "link"} & seen
    assert not [path for path in seen if "private" in path]


@pytest.mark.covers("WATCH-1")
async def test_the_same_names_are_said_where_their_directory_is_watched(watched: Watched) -> None:
    """The positive control: the outside directory, watched as a root of its own."""
    make_bait(watched.root, watched.outside)
    backend = InotifyWatchBackend()
    control = Watched(watched.outside, watched.root, backend, backend.subscribe("demo"))
    await control.start()
    (watched.outside / "sub/private0").touch()
    await control.said("create", "sub/private0")
    await backend.close()
