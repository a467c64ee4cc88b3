"""Finding paths: order, pages, bounds, and what a walk meets on a real disk."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from adapters.filesystem import tree
from adapters.filesystem.beneath import Method, choose_opener
from adapters.filesystem.cursor import Place, decode_cursor
from adapters.filesystem.glob import Glob
from adapters.filesystem.openat_filesystem import OpenatFileSystem
from runner.api import ErrorCode, FindFiles, FoundPath, RunnerError, WorkspaceRef
from tests.adapters.filesystem.conftest import Files


def pages(files: Files, pattern: str, limit: int, adapter: OpenatFileSystem | None = None) -> list[list[str]]:
    """All pages of a find, following cursors; bounded."""
    found: list[list[str]] = []
    cursor = None
    for _ in range(500):
        request = FindFiles(workspace=files.workspace, pattern=pattern, limit=limit, cursor=cursor)
        page = (adapter or files.adapter).find_files(request)
        assert len(page.matches) <= limit
        assert page.truncated == (page.next_cursor is not None)
        found.append([match.path for match in page.matches])
        cursor = page.next_cursor
        if cursor is None:
            return found
    raise AssertionError("the cursor does not end")


def joined(found: list[list[str]]) -> list[str]:
    return [path for page in found for path in page]


def everything_under(root: Path) -> list[str]:
    """The reference: every path below a root, in plain string order."""
    found = []
    for folder, directories, names in os.walk(root):
        found += [os.path.relpath(os.path.join(folder, name), root) for name in directories + names]
    return sorted(found)


@pytest.mark.covers("FS-4")
def test_matches_come_sorted_with_types_and_sizes_and_links_are_not_followed(files: Files) -> None:
    files.put("b.txt", "12345")
    files.put("a/x.txt", "1")
    files.put(".hidden/y.txt", "")
    (files.root / "link.txt").symlink_to("b.txt")
    (files.root / "linked").symlink_to(files.outside)
    os.mkfifo(files.root / "fifo")
    assert files.find("**").matches == (
        FoundPath(path=".hidden", type="directory"),
        FoundPath(path=".hidden/y.txt", type="file", size=0),
        FoundPath(path="a", type="directory"),
        FoundPath(path="a/x.txt", type="file", size=1),
        FoundPath(path="b.txt", type="file", size=5),
        FoundPath(path="fifo", type="other"),
        FoundPath(path="link.txt", type="symlink"),
        FoundPath(path="linked", type="symlink"),
    )
    assert files.find_paths("linked/*") == []
    assert files.find_paths("**/*.txt") == [".hidden/y.txt", "a/x.txt", "b.txt", "link.txt"]


@pytest.mark.covers("FS-4")
def test_order_is_that_of_whole_paths_not_of_names(files: Files) -> None:
    for path in ("a/z", "a-b", "a.txt", "a0", "a/b/c", "a b", "A", "é/x", "é.txt"):
        files.put(path)
    got = files.find_paths("**")
    assert got == sorted(got) == everything_under(files.root)
    assert got.index("a.txt") < got.index("a/z")


@pytest.mark.covers("FS-5")
@pytest.mark.parametrize("limit", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("max_entries", [1, 4, 100_000])
def test_pages_give_everything_once_whatever_ends_them(
    files: Files, method: Method, limit: int, max_entries: int
) -> None:
    for path in ("a/z", "a-b", "a.txt", "a/b/c", "a/b/d", "b/c/d/e/f", "c", "d/x", "d/y", "d.d/q"):
        files.put(path)
    adapter = OpenatFileSystem(method=method, max_entries=max_entries)
    try:
        got = pages(files, "**", limit, adapter)
    finally:
        adapter.close()
    assert joined(got) == everything_under(files.root)
    if limit >= 100 and max_entries >= 100:
        assert len(got) == 1


_TREE = st.lists(
    st.lists(st.sampled_from(["a", "b", "a.", "a-", "é", ".h"]), min_size=1, max_size=4).map("/".join), max_size=12
)


@pytest.mark.covers("FS-4", "FS-5")
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(paths=_TREE, limit=st.integers(1, 5), max_entries=st.integers(1, 8))
def test_any_tree_is_found_whole_in_pages_of_any_size(
    tmp_path_factory: pytest.TempPathFactory, paths: list[str], limit: int, max_entries: int
) -> None:
    root = tmp_path_factory.mktemp("tree").resolve()
    for path in paths:
        (root / path).mkdir(parents=True, exist_ok=True)
    adapter = OpenatFileSystem(max_entries=max_entries)
    try:
        assert joined(pages(Files(adapter, root, root), "**", limit, adapter)) == everything_under(root)
    finally:
        adapter.close()


@pytest.mark.covers("FS-4", "FS-5")
def test_a_walk_whose_time_is_up_at_any_moment_gets_on_and_misses_nothing(tmp_path: Path) -> None:
    for folder in ("", "a/", "a/b/", "c/", "d/e/"):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        for number in range(150):  # more than the walk reads between two looks at the clock
            (tmp_path / folder / f"{number:03}").touch()
    root_fd = os.open(tmp_path, os.O_PATH)
    try:
        for seed in range(20):
            assert walked_in_pages(root_fd, Random(seed)) == everything_under(tmp_path)
    finally:
        os.close(root_fd)


def walked_in_pages(root_fd: int, random: Random) -> list[str]:
    """All paths, by walks whose time is up at random moments; bounded."""

    def expired() -> bool:
        return random.random() < 0.4

    found: list[str] = []
    place: Place | None = None
    for _ in range(50):
        walk = tree.TreeWalk(choose_opener(), root_fd, Glob("**"), place, 10**6, expired=expired, overdue=lambda: False)
        found += [entry.path for entry in walk]
        if not walk.exhausted:
            return found
        assert walk.place != place
        place = walk.place
    raise AssertionError("the walks do not get on")


@pytest.mark.covers("FS-4")
def test_a_directory_that_takes_too_long_alone_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "big").mkdir()
    for number in range(150):
        (tmp_path / "big" / str(number)).touch()
    root_fd = os.open(tmp_path, os.O_PATH)
    try:
        start = Place("big/1", "after")
        walk = tree.TreeWalk(
            choose_opener(), root_fd, Glob("**"), start, 10**6, expired=lambda: False, overdue=lambda: True
        )
        with pytest.raises(RunnerError, match="'big' cannot be listed in time") as caught:
            list(walk)
        assert caught.value.code is ErrorCode.FILE_OPERATION_FAILED
    finally:
        os.close(root_fd)


@pytest.mark.covers("FS-5")
def test_a_cursor_stays_good_while_files_come_and_go(files: Files) -> None:
    for name in "bdfh":
        files.put(f"{name}/x")
    first = files.find("*/x", limit=2)
    assert [match.path for match in first.matches] == ["b/x", "d/x"]
    for path in ("a/x", "e/x"):
        files.put(path)
    for name in "df":
        (files.root / name / "x").unlink()
        (files.root / name).rmdir()
    rest = files.find("*/x", cursor=first.next_cursor)
    assert [match.path for match in rest.matches] == ["e/x", "h/x"]


@pytest.mark.covers("FS-5")
@pytest.mark.parametrize("cursor", ["", "x", "////", "YWZ0ZXI6MDo", "é", "a" * 100_000, "YmFkOjA6YQ"])
def test_a_foreign_cursor_is_an_invalid_argument(files: Files, cursor: str) -> None:
    with pytest.raises(RunnerError) as caught:
        files.find("**", cursor=cursor)
    assert caught.value.code is ErrorCode.INVALID_ARGUMENT


@pytest.mark.covers("FS-1", "FS-5")
def test_a_forged_cursor_gives_no_access_outside(files: Files) -> None:
    files.put("z", "")
    (files.root / "linked").symlink_to(files.outside)
    for path in ("../outside/a", "/etc/a", "linked/a"):
        page = files.find("**", cursor=Place(path, "after").encode())
        assert {match.path for match in page.matches} <= {"z", "linked"}


@given(st.text(max_size=20).filter(bool), st.sampled_from(["after", "before", "past", "within"]), st.integers(0, 10**9))
def test_a_place_survives_its_encoding(path: str, edge: str, line: int) -> None:
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        return
    place = Place(path, edge, line)  # type: ignore[arg-type]
    assert decode_cursor(place.encode()) == place


@pytest.mark.covers("FS-4")
def test_names_that_are_not_utf8_are_shown_and_marked_and_paged_over(files: Files) -> None:
    raw = os.fsencode(files.root)
    for name in (b"a", b"b\xff", b"b\xfe", b"c"):
        with open(raw + b"/" + name, "wb"):
            pass
    os.mkdir(raw + b"/d\xff")
    with open(raw + b"/d\xff/e", "wb"):
        pass
    got = files.find("**").matches
    assert [(match.path, match.addressable) for match in got] == [
        ("a", None),
        ("b\ufffd", False),
        ("b\ufffd", False),
        ("c", None),
        ("d\ufffd", False),
        ("d\ufffd/e", False),
    ]
    assert joined(pages(files, "**", 1)) == [match.path for match in got]
    assert len(files.find("b?").matches) == 2


@pytest.mark.covers("FS-4", "FS-5")
def test_a_directory_with_more_entries_than_are_held_is_paged_whole(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree, "DIRECTORY_KEEP", 10)
    for number in range(101):
        files.put(f"many/{number:03d}")
    got = pages(files, "many/*", 1000)
    assert joined(got) == [f"many/{number:03d}" for number in range(101)]
    assert len(got) > 2


@pytest.mark.covers("FS-4")
def test_a_tree_deeper_than_a_path_may_be_long_is_walked_to_that_depth_and_says_so(files: Files) -> None:
    here = os.open(files.root, os.O_RDONLY)
    for _ in range(30):
        os.mkdir("d" * 200, dir_fd=here)
        inner = os.open("d" * 200, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
    page = files.find("**")
    assert not page.truncated
    if page.unreadable is None:  # the walk opens one component at a time, so length is no matter
        assert len(page.matches) == 30
    else:
        assert len(page.matches) == 21
        assert len(page.unreadable) == 1


@pytest.mark.covers("FS-4")
def test_a_directory_without_permission_is_listed_and_named_as_unreadable(
    as_ordinary_user: Callable[..., Any],
) -> None:
    def body() -> tuple[list[str], tuple[str, ...] | None]:
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder).resolve()
            adapter = OpenatFileSystem()
            files = Files(adapter, root, root)
            files.put("closed/x", "")
            files.put("open/x", "")
            (root / "closed").chmod(0)
            page = files.find("**")
            (root / "closed").chmod(0o700)
            adapter.close()
            return [match.path for match in page.matches], page.unreadable

    assert as_ordinary_user(body) == (["closed", "open", "open/x"], ("closed",))


@pytest.mark.covers("FS-4")
def test_a_walk_enters_only_directories_that_the_pattern_can_reach(tmp_path: Path) -> None:
    for name in ("src/a.py", "node_modules/x/y.py"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    # One entry is all the bound allows beyond the root: entering node_modules would end the page.
    adapter = OpenatFileSystem(max_entries=3)
    try:
        page = adapter.find_files(
            FindFiles(workspace=WorkspaceRef(workspace_id="w", root=str(tmp_path.resolve())), pattern="src/*.py")
        )
    finally:
        adapter.close()
    assert [match.path for match in page.matches] == ["src/a.py"]
    assert not page.truncated
