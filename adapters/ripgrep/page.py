"""Gathering one page of matches, within its bounds.

Pure: it knows no process and no disk. Called by `search`.
"""

from __future__ import annotations

import os

from adapters.filesystem.cursor import Place
from adapters.filesystem.paths import displayed
from adapters.ripgrep.output import MAX_PAGE_BYTES, RawMatch, shown
from runner.api import GrepFiles, GrepMatch


class Page:
    """Takes matches in order until one does not fit; `next_place` is then where the next page begins."""

    def __init__(self, request: GrepFiles) -> None:
        self.matches: list[GrepMatch] = []
        self.next_place: Place | None = None
        self._limit = request.limit
        self._context = request.context
        self._last: Place | None = None
        self._bytes = 0

    @property
    def needed(self) -> int:
        """How many matches would fill the page and show that there is one more."""
        return self._limit - len(self.matches) + 1

    def add(self, path: str, match: RawMatch) -> bool:
        """False if the page was full. The first match always fits."""
        size = len(os.fsencode(path)) + match.size
        if self._last and (len(self.matches) >= self._limit or self._bytes + size > MAX_PAGE_BYTES):
            self.next_place = self._last
            return False
        name = displayed(path)
        self.matches.append(
            GrepMatch(
                path=name,
                line=match.line,
                text=shown(match.text),
                before=tuple(map(shown, match.before)) if self._context else None,
                after=tuple(map(shown, match.after)) if self._context else None,
                addressable=None if name == path else False,
            )
        )
        self._bytes += size
        self._last = Place(path, "within", match.line)
        return True
