"""The records of the kernel and what a watcher makes of them, in orders that a real kernel gives too rarely to test."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path

import inotify.constants
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.filesystem.beneath import choose_opener
from adapters.inotify_watch import kernel, records
from adapters.inotify_watch.changes import Change, Lost, NewDirectory
from adapters.inotify_watch.paths import WatchedPaths
from adapters.inotify_watch.watcher import TreeWatcher


@pytest.mark.covers("WATCH-1")
def test_the_numbers_are_those_of_the_library() -> None:
    names = ["MODIFY", "ATTRIB", "MOVED_FROM", "MOVED_TO", "CREATE", "DELETE", "DELETE_SELF", "MOVE_SELF"]
    names += ["UNMOUNT", "Q_OVERFLOW", "IGNORED", "ISDIR"]
    assert {name: getattr(records, name) for name in names} == {
        name: getattr(inotify.constants, f"IN_{name}") for name in names
    }


def record(watch: int, mask: int, name: str = "", cookie: int = 0) -> bytes:
    data = os.fsencode(name) + b"\0" * (16 - len(name) % 16) if name else b""
    return struct.pack("iIII", watch, mask, cookie, len(data)) + data


@given(st.lists(st.tuples(st.integers(1, 9), st.sampled_from([2, 0x100, 0x40000100]), st.text("ab", max_size=20))))
def test_records_survive_their_encoding(wanted: list[tuple[int, int, str]]) -> None:
    data = b"".join(record(watch, mask, name) for watch, mask, name in wanted)
    assert [(found.watch, found.mask, found.name) for found in records.parse(data)] == wanted


@given(st.binary(max_size=64))
def test_any_bytes_are_records_or_a_value_error(data: bytes) -> None:
    try:
        found = list(records.parse(data))
    except ValueError:
        return
    assert sum(16 + len(os.fsencode(one.name)) for one in found) <= len(data)


class ScriptedKernel:
    """A pipe in place of an inotify instance: the watcher reads what the test writes. Directories are real."""

    def __init__(self) -> None:
        self.read_end, self.write_end = os.pipe()
        os.set_blocking(self.read_end, False)
        self.numbers: dict[int, int] = {}
        self.removed: list[int] = []

    def new_instance(self) -> int:
        return os.dup(self.read_end)

    def add_watch(self, _instance: int, directory_fd: int) -> int:
        inode = os.fstat(directory_fd).st_ino
        return self.numbers.setdefault(inode, len(self.numbers) + 1)

    def remove_watch(self, _instance: int, watch: int) -> None:
        self.removed.append(watch)

    def write(self, *parts: bytes) -> None:
        os.write(self.write_end, b"".join(parts))


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedKernel]:
    double = ScriptedKernel()
    for name in ("new_instance", "add_watch", "remove_watch"):
        monkeypatch.setattr(kernel, name, getattr(double, name))
    yield double
    os.close(double.read_end)
    os.close(double.write_end)


@pytest.fixture
def watcher(scripted: ScriptedKernel, tmp_path: Path) -> Iterator[TreeWatcher]:
    """Watch 1 is the root, 2 is `sub`, 3 is `sub/in`."""
    (tmp_path / "sub/in").mkdir(parents=True)
    made = TreeWatcher(choose_opener(), str(tmp_path.resolve()), 100)
    made.scan()
    yield made
    made.close()


@pytest.mark.covers("WATCH-1")
def test_the_halves_of_a_rename_are_paired_across_reads_and_other_events(
    scripted: ScriptedKernel, watcher: TreeWatcher
) -> None:
    scripted.write(record(1, records.MOVED_FROM, "a", 7), record(2, records.CREATE, "x"))
    assert list(watcher.take()) == [Change("create", "sub/x")]
    assert watcher.expects_more
    scripted.write(record(2, records.MOVED_TO, "b", 7))
    assert list(watcher.take()) == [Change("rename", "sub/b", "a")]
    assert not watcher.expects_more


@pytest.mark.covers("WATCH-1")
def test_a_second_half_that_does_not_come_makes_it_a_removal_with_all_its_watches(
    scripted: ScriptedKernel, watcher: TreeWatcher
) -> None:
    scripted.write(record(1, records.MOVED_FROM | records.ISDIR, "sub", 7))
    assert list(watcher.take()) == []
    assert list(watcher.give_up_waiting()) == [Change("remove", "sub"), NewDirectory("sub", at_once=True)]
    assert sorted(scripted.removed) == [2, 3]
    # What the kernel had queued before the watches went is of no interest, and no reason for alarm.
    scripted.write(record(3, records.CREATE, "private"), record(3, records.IGNORED), record(2, records.IGNORED))
    assert list(watcher.take()) == []


@pytest.mark.covers("WATCH-1")
def test_a_rename_that_is_followed_by_another_ones_second_half_is_not_paired_with_it(
    scripted: ScriptedKernel, watcher: TreeWatcher
) -> None:
    scripted.write(record(1, records.MOVED_FROM, "a", 7), record(1, records.MOVED_TO, "b", 8))
    assert list(watcher.take()) == [Change("remove", "a"), Change("create", "b")]


@pytest.mark.covers("WATCH-1")
def test_a_moved_directory_takes_its_watches_along(scripted: ScriptedKernel, watcher: TreeWatcher) -> None:
    kind = records.ISDIR
    scripted.write(record(1, records.MOVED_FROM | kind, "sub", 7), record(1, records.MOVED_TO | kind, "new", 7))
    both = [NewDirectory("new", at_once=True), NewDirectory("sub", at_once=True)]
    assert list(watcher.take()) == [Change("rename", "new", "sub"), *both]
    scripted.write(record(3, records.CREATE, "x"))
    assert list(watcher.take()) == [Change("create", "new/in/x")]


@pytest.mark.covers("WATCH-1")
def test_a_burst_of_writes_is_one_hint(scripted: ScriptedKernel, watcher: TreeWatcher) -> None:
    scripted.write(
        *[record(1, records.MODIFY, "a")] * 5, record(1, records.DELETE, "a"), record(1, records.CREATE, "a")
    )
    assert list(watcher.take()) == [Change("modify", "a"), Change("remove", "a"), Change("create", "a")]


@pytest.mark.covers("WATCH-2")
@pytest.mark.parametrize(
    ("data", "words"),
    [
        (record(-1, records.Q_OVERFLOW), "overflow"),
        (record(1, 0x10000, "a"), "unknown kind"),
        (record(1, 0, "a"), "unknown kind"),
        (record(99, records.CREATE, "a"), "not known"),
        (record(2, records.UNMOUNT), "unmounted"),
        (record(1, records.DELETE_SELF), "removed or renamed"),
        (record(1, records.MOVE_SELF), "removed or renamed"),
        (record(1, records.IGNORED), "gone"),
        (record(1, records.CREATE, "a")[:-5], "cut short"),
        (b"\0" * 7, "cut short"),
    ],
)
def test_whatever_cannot_be_classified_is_a_loss(
    scripted: ScriptedKernel, watcher: TreeWatcher, data: bytes, words: str
) -> None:
    scripted.write(data)
    with pytest.raises(Lost, match=words):
        list(watcher.take())


@pytest.mark.covers("WATCH-2")
def test_what_was_said_before_a_loss_is_not_taken_back(scripted: ScriptedKernel, watcher: TreeWatcher) -> None:
    scripted.write(record(1, records.CREATE, "a"), record(-1, records.Q_OVERFLOW))
    taken = watcher.take()
    assert next(taken) == Change("create", "a")
    with pytest.raises(Lost):
        next(taken)


_STEPS = st.lists(
    st.tuples(st.just("put"), st.integers(1, 5), st.sampled_from(["", "a", "a/b", "ab", "c"]))
    | st.tuples(st.just("move"), st.sampled_from(["a", "a/b", "c"]), st.sampled_from(["a", "c", "d", "a/e"]))
    | st.tuples(st.just("forget"), st.integers(1, 5), st.just("")),
    max_size=20,
)


@given(_STEPS)
def test_the_two_maps_stay_each_others_inverse(steps: list[tuple[str, object, str]]) -> None:
    paths = WatchedPaths()
    for step, first, second in steps:
        if step == "put":
            assert isinstance(first, int)
            paths.put(first, second)
            assert paths.path_of(first) == second
        elif step == "move":
            assert isinstance(first, str)
            if not second.startswith(first):
                paths.move(first, second)
                assert paths.below(first) == []
        else:
            assert isinstance(first, int)
            paths.forget(first)
            assert first not in paths
    known = [watch for watch in range(1, 6) if watch in paths]
    assert len({paths.path_of(watch) for watch in known}) == len(known) == len(paths)
