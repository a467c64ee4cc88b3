"""Searching contents: what is found and how it is shown."""

from __future__ import annotations

import asyncio
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from adapters.ripgrep.batches import SMALL_BYTES
from adapters.ripgrep.output import MAX_PAGE_BYTES, MAX_TEXT_BYTES
from adapters.ripgrep.search import RipgrepSearch
from runner.api import MAX_FRAME_BYTES, ErrorCode, GrepFiles, GrepMatch, RunnerError, WorkspaceRef
from runner.wire import encode_frame
from tests.adapters.ripgrep.conftest import MakeSearch, Searched

FILLER = "filler\n" * (SMALL_BYTES // 7 + 1)
"""Put after a file's content, it makes the file large: then it goes to the program as a descriptor, not in a stream."""
LARGE = pytest.mark.parametrize("filler", ["", FILLER], ids=["small", "large"])


# --- what is found ----------------------------------------------------------------------------------------------------
@pytest.mark.covers("FS-6")
@LARGE
async def test_a_match_has_path_line_text_and_context(searched: Searched, filler: str) -> None:
    searched.put("a.txt", "one\ntwo\nthree needle\nfour\nfive\n" + filler)
    searched.put("b.txt", "needle first\nsecond\n" + filler)
    searched.put("c.txt", f"{filler}before\nlast needle")
    last = filler.count("\n") + 2
    page = await searched.grep("ne+dle", context=1)
    assert page.matches == (
        GrepMatch(path="a.txt", line=3, text="three needle", before=("two",), after=("four",)),
        GrepMatch(path="b.txt", line=1, text="needle first", before=(), after=("second",)),
        GrepMatch(path="c.txt", line=last, text="last needle", before=("before",), after=()),
    )
    assert not page.truncated
    assert [match.before for match in (await searched.grep("ne+dle")).matches] == [None] * 3


@pytest.mark.covers("FS-6")
@LARGE
async def test_contexts_of_near_matches_overlap_and_are_each_whole(searched: Searched, filler: str) -> None:
    searched.put("a", "1\n2 x\n3\n4 x\n5 x\n6\n7\n" + filler)
    page = await searched.grep("x", context=2)
    assert [(match.line, match.before, match.after) for match in page.matches] == [
        (2, ("1",), ("3", "4 x")),
        (4, ("2 x", "3"), ("5 x", "6")),
        (5, ("3", "4 x"), ("6", "7")),
    ]


@pytest.mark.covers("FS-6")
@LARGE
async def test_context_and_matches_never_cross_from_one_file_to_the_next(searched: Searched, filler: str) -> None:
    searched.put("a", filler + "end of a, no line end")
    searched.put("b", "")
    searched.put("c", "needle" if not filler else "needle\n" + filler)
    page = await searched.grep("needle", context=3)
    (match,) = page.matches
    assert (match.path, match.line, match.before) == ("c", 1, ())
    assert await searched.hits("^$", glob="[ab]") == []
    assert await searched.hits("aneedle") == []


@pytest.mark.covers("FS-6")
async def test_glob_and_case_narrow_the_search(searched: Searched) -> None:
    searched.put("a.txt", "needle\n")
    searched.put("sub/deep/d.py", "needle = 2\n")
    searched.put("sub/.hidden.py", "needle\n")
    assert await searched.hits("needle") == [("a.txt", 1), ("sub/.hidden.py", 1), ("sub/deep/d.py", 1)]
    assert await searched.hits("NEEDLE") == []
    assert await searched.hits("NEEDLE", ignore_case=True, glob="**/*.py") == [
        ("sub/.hidden.py", 1),
        ("sub/deep/d.py", 1),
    ]
    assert await searched.hits("needle", glob="sub/*.py") == [("sub/.hidden.py", 1)]


@pytest.mark.covers("FS-1", "FS-6")
async def test_links_and_special_files_are_not_searched(searched: Searched) -> None:
    searched.put("a.txt", "needle\n")
    (searched.root / "link.txt").symlink_to("a.txt")
    (searched.root / "linked").symlink_to(searched.outside)
    (searched.root / "secret.txt").symlink_to(searched.outside / "secret.txt")
    os.mkfifo(searched.root / "fifo")
    assert await searched.hits("needle") == [("a.txt", 1)]


@pytest.mark.covers("FS-6")
@LARGE
@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"x\r\nneedle\r\n", "needle"),
        (b"\xef\xbb\xbfneedle\n", "needle"),
        (b"caf\xe9 needle\n", "caf\ufffd needle"),
        ("née needle 😀\n".encode(), "née needle 😀"),
    ],
)
async def test_lines_are_shown_without_their_ending_and_bytes_that_are_not_utf8_as_fffd(
    searched: Searched, filler: str, content: bytes, text: str
) -> None:
    searched.put("a", content + filler.encode())
    page = await searched.grep("needle$|^needle|needle 😀" if "😀" in text else "needle$")
    assert [match.text for match in page.matches] == [text]


