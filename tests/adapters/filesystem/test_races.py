"""Names exchanged under the root while files are read and found: no byte from outside comes back."""

from __future__ import annotations

import contextlib
import itertools

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
