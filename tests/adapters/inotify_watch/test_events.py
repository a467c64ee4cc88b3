"""What a watch says of a tree that changes, on the real kernel."""

from __future__ import annotations

import ctypes
import os
import shutil

import pytest

from tests.adapters.inotify_watch.conftest import Watched

libc = ctypes.CDLL(None, use_errno=True)


def exchange(one: object, other: object) -> None:
    """Swaps two names: renameat2(2), RENAME_EXCHANGE."""
    if libc.renameat2(-100, os.fsencode(str(one)), -100, os.fsencode(str(other)), 2):
        raise OSError(ctypes.get_errno(), "renameat2")


@pytest.mark.covers("WATCH-1")
async def test_files_that_are_made_changed_renamed_and_removed_are_named_in_order(watched: Watched) -> None:
    (watched.root / "sub").mkdir()
    await watched.start()
    file = watched.root / "sub/a.txt"
    file.write_text("one")
    file.chmod(0o600)
    file.rename(watched.root / "b.txt")
    (watched.root / "b.txt").unlink()
    await watched.said("remove", "b.txt")
    kinds = [(event.kind, event.path, event.from_path) for event in watched.events[1:]]
    assert kinds[0] == ("create", "sub/a.txt", None)
    assert ("modify", "sub/a.txt", None) in kinds
    assert kinds[-2:] == [("rename", "b.txt", "sub/a.txt"), ("remove", "b.txt", None)]
    assert [event.seq for event in watched.events] == list(range(1, len(watched.events) + 1))
    assert {event.epoch for event in watched.events} == {1}


@pytest.mark.covers("WATCH-1")
async def test_a_directory_made_at_once_with_its_contents_is_seen_to_its_depth(watched: Watched) -> None:
    await watched.start()
    for number in range(50):
        deep = watched.root / f"d{number}/e/f"
        deep.mkdir(parents=True)
        (deep / "file").touch()
    expected = {f"d{number}/e/f/file" for number in range(50)}
    while expected:
        expected.discard((await watched.until(lambda event: event.kind == "create")).path or "")
    (watched.root / "d7/e/f/later").touch()
    await watched.said("create", "d7/e/f/later")


@pytest.mark.covers("WATCH-1")
async def test_a_renamed_directory_is_followed_under_its_new_name(watched: Watched) -> None:
    (watched.root / "old/in").mkdir(parents=True)
    await watched.start()
    (watched.root / "old").rename(watched.root / "new")
    renamed = await watched.said("rename", "new")
    assert renamed.from_path == "old"
    (watched.root / "new/in/x").touch()
    await watched.said("create", "new/in/x")


@pytest.mark.covers("WATCH-1")
async def test_exchanged_directories_are_each_followed(watched: Watched) -> None:
    for name in ("a/in", "b/in"):
        (watched.root / name).mkdir(parents=True)
    await watched.start()
    exchange(watched.root / "a", watched.root / "b")
    await watched.said("rename", "a")
    (watched.root / "a/in/of-b").touch()
    await watched.said("create", "a/in/of-b")
    (watched.root / "b/in/of-a").touch()
    await watched.said("create", "b/in/of-a")
    assert {event.epoch for event in watched.events} == {1}


@pytest.mark.covers("WATCH-1")
async def test_a_name_that_is_made_anew_after_it_was_moved_out_of_sight_is_removed_first_and_then_created(
    watched: Watched,
) -> None:
    """The new directory has no watch yet when something is moved into it, so the kernel tells one half of that."""
    (watched.root / "file").touch()
    (watched.root / "folder").mkdir()
    await watched.start()
    (watched.root / "new").mkdir()
    for name in ("file", "folder"):
        (watched.root / name).rename(watched.root / "new" / name)
    (watched.root / "file").touch()
    (watched.root / "folder").mkdir()
    await watched.said("create", "new/folder")
    said = [(event.kind, event.path) for event in await watched.settled()]
    for name in ("file", "folder"):
        assert said.index(("remove", name)) < said.index(("create", name))
        assert said.count(("remove", name)) == 1
    for path in ("folder/x", "new/folder/x"):
        (watched.root / path).touch()
        await watched.said("create", path)


@pytest.mark.covers("WATCH-1")
async def test_a_directory_renamed_over_an_empty_one_takes_its_place(watched: Watched) -> None:
    (watched.root / "a/in").mkdir(parents=True)
    (watched.root / "b").mkdir()
    await watched.start()
    (watched.root / "a").rename(watched.root / "b")
    (watched.root / "b/in/x").touch()
    await watched.said("create", "b/in/x")
    assert [event.kind for event in await watched.settled()].count("resync_required") == 1


@pytest.mark.covers("WATCH-1")
async def test_what_goes_on_in_a_directory_that_left_the_tree_is_not_said(watched: Watched) -> None:
    (watched.root / "sub/in").mkdir(parents=True)
    await watched.start()
    (watched.root / "sub").rename(watched.outside / "sub")
    await watched.said("remove", "sub")
    (watched.outside / "sub/in/private").touch()
    assert not [event for event in await watched.settled() if "private" in str(event.path)]
    (watched.outside / "sub").rename(watched.root / "back")
    await watched.said("create", "back/in/private")
    (watched.root / "back/in/y").touch()
    await watched.said("create", "back/in/y")


@pytest.mark.covers("WATCH-1")
async def test_links_are_names_and_never_followed(watched: Watched) -> None:
    (watched.root / "before").symlink_to(watched.outside)
    await watched.start()
    (watched.root / "linked").symlink_to(watched.outside)
    await watched.said("create", "linked")
    (watched.outside / "private").touch()
    assert not [event for event in await watched.settled() if "private" in str(event.path)]


@pytest.mark.covers("WATCH-1")
async def test_a_tree_that_is_made_and_removed_over_and_over_is_still_watched(watched: Watched) -> None:
    await watched.start()
    for _ in range(30):
        (watched.root / "a/b/c").mkdir(parents=True)
        (watched.root / "a/b/c/x").touch()
        (watched.root / "a/b").rename(watched.root / "moved")
        shutil.rmtree(watched.root / "moved")
        shutil.rmtree(watched.root / "a")
    (watched.root / "last").mkdir()
    await watched.said("create", "last")
    (watched.root / "last/x").touch()
    await watched.said("create", "last/x")
    assert {event.epoch for event in watched.events} == {1}


@pytest.mark.covers("WATCH-1")
async def test_a_name_that_is_not_utf8_is_a_name_all_the_same(watched: Watched) -> None:
    await watched.start()
    os.close(os.open(os.fsencode(watched.root) + b"/x\xff", os.O_CREAT | os.O_WRONLY))
    await watched.said("create", "x\udcff")


@pytest.mark.covers("WATCH-3")
async def test_an_event_names_what_cannot_be_read_without_a_claim(watched: Watched) -> None:
    await watched.start()
    os.mkfifo(watched.root / "fifo")
    (watched.root / "gone").touch()
    (watched.root / "gone").unlink()
    events = await watched.settled()
    assert {("create", "fifo"), ("create", "gone"), ("remove", "gone")} <= {(e.kind, e.path) for e in events}