@pytest.mark.covers("FS-6")
@LARGE
async def test_a_file_marked_as_utf16_is_searched_as_text(searched: Searched, filler: str) -> None:
    searched.put("a", ("one\nneedle\n" + filler).encode("utf-16"))
    assert await searched.hits("^needle$") == [("a", 2)]


@pytest.mark.covers("FS-6")
@LARGE
async def test_a_binary_file_is_skipped(searched: Searched, filler: str) -> None:
    searched.put("bin", b"needle\n\0\n" + filler.encode())
    searched.put("text", "needle\n" + filler)
    assert await searched.hits("needle") == [("text", 1)]


@pytest.mark.covers("FS-6")
async def test_a_name_that_is_not_utf8_is_shown_and_marked(searched: Searched) -> None:
    searched.put("a", "needle\n")
    os.rename(searched.root / "a", os.fsencode(searched.root) + b"/a\xff")
    (match,) = (await searched.grep("needle")).matches
    assert (match.path, match.addressable) == ("a\ufffd", False)


@pytest.mark.covers("FS-6")
@LARGE
@pytest.mark.parametrize("unit", ["x", "é", "😀"])
async def test_a_long_line_is_cut_between_characters_and_marked(searched: Searched, filler: str, unit: str) -> None:
    searched.put("a", f"z{unit * 9000} needle\n" + filler)
    (match,) = (await searched.grep("needle")).matches
    assert match.text.endswith("…")
    assert f"z{unit * 9000}".startswith(match.text[:-1])
    assert MAX_TEXT_BYTES - 4 < len(match.text[:-1].encode()) <= MAX_TEXT_BYTES


@pytest.mark.covers("FS-6")
@LARGE
async def test_a_line_of_exactly_the_bound_is_whole(searched: Searched, filler: str) -> None:
    searched.put("a", "y" * MAX_TEXT_BYTES + "\n" + filler)
    (match,) = (await searched.grep("y")).matches
    assert match.text == "y" * MAX_TEXT_BYTES


# --- what is refused --------------------------------------------------------------------------------------------------
@pytest.mark.covers("FS-6")
@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("a(", "unclosed group"),
        ("[z-a]", "range"),
        ("a\nb", "search for one of the lines"),
        (r"a\nb", "search for one of the lines"),
        ("a\0b", "NUL"),
        ("\ud800", "surrogate"),
        ("(?=x)", "look-around"),
        ("x" * 40_000, "longer"),
    ],
)
async def test_a_pattern_that_cannot_be_searched_for_is_refused_with_the_reason(
    searched: Searched, pattern: str, words: str
) -> None:
    with pytest.raises(RunnerError, match=re.escape(words)) as caught:
        await searched.grep(pattern)
    assert caught.value.code is ErrorCode.INVALID_ARGUMENT
    assert caught.value.details["argument"] == "pattern"


