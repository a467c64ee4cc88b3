"""What a refusal by the matcher tells the writer of the next patch: section 9 of the format's reference.

Quotes from the patch and the file are short and valid Unicode, and stand in the message alone, never in the details.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from adapters.v4a.errors import InvalidPatch
from adapters.v4a.text import PASSES, shorten

if TYPE_CHECKING:
    from adapters.v4a.matcher import Matcher

_RANGES = re.compile(r"-\d+(,\d+)? \+\d+(,\d+)?( @@.*)?", re.ASCII | re.DOTALL)
_READER_NUMBER = re.compile(r"\s*\d+[\t:]")


def context_not_found(matcher: Matcher, header: str, chunk: int, path: str, start: int) -> InvalidPatch:
    """`start`: index of the line from which no line of the file equals `header`."""
    found = "unified_diff" if _RANGES.fullmatch(header) else None
    advice = "A header is a whole line of the file, and is looked for below the chunks before it."
    if found:
        advice = "Line ranges of a unified diff are not used here: write `@@` alone, or `@@ ` and a whole line."
    elif start:
        advice += f" The search began at line {start + 1}."
    return InvalidPatch(
        "context_not_found",
        f"failed to find context `{shorten(header)}` in {shorten(path)} (chunk {chunk}). {advice}",
        path=path,
        chunk=chunk,
        found=found,
    )


def lines_not_found(matcher: Matcher, old: list[str], chunk: int, path: str) -> InvalidPatch:
    """Says where the longest beginning of `old` is, and what differs there."""
    hints = [hint for hint in (_reader_numbers(old), _earlier(matcher, old), _closest(matcher, old)) if hint]
    quoted = ", ".join(f"`{shorten(line, 60)}`" for line in old[:3]) + (", …" if len(old) > 3 else "")
    return InvalidPatch(
        "lines_not_found",
        f"failed to find expected lines in {shorten(path)} (chunk {chunk}, {len(old)} lines: {quoted}). "
        + " ".join(hints),
        path=path,
        chunk=chunk,
    )


def _reader_numbers(old: list[str]) -> str | None:
    if not all(_READER_NUMBER.match(line) for line in old):
        return None
    return "Every line begins with a number: the line numbers of a reader were copied. Leave them out."


def _earlier(matcher: Matcher, old: list[str]) -> str | None:
    block = matcher.block(old)
    hit = matcher.search(block, 0)
    if hit is None:
        return None
    where = f"These lines stand at line {hit.line + 1}"
    if hit.line >= matcher.cursor:
        return f"{where}, but not where the header or the end-of-file mark asks for them."
    return (
        f"{where}, before the end of the chunk above (line {matcher.cursor}): chunks must be in file order, "
        "and may not repeat the context of the one before."
    )


def _closest(matcher: Matcher, old: list[str]) -> str | None:
    """By the loosest pass: the longest beginning of OLD that is in the file, by bisection over its length."""
    index, lines = len(PASSES) - 1, matcher.document.lines
    known, place, unknown = 0, -1, len(old) + 1
    while unknown - known > 1:
        length = (known + unknown) // 2
        line = matcher.block(old[:length]).find(index, 0, lines)
        if line >= 0:
            known, place = length, line
        else:
            unknown = length
    if known == len(old):
        return None
    expected = shorten(old[known])
    if known == 0:
        hit = next((n for n, text in enumerate(old) if matcher.block([text]).find(index, 0, lines) >= 0), None)
        if hit is None:
            return f"Its first line, `{expected}`, is nowhere in the file, nor is any other. Read the file again."
        line = matcher.block([old[hit]]).find(index, 0, lines)
        return (
            f"Its first line, `{expected}`, is nowhere in the file; line {hit + 1} of the chunk's old lines, "
            f"`{shorten(old[hit])}`, stands at line {line + 1}."
        )
    return f"{_matched(known)} at line {place + 1}; then line {place + known + 1} differs: expected `{expected}`, " + (
        f"the file has `{shorten(matcher.document.line_text(place + known))}`."
        if place + known < lines
        else "the file ends there."
    )


def _matched(count: int) -> str:
    return "The first line is found" if count == 1 else f"The first {count} lines are found"
