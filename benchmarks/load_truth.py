"""What must be true under load, as pure functions: files by revision, patches between them, streams, search results.

Every file that clients change is a function of (workspace, owner, revision), so that any answer about it shows which
revision it is of, and whether it is wholly that one. Refuses to know clients and servers. Called by the load's scenes.
"""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

NOTE_LINES = 40
STATIC_FILES = 60
NEEDLES = 7
"""Each static file whose number divides by this has the needle."""


class Wrong(Exception):
    """An answer that cannot be true."""


def check(truth: bool, what: str, *facts: object) -> None:
    """Raises Wrong."""
    if not truth:
        raise Wrong(f"{what}: {', '.join(f'{fact!r:.300}' for fact in facts)}")


# --- files ------------------------------------------------------------------------------------------------------------
def note(workspace: str, owner: str, revision: int) -> str:
    """The owner's file at a revision. Each revision changes the first line and one more."""
    lines = [f"revision {revision} of {workspace}/{owner}"]
    lines += [f"line {n} äöü {_last_change(n, revision)}" for n in range(NOTE_LINES)]
    return "".join(line + "\n" for line in lines)


def _last_change(line: int, revision: int) -> int:
    """The newest revision up to `revision` that changed that line; 0 where none did."""
    since = (revision - line) % NOTE_LINES
    return max(0, revision - since)


def extra(owner: str, revision: int) -> str | None:
    """A second file that exists at odd revisions alone."""
    return f"extra {revision} of {owner}\n" if revision % 2 else None


def version(content: str) -> str:
    return "sha256:" + hashlib.sha256(content.encode()).hexdigest()


def patch(workspace: str, owner: str, revision: int) -> str:
    """From `revision` to the next."""
    new = revision + 1
    changed = new % NOTE_LINES
    lines = ["*** Begin Patch", f"*** Update File: {owner}/notes.txt", "@@"]
    lines += [f"-revision {revision} of {workspace}/{owner}", f"+revision {new} of {workspace}/{owner}", "@@"]
    before, after = (f"line {changed} äöü {_last_change(changed, at)}" for at in (revision, new))
    lines += [f"-{before}", f"+{after}"]
    if (content := extra(owner, new)) is not None:
        lines += [f"*** Add File: {owner}/extra.txt", f"+{content.rstrip()}"]
    else:
        lines.append(f"*** Delete File: {owner}/extra.txt")
    return "\n".join([*lines, "*** End Patch", ""])


@functools.cache
def static_files() -> dict[str, str]:
    """Path to content of what nobody changes."""
    files = {}
    for number in range(STATIC_FILES):
        needle = f"needle {number}\n" if number % NEEDLES == 0 else ""
        files[f"static/d{number % 5}/f{number:03}.txt"] = f"file {number}\n{needle}" + "filling\n" * number
    return files


@functools.cache
def static_paths() -> tuple[str, ...]:
    return tuple(sorted(static_files()))


@functools.cache
def needles() -> tuple[tuple[str, int, str], ...]:
    """(path, line, text) of every needle, in the order of a search."""
    return tuple((path, 2, f"needle {int(path[-7:-4])}") for path in static_paths() if int(path[-7:-4]) % NEEDLES == 0)


def revision_of(first_line: str, workspace: str, owner: str) -> int:
    """Raises Wrong for a line that no revision has."""
    words = first_line.split(" ")
    check(
        len(words) == 4 and words[0] == "revision" and words[1].isdigit() and words[3] == f"{workspace}/{owner}",
        "a note begins with a line that nobody wrote",
        first_line,
    )
    return int(words[1])


@dataclass
class Revisions:
    """`known`: certainly on disk. `tried`: the newest that anybody asked for."""

    known: int = 0
    tried: int = 0


# --- output -----------------------------------------------------------------------------------------------------------
@functools.cache
def numbers(last: int) -> bytes:
    """What `seq 1 LAST` prints."""
    return b"".join(b"%d\n" % n for n in range(1, last + 1))


WIDE_LINE = "äöü€𝄞🙂"


@functools.cache
def wide(lines: int) -> bytes:
    """Lines of characters that take two to four bytes."""
    return (WIDE_LINE + "\n").encode() * lines


@dataclass
class Transcript:
    """Checks a command's output, answer by answer, against the bytes that it writes."""

    expected: bytes
    cursor: int = 0
    lost: int = 0
    eof: bool = False
    passed: int = field(default=0)

    def take(self, answer: Mapping[str, Any]) -> None:
        """Raises Wrong where a byte is not what the command wrote there, or is missing without being marked."""
        raw = base64.b64decode(answer["chunk"]) if answer["encoding"] == "base64" else answer["chunk"].encode()
        asked, end, retained = self.cursor, answer["cursor"], answer["retained_from"]
        start = end - len(raw)
        check(answer["output_lost"] == (asked < retained), "output_lost contradicts retained_from", asked, retained)
        check(start == max(asked, retained), "a chunk begins where nobody asked", asked, start, retained)
        check(self.expected[start:end] == raw, "bytes that the command did not write", start, end, raw[:80])
        if answer["eof"]:
            check(end == len(self.expected), "an end before the last byte", end, len(self.expected))
        self.lost += start - asked
        self.passed += len(raw)
        self.cursor, self.eof = end, answer["eof"]


def check_pages(pages: Sequence[Mapping[str, Any]], limit: int) -> list[Any]:
    """All matches of pages that were asked for with `limit` and the cursor of the one before. Raises Wrong."""
    for page in pages:
        check(("next_cursor" in page) == page["truncated"], "truncated contradicts next_cursor", page["truncated"])
        check(len(page["matches"]) <= limit, "more matches than asked for", len(page["matches"]), limit)
    return [match for page in pages for match in page["matches"]]