@pytest.mark.covers("FS-6")
@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"glob": "../*"}, ErrorCode.PATH_ESCAPE),
        ({"glob": "[a"}, ErrorCode.INVALID_ARGUMENT),
        ({"cursor": "x"}, ErrorCode.INVALID_ARGUMENT),
    ],
)
async def test_a_bad_glob_or_cursor_is_refused(searched: Searched, fields: dict[str, str], code: ErrorCode) -> None:
    with pytest.raises(RunnerError) as caught:
        await searched.grep("a", **fields)
    assert caught.value.code is code


@pytest.mark.covers("FS-6")
async def test_a_pattern_that_looks_like_an_option_is_a_pattern(searched: Searched) -> None:
    searched.put("a", "--files\n-e\n")
    assert await searched.hits("--files") == [("a", 1)]
    assert await searched.hits("-e") == [("a", 2)]


# --- pages ------------------------------------------------------------------------------------------------------------
@pytest.mark.covers("FS-6")
@pytest.mark.parametrize("limit", [1, 2, 5, 1000])
@pytest.mark.parametrize("files_at_once", [1, 3, 1000])
@pytest.mark.parametrize("max_entries", [2, 10_000])
async def test_pages_give_every_match_once_in_order_whatever_ends_them(
    searched: Searched, make_search: MakeSearch, limit: int, files_at_once: int, max_entries: int
) -> None:
    expected = []
    for path in ("a", "b/c", "b/d/e", "b.txt", "f/g", "h"):
        large = path in ("a", "b/d/e")
        lines = [f"needle {number}" if number % 3 else "other" for number in range(9)]
        searched.put(path, "\n".join(lines) + "\n" + (FILLER if large else ""))
        expected += [(path, number + 1) for number in range(9) if number % 3]
    searched.search = make_search(max_batch_files=files_at_once, max_entries=max_entries)
    pages = await searched.pages("needle", limit=limit, context=1)
    assert all(len(page.matches) <= limit for page in pages)
    got = [match for page in pages for match in page.matches]
    assert [(match.path, match.line) for match in got] == sorted(expected)
    whole = (await searched.grep("needle", limit=1000, context=1)).matches if max_entries > 2 else got
    assert tuple(got) == tuple(whole)


