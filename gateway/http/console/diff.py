"""The lines of a held patch, each with its kind, in parts of bounded size. Pure.

Nothing is parsed: a line is coloured by how it begins, and shown whatever it is, since whoever decides has to see the
text as it is and not what a parser makes of it. Refuses to know: markup, files. Used by the page of a hold.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

PART_CHARS = 48 * 1024
PART_LINES = 4_000
_FILES = re.compile(r"^[^\S\n]*\*\*\* (?:(Add|Delete|Update) File|(Move to)): (.*)$", re.MULTILINE)
"""White space before a header is none of the format's business."""


@dataclass(frozen=True)
class Line:
    """`number`: of the patch's line, from 1; None where it goes on a line that is too long for one part. `kind`: file,
    mark, add, remove or same."""

    number: int | None
    kind: str
    text: str


@dataclass(frozen=True)
class Part:
    """`part` of `parts`, from 1. `added`, `removed`: lines of the whole patch."""

    lines: tuple[Line, ...]
    part: int
    parts: int
    added: int
    removed: int


def kind_of(line: str) -> str:
    if line.lstrip().startswith("*** "):
        return "file"
    return {"@": "mark", "+": "add", "-": "remove"}.get(line[:1], "same")


def files_of(patch: str, most: int) -> list[str]:
    """What the patch says it does with files: its first `most` headers in short, and how many more."""
    named = [f"{found[1] or found[2]} {found[3]}" for found in _FILES.finditer(patch)]
    more = len(named) - most
    return named[:most] + ([f"and {more} more"] if more > 0 else [])


def part_of(patch: str, part: int) -> Part:
    """`part` outside of what there is becomes the nearest. Costs what one part costs, whatever the patch holds: all of
    it is only searched and counted."""
    text = patch.removesuffix("\n")
    starts = _starts(text)
    part = min(max(part, 1), len(starts))
    start = starts[part - 1]
    end = starts[part] if part < len(starts) else len(text)
    number = text.count("\n", 0, start) + 1
    lines: list[Line] = []
    for at, whole in enumerate(text[start:end].removesuffix("\n" if end < len(text) else "").split("\n")):
        goes_on = at == 0 and start > 0 and text[start - 1] != "\n"
        kind = kind_of(_beginning(text, start)) if goes_on else kind_of(whole)
        lines.append(Line(None if goes_on else number + at, kind, whole))
    added = text.count("\n+") + text.startswith("+")
    removed = text.count("\n-") + text.startswith("-")
    return Part(tuple(lines), part, len(starts), added, removed)


def _starts(text: str) -> list[int]:
    """Where the parts begin: after a line end, or in the middle of a line that is too long."""
    starts = [0]
    left = text.count("\n")
    while len(text) - starts[-1] > PART_CHARS or left > PART_LINES:
        most = text[starts[-1] : starts[-1] + PART_CHARS]
        lines = most.split("\n", PART_LINES)
        left -= len(lines) - 1
        starts.append(starts[-1] + len(most) - (len(lines[-1]) if len(lines) > 1 else 0))
    return starts


def _beginning(text: str, at: int) -> str:
    """The first characters of the line that `at` is in."""
    start = text.rfind("\n", 0, at) + 1
    return text[start : start + 64]
