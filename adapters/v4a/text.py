"""White space, line keys and quoting: the small text rules that every other module of the engine shares.

Source: section "Words" and the table of passes of the format's reference. Python's own `str.strip()` and
`splitlines()` differ from both, so neither is used without an argument.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator
from functools import cache
from itertools import groupby

BOM = "\ufeff"
WHITE_SPACE = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))
"""The Unicode property White_Space. U+001C to U+001F and U+FEFF are not in it."""

_PUNCTUATION = {
    **dict.fromkeys([*range(0x2010, 0x2016), 0x2212], "-"),
    **dict.fromkeys(range(0x2018, 0x201C), "'"),
    **dict.fromkeys(range(0x201C, 0x2020), '"'),
    **dict.fromkeys([0xA0, *range(0x2002, 0x200B), 0x202F, 0x205F, 0x3000], " "),
}
_LONG_RUN = 64
LONG_LINE = 512
"""Characters up to which a line of nothing but combining marks is still cheap to order by insertion."""
_PIECE_CHARS = 64 * 1024


def trim(text: str) -> str:
    """Without white space on both sides."""
    return text.strip(WHITE_SPACE)


def trim_end(text: str) -> str:
    """Without white space on the right."""
    return text.rstrip(WHITE_SPACE)


def lines_of(text: str) -> Iterator[str]:
    """The parts between LFs, in order, holding only a piece of them in memory at a time."""
    start = 0
    while (cut := text.find("\n", start + _PIECE_CHARS)) >= 0:
        yield from text[start:cut].split("\n")
        start = cut + 1
    yield from text[start:].split("\n")


def shorten(text: str, limit: int = 100) -> str:
    """`text` for a message: at most `limit` characters, valid Unicode, no control characters."""
    cut = text[: limit + 1]
    clean = "".join([char if char.isprintable() else _escaped(char) for char in cut])
    return clean if len(clean) <= limit and len(cut) <= limit else clean[: limit - 1] + "…"


def _escaped(char: str) -> str:
    # A surrogate stands for a byte that is not UTF-8 and may not leave in a message.
    return "\ufffd" if "\ud800" <= char <= "\udfff" else f"\\u{ord(char):04x}"


# --- passes -----------------------------------------------------------------------------------------------------------
KeyFunction = Callable[[list[str]], list[str]]


def _exact(lines: list[str]) -> list[str]:
    return lines


def _trim_end(lines: list[str]) -> list[str]:
    space = WHITE_SPACE
    return [line.rstrip(space) for line in lines]


def _trim(lines: list[str]) -> list[str]:
    space = WHITE_SPACE
    return [line.strip(space) for line in lines]


def _punctuation(lines: list[str]) -> list[str]:
    return [line if line.isascii() else _mapped(line) for line in _trim(lines)]


def _nfc(lines: list[str]) -> list[str]:
    return [line if line.isascii() else _mapped(nfc(line)) for line in _trim(lines)]


def _mapped(line: str) -> str:
    if len(line) <= LONG_LINE:
        return line.translate(_PUNCTUATION)
    # The same by searches: faster a character, slower a line.
    for code, char in _PUNCTUATION.items():
        line = line.replace(chr(code), char)
    return line


PASSES: tuple[tuple[str, KeyFunction], ...] = (
    ("exact", _exact),
    ("trim_end", _trim_end),
    ("trim", _trim),
    ("punctuation", _punctuation),
    ("nfc", _nfc),
)
"""Name and key of each pass, strictest first: two lines are equal by a pass if their keys are identical."""


def nfc(text: str) -> str:
    """Unicode NFC in time linear in the text but for the sorting of combining marks.

    `unicodedata` orders a run of combining marks by insertion, which a line of nothing else turns quadratic. Longer
    runs are decomposed and sorted here first (canonical ordering is a stable sort by class), and then cost it nothing.
    """
    if len(text) <= LONG_LINE:
        return unicodedata.normalize("NFC", text)
    # Not `is_normalized` first: where the quick check says maybe, it normalises, and so costs the same.
    return unicodedata.normalize("NFC", _long_runs().sub(_ordered, text))


def _ordered(run: re.Match[str]) -> str:
    marks = run.group()
    by_class: dict[int, list[str]] = {}
    for start in range(0, len(marks), _PIECE_CHARS):
        piece = "".join([unicodedata.normalize("NFD", mark) for mark in marks[start : start + _PIECE_CHARS]])
        for mark_class, group in groupby(sorted(piece, key=unicodedata.combining), key=unicodedata.combining):
            by_class.setdefault(mark_class, []).append("".join(group))
    return "".join(["".join(by_class[mark_class]) for mark_class in sorted(by_class)])


@cache
def _long_runs() -> re.Pattern[str]:
    """Runs of characters whose decomposition begins with a combining mark. Built once, when first needed."""
    marks = [chr(code) for code in range(0x300, 0x1F000) if _begins_with_mark(chr(code))]
    return re.compile(f"[{''.join(marks)}]{{{_LONG_RUN},}}")


def _begins_with_mark(char: str) -> bool:
    return bool(unicodedata.combining(unicodedata.normalize("NFD", char)[0]))
