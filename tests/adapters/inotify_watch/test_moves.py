"""Directories that are made, moved, exchanged and removed in any order, while events of it wait: a scan is then ahead
of the events, and the watcher must find every directory under its name again, or say that it lost track."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random

import pytest

from adapters.filesystem.beneath import choose_opener
from adapters.inotify_watch.changes import Change, Doubt, Lost, NewDirectory, Said
from adapters.inotify_watch.watcher import TreeWatcher
from adapters.patch_helper.syscalls import rename_exchange

SEEDS = 40
NAMES = "abc"
AT_FDCWD = -100


def directories(top: Path) -> list[Path]:
    return [Path(folder) for folder, _, _ in os.walk(top)]


class Disorder:
    """Random operations on a root, and between it and a folder outside."""

    def __init__(self, seed: int, root: Path, outside: Path) -> None:
        self.random, self.root, self.outside = Random(seed), root, outside

    def strike(self, times: int) -> None:
        for _ in range(times):
            try:
                self._strike()
            except (OSError, IndexError):
                continue  # into itself, onto one that is not empty, nothing to choose from

    def _strike(self) -> None:
        pick = self.random.choice
        inside, outside = directories(self.root), directories(self.outside)
        what = self.random.random()
        if what < 0.3:
            (pick(inside) / pick(NAMES)).mkdir()
        elif what < 0.7:
            pick(inside[1:]).rename(pick(inside) / pick(NAMES))
        elif what < 0.8:
            rename_exchange(AT_FDCWD, str(pick(inside[1:])), AT_FDCWD, str(pick(inside[1:])))
        elif what < 0.85:
            pick(inside[1:]).rename(pick(outside) / pick(NAMES))
        elif what < 0.92:
            pick(outside[1:]).rename(pick(inside) / pick(NAMES))
        elif what < 0.97:
            pick(inside[1:]).rmdir()
        else:
            shutil.rmtree(pick(inside[1:]))


def settled(watcher: TreeWatcher, disorder: Disorder | None = None) -> Iterator[Change]:
    """All that the watcher has to say, as its follower asks it, until nothing waits. Raises Lost."""

    def told(changes: Iterable[Said]) -> Iterator[Change]:
        fresh: dict[str, None] = {}
        for change in changes:
            if disorder is not None and disorder.random.random() < 0.2:
                disorder.strike(1)
            if isinstance(change, Change):
                yield change
            elif isinstance(change, Doubt):
                continue
            elif change.at_once:
                yield from watcher.scan([change.path]) or ()
            else:
                fresh[change.path] = None
        yield from watcher.scan(list(fresh)) or ()

    while True:
        before = watcher.expects_more
        said = list(told(watcher.take()))
        yield from said
        if not said:
            watcher.settle()
        if not said and not watcher.expects_more:
            return
        if not said and before:
            yield from told(watcher.give_up_waiting())


@pytest.mark.covers("WATCH-1", "WATCH-2")
def test_every_directory_is_watched_under_its_name_after_any_moves_or_the_watcher_says_that_it_is_lost(
    tmp_path: Path,
) -> None:
    kept = 0
    for seed in range(SEEDS):
        root, outside = tmp_path / f"{seed}" / "root", tmp_path / f"{seed}" / "outside"
        root.mkdir(parents=True)
        outside.mkdir()
        disorder = Disorder(seed, root, outside)
        disorder.strike(10)
        watcher = TreeWatcher(choose_opener(), str(root), 1000)
        try:
            watcher.scan()
            for _ in range(6):
                disorder.strike(disorder.random.randrange(1, 12))
                list(settled(watcher, disorder.random.choice([disorder, None])))
            list(settled(watcher))
            marks = [folder / "mark" for folder in directories(root)]
            for mark in [*marks, *(folder / "private" for folder in directories(outside))]:
                mark.touch()
            created = {change.path for change in settled(watcher) if change.kind == "create"}
            assert created == {str(mark.relative_to(root)) for mark in marks}, f"seed {seed}"
            kept += 1
        except Lost:
            continue
        finally:
            watcher.close()
    assert kept > SEEDS / 4


@pytest.mark.covers("WATCH-1", "WATCH-2")
def test_a_directory_that_a_scan_met_below_its_own_old_name_is_followed_or_lost(tmp_path: Path) -> None:
    for name in ("x", "outer"):
        (tmp_path / name).mkdir()
    watcher = TreeWatcher(choose_opener(), str(tmp_path), 1000)
    try:
        watcher.scan()
        (tmp_path / "x").rename(tmp_path / "name")
        (tmp_path / "name").rename(tmp_path / "outer/name")
        (tmp_path / "name").mkdir()
        (tmp_path / "outer").rename(tmp_path / "name/outer")
        # The first rename has "name" scanned, which leads to outer/name by way of its old name by now.
        try:
            list(settled(watcher))
        except Lost:
            return
        (tmp_path / "name/outer/name/mark").touch()
        assert list(settled(watcher)) == [Change("create", "name/outer/name/mark")]
    finally:
        watcher.close()


@pytest.mark.covers("WATCH-1")
def test_a_directory_that_a_scan_met_at_its_new_place_before_its_move_was_told_is_not_lost(tmp_path: Path) -> None:
    (tmp_path / "old/inner").mkdir(parents=True)
    watcher = TreeWatcher(choose_opener(), str(tmp_path), 1000)
    try:
        watcher.scan()
        (tmp_path / "new").mkdir()
        created = list(watcher.take())
        assert created == [Change("create", "new"), NewDirectory("new")]
        (tmp_path / "old").rename(tmp_path / "new/old")
        watcher.scan(["new"])
        assert list(settled(watcher)) == [Change("remove", "old")]
        for mark in ("new/old/mark", "new/old/inner/mark"):
            (tmp_path / mark).touch()
            assert list(settled(watcher)) == [Change("create", mark)]
    finally:
        watcher.close()
