"""Whatever is lost becomes resync_required: overflow, lag, limits, the root itself."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from adapters.filesystem.beneath import choose_opener
from adapters.inotify_watch import kernel
from adapters.inotify_watch.backend import InotifyWatchBackend
from adapters.inotify_watch.changes import Change
from adapters.inotify_watch.watcher import TreeWatcher
from runner.ports import WatchBackend
from tests.adapters.inotify_watch.conftest import PATIENCE_S, Watched
from tests.leaks import holdings, left_over


@pytest.fixture
def queue_limit() -> int:
    return int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())


@pytest.mark.covers("WATCH-2")
async def test_an_overflow_is_said_at_once_and_again_by_the_watcher_that_replaces_it(
    watched: Watched, queue_limit: int
) -> None:
    files = [watched.root / "a", watched.root / "b"]
    for file in files:
        file.touch()
    await watched.start()
    # The loop does not run meanwhile, so nobody takes the events.
    for number in range(queue_limit + 1000):
        os.chmod(files[number % 2], 0o600)  # in turns: equal events in a row are one
    os.mkdir(watched.root / "missed")
    lost = await watched.until(lambda event: event.kind == "resync_required")
    again = await watched.until(lambda event: event.kind == "resync_required")
    assert (lost.epoch, again.epoch, again.seq) == (1, 2, 1)
    (watched.root / "missed/x").touch()
    assert (await watched.said("create", "missed/x")).epoch == 2
    coverage = watched.backend.coverage("demo")
    assert coverage is not None
    assert (coverage.epoch, coverage.watched) == (2, "whole")
    assert "overflow" in str(coverage.reason)


@pytest.mark.covers("WATCH-2")
async def test_a_lagging_subscriber_gets_one_resync_of_the_same_epoch_in_place_of_what_it_lost(
    folders: tuple[Path, Path],
) -> None:
    backend = InotifyWatchBackend(queue_events=8)
    slow, quick = backend.subscribe("demo"), backend.subscribe("demo")
    await backend.watch("demo", str(folders[0]))
    for number in range(100):
        (folders[0] / f"f{number}").touch()
        async with asyncio.timeout(PATIENCE_S):
            while (await anext(quick)).path != f"f{number}":
                pass
    first = await anext(slow)
    assert (first.kind, first.epoch) == ("resync_required", 1)
    assert first.seq > 8
    following = await anext(slow)
    assert following.seq == first.seq + 1
    await backend.close()


@pytest.mark.covers("WATCH-2")
async def test_a_removed_root_is_said_and_watched_again_once_it_is_back(watched: Watched) -> None:
    await watched.start()
    watched.root.rmdir()
    lost = await watched.until(lambda event: event.kind == "resync_required")
    assert lost.epoch == 1
    coverage = watched.backend.coverage("demo")
    assert coverage is not None
    assert (coverage.epoch, coverage.watched) == (1, "none")
    watched.root.mkdir()
    again = await watched.until(lambda event: event.kind == "resync_required")
    assert again.epoch == 2
    (watched.root / "x").touch()
    await watched.said("create", "x")


@pytest.mark.covers("WATCH-2")
async def test_a_root_that_was_moved_away_is_not_followed(watched: Watched) -> None:
    await watched.start()
    watched.root.rename(watched.outside / "moved")
    watched.root.mkdir()
    lost = await watched.until(lambda event: event.kind == "resync_required")
    again = await watched.until(lambda event: event.kind == "resync_required")
    assert (lost.epoch, again.epoch) == (1, 2)
    (watched.outside / "moved/private").touch()
    assert not [event for event in await watched.settled() if event.path == "private"]


@pytest.mark.covers("WATCH-2")
async def test_more_directories_than_may_be_watched_are_a_partial_coverage(folders: tuple[Path, Path]) -> None:
    root = folders[0]
    (root / "a").mkdir()
    backend = InotifyWatchBackend(max_watches=2)
    watched = Watched(*folders, backend, backend.subscribe("demo"))
    await watched.start()
    coverage = backend.coverage("demo")
    assert coverage is not None
    assert coverage.watched == "whole"
    (root / "b").mkdir()
    resync = await watched.until(lambda event: event.kind == "resync_required")
    assert resync.epoch == 1
    coverage = backend.coverage("demo")
    assert coverage is not None
    assert coverage.watched == "partial"
    await backend.close()


@pytest.mark.covers("WATCH-2")
@pytest.mark.parametrize(("entries", "partial"), [(30, False), (31, True)])
def test_a_scan_looks_at_a_bounded_number_of_entries_and_says_so(
    folders: tuple[Path, Path], entries: int, partial: bool
) -> None:
    for number in range(entries):
        (folders[0] / str(number)).touch()
    watcher = TreeWatcher(choose_opener(), str(folders[0]), max_watches=10, max_entries=30)
    try:
        met = watcher.scan()
        assert (watcher.partial, met is None) == (partial, partial)
        (folders[0] / "new").touch()
        assert list(watcher.take()) == [Change("create", "new")]
    finally:
        watcher.close()


@pytest.mark.covers("WATCH-2")
@pytest.mark.parametrize(("allowed", "watched"), [(0, None), (1, "partial")])
async def test_the_kernels_limit_on_watches_is_an_error_at_the_root_and_a_partial_coverage_below(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, allowed: int, watched: str | None
) -> None:
    (folders[0] / "a").mkdir()
    given = 0

    def limited(instance: int, directory_fd: int) -> int:
        nonlocal given
        given += 1
        if given > allowed:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real_add_watch(instance, directory_fd)

    real_add_watch = kernel.add_watch
    # The real limit is the machine's, and others live by it.
    monkeypatch.setattr(kernel, "add_watch", limited)
    backend = InotifyWatchBackend()
    if watched is None:
        with pytest.raises(OSError, match="No space"):
            await backend.watch("demo", str(folders[0]))
        assert backend.coverage("demo") is None
    else:
        await backend.watch("demo", str(folders[0]))
        coverage = backend.coverage("demo")
        assert coverage is not None
        assert coverage.watched == watched
    await backend.close()


@pytest.mark.covers("WATCH-2")
@pytest.mark.kernel("user_namespace")
def test_an_unmounted_file_system_below_the_root_is_a_loss() -> None:
    program = Path(__file__).with_name("unmount_program.py")
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", sys.executable, str(program)],
        capture_output=True,
        text=True,
        timeout=15,
        cwd=Path(__file__).parents[3],
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["1", "2"]


# --- starting and ending ----------------------------------------------------------------------------------------------
@pytest.mark.covers("WATCH-1", "WATCH-2")
async def test_watching_again_changes_nothing_and_another_root_raises_the_epoch(watched: Watched) -> None:
    await watched.start()
    await watched.backend.watch("demo", str(watched.root))
    assert [event.kind for event in await watched.settled()].count("resync_required") == 1
    await watched.backend.watch("demo", str(watched.outside))
    other = await watched.until(lambda event: event.kind == "resync_required")
    assert other.epoch == 2
    (watched.outside / "x").touch()
    await watched.said("create", "x")


@pytest.mark.covers("WATCH-2")
async def test_the_epoch_rises_too_where_another_root_could_not_be_watched_at_first(watched: Watched) -> None:
    await watched.start()
    late = watched.outside / "late"
    with pytest.raises(FileNotFoundError):
        await watched.backend.watch("demo", str(late))
    late.mkdir()
    await watched.backend.watch("demo", str(late))
    assert (await watched.until(lambda event: event.kind == "resync_required")).epoch == 2


class _Short(ThreadPoolExecutor):
    """A pool that starts no work while `short` is set, as where no thread can be started."""

    short = False

    def submit(self, *args: Any, **kwargs: Any) -> Any:
        if self.short:
            raise RuntimeError("can't start new thread")
        return super().submit(*args, **kwargs)


@pytest.mark.covers("WATCH-2")
async def test_a_failure_of_any_kind_is_a_loss_and_the_watcher_is_replaced(watched: Watched) -> None:
    pool = _Short(2)
    asyncio.get_running_loop().set_default_executor(pool)
    await watched.start()
    pool.short = True
    (watched.root / "new").mkdir()  # has to be scanned, in a thread
    lost = await watched.until(lambda event: event.kind == "resync_required")
    coverage = watched.backend.coverage("demo")
    assert coverage is not None
    assert (lost.epoch, coverage.watched) == (1, "none")
    assert "thread" in str(coverage.reason)
    pool.short = False
    assert (await watched.until(lambda event: event.kind == "resync_required")).epoch == 2
    (watched.root / "new/x").touch()
    await watched.said("create", "new/x")


@pytest.mark.covers("WATCH-2")
async def test_watches_started_at_once_are_one(folders: tuple[Path, Path]) -> None:
    backend = InotifyWatchBackend()
    await asyncio.gather(*(backend.watch("demo", str(folders[0])) for _ in range(5)))
    coverage = backend.coverage("demo")
    assert coverage is not None
    assert coverage.epoch == 1
    await backend.close()


async def test_a_root_that_is_missing_is_an_error_and_can_be_tried_again(watched: Watched) -> None:
    watched.root.rmdir()
    with pytest.raises(OSError, match="No such file"):
        await watched.backend.watch("demo", str(watched.root))
    watched.root.mkdir()
    await watched.start()


async def test_closing_ends_every_subscription_and_leaves_nothing_open(folders: tuple[Path, Path]) -> None:
    before = holdings()
    backend: WatchBackend = InotifyWatchBackend()
    events = backend.subscribe("demo")
    await backend.watch("demo", str(folders[0]))
    assert left_over(before, holdings()) != []
    await backend.close()
    await backend.close()
    assert [event.kind async for event in events] == ["resync_required"]
    assert [event async for event in backend.subscribe("demo")] == []
    await backend.watch("demo", str(folders[0]))
    assert left_over(before, holdings()) == []


async def test_a_start_that_is_cancelled_leaves_nothing_open(folders: tuple[Path, Path]) -> None:
    for number in range(200):
        (folders[0] / f"d{number}").mkdir()
    before = holdings()
    for _ in range(20):
        backend = InotifyWatchBackend()
        starting = asyncio.create_task(backend.watch("demo", str(folders[0])))
        await asyncio.wait([starting], timeout=0)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        await backend.close()
    assert left_over(before, holdings()) == []


async def test_a_dropped_subscription_is_forgotten(watched: Watched) -> None:
    await watched.start()
    other = watched.backend.subscribe("demo")
    assert len(watched.backend._subscriptions["demo"]) == 2
    del other
    assert len(watched.backend._subscriptions["demo"]) == 1


def test_the_library_is_imported_by_one_module_and_not_before_a_watch_starts() -> None:
    repository = Path(__file__).parents[3]
    importers = [
        str(path.relative_to(repository))
        for package in ("gateway", "runner", "adapters", "sandbox_helper")
        for path in (repository / package).rglob("*.py")
        if any(line.startswith(("import inotify", "from inotify")) for line in path.read_text().splitlines())
    ]
    assert importers == ["adapters/inotify_watch/kernel.py"]
    code = "import sys, adapters.inotify_watch.backend; assert not [m for m in sys.modules if m.startswith('inotify')]"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=repository, timeout=15)
