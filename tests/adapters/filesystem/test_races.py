"""Names exchanged under the root while files are read and found: no byte from outside comes back."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import threading

import pytest

from runner.api import ErrorCode, RunnerError
from tests.adapters.filesystem.conftest import Files
from tests.adapters.filesystem.swapper import PATHS, SECRET, make_bait, naive_read, swapping

ROUNDS = 600
EXPECTED = {ErrorCode.SYMLINK_REJECTED, ErrorCode.FILE_NOT_FOUND, ErrorCode.PATH_NOT_DIRECTORY}


@pytest.mark.covers("FS-1")
def test_no_byte_from_outside_is_read_while_directories_and_links_are_exchanged(files: Files) -> None:
    make_bait(files.root, files.outside)
    read = 0
    refusals = set()
    with swapping(files.root):
        for path in itertools.islice(itertools.cycle(PATHS), ROUNDS * len(PATHS)):
            try:
                got = files.read(path)
            except RunnerError as error:
                refusals.add(error.code)
            else:
                assert got.content == "needle inside\n"
                read += 1
    assert read > 0
    assert ErrorCode.SYMLINK_REJECTED in refusals
    assert refusals <= EXPECTED


@pytest.mark.covers("FS-1", "FS-4")
def test_no_name_from_outside_is_found_while_directories_and_links_are_exchanged(files: Files) -> None:
    make_bait(files.root, files.outside)
    (files.outside / "only-outside.txt").touch()
    seen: set[str] = set()
    with swapping(files.root):
        for _ in range(ROUNDS):
            page = files.find("**/*.txt")
            seen.update(match.path for match in page.matches)
            assert all(match.size in (None, len("needle inside\n")) for match in page.matches)
    assert "real/file.txt" in seen
    assert not [path for path in seen if "only-outside" in path]


@pytest.mark.covers("FS-1")
def test_a_reader_that_checks_first_and_opens_then_does_leak(files: Files) -> None:
    """The positive control: the same attacker on the same tree gets a byte out of an ordinary reader."""
    make_bait(files.root, files.outside)
    leaks = 0
    with swapping(files.root):
        for path in itertools.islice(itertools.cycle(PATHS), 400_000):
            with contextlib.suppress(OSError):
                leaks += SECRET in naive_read(files.root, path)
            if leaks:
                break
    assert leaks


@pytest.mark.covers("FS-4", "FS-5")
def test_what_stays_is_found_exactly_once_while_all_around_it_comes_and_goes(files: Files) -> None:
    stable = [f"{folder}/s{number}" for folder in ("a", "a/b", "m", "z/y") for number in range(10)]
    for path in stable:
        files.put(path)
    done = threading.Event()

    def churn() -> None:
        for number in itertools.count():
            folder = files.root / ("a", "m/new", "z", "a/b")[number % 4]
            folder.mkdir(exist_ok=True)
            (folder / f"t{number % 7}").touch()
            (folder / f"t{(number + 3) % 7}").unlink(missing_ok=True)
            if number % 5 == 0:
                shutil.rmtree(files.root / "m/new", ignore_errors=True)
            if done.is_set():
                return

    churner = threading.Thread(target=churn)
    churner.start()
    try:
        for _ in range(30):
            found: list[str] = []
            cursor = None
            while True:
                page = files.find("**/s*", limit=7, cursor=cursor)
                found += [match.path for match in page.matches]
                cursor = page.next_cursor
                if cursor is None:
                    break
            assert found == sorted(stable)
    finally:
        done.set()
        churner.join(10)