@pytest.mark.covers("FS-6")
@pytest.mark.parametrize("lines_each", [12, 600], ids=["small", "large"])
async def test_a_page_is_bounded_in_bytes_too(searched: Searched, lines_each: int) -> None:
    line = "x" * MAX_TEXT_BYTES
    expected = []
    for number in range(1200 // lines_each):
        searched.put(f"f{number:03d}", f"{line}\n" * lines_each)
        expected += [(f"f{number:03d}", at) for at in range(1, lines_each + 1)]
    pages = await searched.pages("x", limit=1000, context=2)
    assert len(pages) > 2
    assert [(match.path, match.line) for page in pages for match in page.matches] == expected
    assert all(len(page.model_dump_json()) < MAX_PAGE_BYTES * 2 for page in pages)


@pytest.mark.covers("FS-6", "UDS-1")
async def test_a_page_fits_a_frame_however_its_paths_and_lines_are_written_out(searched: Searched) -> None:
    """JSON writes twelve bytes for one character of such a path, and six for one of such a line."""
    folder = "/".join(["\U0001f600" * 60] * 16)
    searched.put(f"{folder}/f", ("\x01" * 1000 + "\n") * 1000)
    pages = await searched.pages("\\x01", limit=1000)
    assert sum(len(page.matches) for page in pages) == 1000
    for page in pages:
        frame = encode_frame({"id": 1, "result": page.model_dump(mode="json", exclude_none=True)})
        assert len(frame) < MAX_FRAME_BYTES


@pytest.mark.covers("FS-6")
async def test_a_refusal_of_a_long_pattern_is_short(searched: Searched) -> None:
    with pytest.raises(RunnerError, match="unclosed group") as caught:
        await searched.grep("(" + "x" * 20_000)
    assert len(caught.value.message) < 2000


@pytest.mark.covers("FS-6")
async def test_a_cursor_stays_good_when_its_file_is_gone(searched: Searched) -> None:
    for name in "abc":
        searched.put(name, "needle\nneedle\n")
    first = await searched.grep("needle", limit=3)
    (searched.root / "b").unlink()
    rest = await searched.grep("needle", cursor=first.next_cursor)
    assert [(match.path, match.line) for match in rest.matches] == [("c", 1), ("c", 2)]


@pytest.mark.covers("FS-6")
@pytest.mark.parametrize("seed", range(12))
async def test_pages_give_every_match_of_unchanged_files_once_whatever_becomes_of_the_others(
    searched: Searched, seed: int
) -> None:
    random = Random(seed)
    kept = {f"{n}": random.randrange(4) for n in range(0, 30, 2)}
    others = {f"{n}": random.randrange(9) for n in range(1, 30, 2)}
    for name, lines in (kept | others).items():
        searched.put(name, "needle\n" * lines + random.choice(["", "", FILLER]))
    found: list[tuple[str, int]] = []
    cursor = None
    for _ in range(200):
        page = await searched.grep("needle", cursor=cursor, limit=random.randint(1, 9))
        found += [(match.path, match.line) for match in page.matches if match.path in kept]
        cursor = page.next_cursor
        if cursor is None:
            break
        for name in others:
            searched.put(name, "needle\n" * random.randrange(9) + random.choice(["", FILLER]))
    assert cursor is None
    assert found == sorted((name, line) for name, lines in kept.items() for line in range(1, lines + 1))


@pytest.mark.covers("FS-6")
async def test_what_is_found_agrees_with_a_plain_reading_of_the_tree(searched: Searched, repository: Path) -> None:
    root = repository / "runner"
    request = GrepFiles(workspace=WorkspaceRef(workspace_id="r", root=str(root)), pattern=r"def \w+\(", limit=1000)
    page = await searched.search.grep_files(request)
    assert [(match.path, match.line, match.text) for match in page.matches] == plainly_read(root, r"def \w+\(")


def plainly_read(root: Path, pattern: str) -> list[tuple[str, int, str]]:
    """The reference: every line of every text file that Python's own expression is found in."""
    found = []
    for path in root.rglob("*"):
        data = path.read_bytes() if path.is_file() else b""
        if b"\0" not in data:
            lines = enumerate(data.decode("utf-8", "replace").split("\n"), 1)
            name = str(path.relative_to(root))
            found += [(name, number, line) for number, line in lines if re.search(pattern, line)]
    return sorted(found)


# --- what cannot be read ----------------------------------------------------------------------------------------------
@pytest.mark.covers("FS-6")
def test_files_without_permission_are_named_and_the_rest_is_searched(
    as_ordinary_user: Callable[..., Any], rg: str
) -> None:
    def body() -> tuple[list[str], tuple[str, ...] | None]:
        async def run(root: Path) -> tuple[list[str], tuple[str, ...] | None]:
            search = RipgrepSearch(program=rg)
            request = GrepFiles(workspace=WorkspaceRef(workspace_id="w", root=str(root)), pattern="needle")
            page = await search.grep_files(request)
            await search.close()
            return [match.path for match in page.matches], page.unreadable

        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder).resolve()
            for name in ("closed", "dir/x", "open"):
                (root / name).parent.mkdir(exist_ok=True)
                (root / name).write_text("needle\n")
            (root / "closed").chmod(0)
            (root / "dir").chmod(0)
            try:
                return asyncio.run(run(root))
            finally:
                (root / "dir").chmod(0o700)

    assert as_ordinary_user(body) == (["open"], ("dir", "closed"))
