"""The lines of a held patch, each with its kind, in parts of bounded size. Pure.

Nothing is parsed: a line is coloured by how it begins, and shown whatever it is, since whoever decides has to see the
text as it is and not what a parser makes of it. Refuses to know: markup, files. Used by the page of a hold.
"""

from __future__ import annotations

from dataclasses import dataclass

PART_LINES = 2_000
PART_CHARS = 128 * 1024


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
    """What the patch says it does with files: its first `most` headers, without the stars, and how many more."""
    starts = ("*** Add File: ", "*** Delete File: ", "*** Update File: ")
    named = [line[4:].replace(" File: ", " ") for line in patch.split("\n") if line.startswith(starts)]
    more = len(named) - most
    return named[:most] + ([f"and {more} more"] if more > 0 else [])


def part_of(patch: str, part: int) -> Part:
    """`part` outside of what there is becomes the nearest."""
    starts: list[list[Line]] = [[]]
    chars = added = removed = 0
    for number, whole in enumerate(patch.removesuffix("\n").split("\n"), 1):
        kind = kind_of(whole)
        added += kind == "add"
        removed += kind == "remove"
        for at in range(0, max(len(whole), 1), PART_CHARS):
            text = whole[at : at + PART_CHARS]
            if starts[-1] and (len(starts[-1]) >= PART_LINES or chars + len(text) > PART_CHARS):
                starts.append([])
                chars = 0
            starts[-1].append(Line(None if at else number, kind, text))
            chars += len(text)
    part = min(max(part, 1), len(starts))
    return Part(tuple(starts[part - 1]), part, len(starts), added, removed)
