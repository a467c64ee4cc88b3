"""How the demo speaks: numbered scenes, what is called, what came back, what that proves. Colour on a terminal only.

Refuses to know: the appliance. Called by the scenes.
"""

from __future__ import annotations

import os
import textwrap
import time
from typing import TextIO

_BOLD, _DIM, _GREEN, _RED, _CYAN, _END = "\033[1m", "\033[2m", "\033[32m", "\033[31m", "\033[36m", "\033[0m"
_WIDTH = 96


class DemoFailed(Exception):
    """Something did not turn out as it must. The text says what was expected and what was seen."""


class Narrator:
    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._colour = out.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        self._scenes = 0
        self._began = time.monotonic()
        self.proofs = 0

    def scene(self, title: str) -> None:
        self._scenes += 1
        self._line(f"\n{self._scenes}. {title}  ", _BOLD, end="")
        self._line(f"[{time.monotonic() - self._began:.1f} s]", _DIM)

    def say(self, text: str) -> None:
        self._line(textwrap.fill(text, _WIDTH, initial_indent="   ", subsequent_indent="   "))

    def call(self, text: str) -> None:
        """A tool call or a command, shortened to a line."""
        self._line("   " + textwrap.shorten(f"→ {text}", _WIDTH, placeholder=" …"), _CYAN)

    def output(self, text: str) -> None:
        """What a command printed, as it comes."""
        for line in text.splitlines():
            self._line(f"   │ {line[:_WIDTH]}", _DIM)

    def proof(self, claim: str, holds: bool, seen: object = "") -> None:
        """Raises `DemoFailed` where the claim does not hold, with what was seen instead."""
        if not holds:
            self._line(f"   ✗ {claim}", _RED)
            raise DemoFailed(f"{claim}: seen instead: {str(seen)[-1500:]}")
        self.proofs += 1
        self._line(f"   ✓ {claim}", _GREEN)

    def end(self) -> None:
        self._line(f"\n{self.proofs} checks hold, in {time.monotonic() - self._began:.1f} s.", _BOLD)

    def _line(self, text: str, style: str = "", end: str = "\n") -> None:
        self._out.write(f"{style}{text}{_END}{end}" if self._colour and style else text + end)
        self._out.flush()
