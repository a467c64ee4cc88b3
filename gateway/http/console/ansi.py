"""Turns a command's output into runs of text with colours. Pure; fed in pieces.

Colours and the like (SGR, ECMA-48 8.3.117) become names of style classes. Erasures of the rest of a line and choices
of a character set, which programs send along with colours, are dropped: here is nothing to erase. Any other escape is
shown as text, and a carriage return is a new line, so that no output hides what came before it. Concealed text is
shown. Refuses to know: markup; a run is plain text. Used by pages and event streams.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from gateway.http.console.visible import shown

MAX_RUNS = 1_000
"""In one piece; beyond it text keeps the colour that it has then."""
MAX_ESCAPE_CHARS = 64
"""An escape that is longer is no colour of any program's, and shown as text."""

_SGR = rf"\x1b\[([0-9;:]{{0,{MAX_ESCAPE_CHARS}}})m"
RECOGNISED = re.compile(rf"{_SGR}|\x1b\[[0-2]?K|\x1b\([AB0]")
_BEGUN = re.compile(rf"\x1b(?:\[[0-9;:]{{0,{MAX_ESCAPE_CHARS}}}|\()?\Z")
"""An escape that the next piece may complete."""


@dataclass(frozen=True)
class Pen:
    """How text is written. Colours: 0 to 255 of the usual palette, or None for the page's own."""

    front: int | None = None
    back: int | None = None
    bold: bool = False
    dim: bool = False
    italic: bool = False
    underline: bool = False
    strike: bool = False
    inverse: bool = False

    def classes(self) -> str:
        names = [name for name in ("bold", "dim", "italic", "underline", "strike") if getattr(self, name)]
        front = None if self.front is None else f"f{self.front}"
        back = None if self.back is None else f"b{self.back}"
        # Text in the colour of its own ground could not be read.
        if self.front is not None and self.front == self.back:
            back = None
        if self.inverse:
            front = "ground" if self.back is None else f"f{self.back}"
            back = "ink" if self.front is None or self.front == self.back else f"b{self.front}"
        return " ".join([*names, *(name for name in (front, back) if name)])


@dataclass(frozen=True)
class Run:
    """`classes`: of the style sheet, separated by spaces; empty for plain text."""

    text: str
    classes: str


_ON = {1: "bold", 2: "dim", 3: "italic", 4: "underline", 7: "inverse", 9: "strike", 21: "underline"}
_OFF = {22: ("bold", "dim"), 23: ("italic",), 24: ("underline",), 27: ("inverse",), 29: ("strike",)}


class Renderer:
    """One stream of output. Keeps the pen, at most one begun escape and one return between pieces."""

    def __init__(self) -> None:
        self._pen = Pen()
        self._kept = ""
        self._returned = False

    def feed(self, text: str, *, final: bool = False) -> list[Run]:
        """`final`: nothing comes after it."""
        text = self._kept + text
        self._kept = ""
        if not final:
            begun = _BEGUN.search(text, max(0, len(text) - MAX_ESCAPE_CHARS - 2))
            if begun:
                text, self._kept = text[: begun.start()], text[begun.start() :]
        runs: list[Run] = []
        at = 0
        for escape in RECOGNISED.finditer(text):
            self._add(runs, text[at : escape.start()])
            at = escape.end()
            if escape[1] is not None and len(runs) < MAX_RUNS:
                self._pen = _after(self._pen, escape[1])
        self._add(runs, text[at:])
        if final and self._returned:
            self._returned = False
            self._add(runs, "\n")
        return runs

    def _add(self, runs: list[Run], text: str) -> None:
        if not text:
            return
        # A return waits for what follows, colours in between or not: with a line end it is one.
        text = "\r" + text if self._returned else text
        self._returned = text.endswith("\r")
        text = text.removesuffix("\r")
        if not text:
            return
        text = shown(text.replace("\r\n", "\n").replace("\r", "\n"))
        classes = self._pen.classes()
        if runs and runs[-1].classes == classes:
            runs[-1] = Run(runs[-1].text + text, classes)
        else:
            runs.append(Run(text, classes))


def _after(pen: Pen, parameters: str) -> Pen:
    """The pen after one SGR sequence. What is unknown in it changes nothing."""
    numbers = [int(part) if part and len(part) < 5 else 0 for part in re.split("[;:]", parameters)]
    at = 0
    while at < len(numbers):
        number = numbers[at]
        at += 1
        if number == 0:
            pen = Pen()
        elif number in _ON:
            pen = replace(pen, **{_ON[number]: True})
        elif number in _OFF:
            pen = replace(pen, **dict.fromkeys(_OFF[number], False))
        elif number in (38, 48):
            colour, used = _extended(numbers[at:])
            at += used
            if colour is not None:
                pen = replace(pen, front=colour) if number == 38 else replace(pen, back=colour)
        elif number == 39:
            pen = replace(pen, front=None)
        elif number == 49:
            pen = replace(pen, back=None)
        elif 30 <= number <= 37:
            pen = replace(pen, front=number - 30)
        elif 40 <= number <= 47:
            pen = replace(pen, back=number - 40)
        elif 90 <= number <= 97:
            pen = replace(pen, front=number - 82)
        elif 100 <= number <= 107:
            pen = replace(pen, back=number - 92)
    return pen


def _extended(rest: list[int]) -> tuple[int | None, int]:
    """What follows 38 or 48: a colour of the palette, and how many numbers it took. 5;N is the palette's own, 2;R;G;B
    the nearest to it."""
    if len(rest) >= 2 and rest[0] == 5:
        return (rest[1] if rest[1] <= 255 else None), 2
    if len(rest) >= 4 and rest[0] == 2:
        red, green, blue = (min(part, 255) for part in rest[1:4])
        if max(red, green, blue) - min(red, green, blue) < 12:
            level = (red + green + blue) // 3
            return (16 if level < 4 else 231 if level > 246 else 232 + min(23, max(0, (level - 3) // 10))), 4
        return 16 + 36 * _level(red) + 6 * _level(green) + _level(blue), 4
    return None, len(rest)


def _level(part: int) -> int:
    """The nearest of the cube's levels 0, 95, 135, 175, 215, 255."""
    return 0 if part < 48 else 1 if part < 115 else min(5, (part - 35) // 40)
