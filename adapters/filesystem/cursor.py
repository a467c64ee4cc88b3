"""Where a walk stopped: a place in the order of a tree, as an opaque word that a caller gives back.

Pure. A place is a position in plain string order of whole paths, never something to open, so a cursor gives no access
and stays good while files come and go. Called by the walk, find and grep.
"""

from __future__ import annotations

import base64
import binascii
import os
from dataclasses import dataclass
from typing import Literal

from adapters.filesystem.paths import displayed
from runner.api import ErrorCode, RunnerError

_MAX_CHARACTERS = 64 * 1024


@dataclass(frozen=True)
class Place:
    """`edge`: `after` the entry itself, `before` or `past` what is inside it, or `within` a file up to `line`."""

    path: str
    edge: Literal["after", "before", "past", "within"]
    line: int = 0

    def encode(self) -> str:
        raw = f"{self.edge}:{self.line}:".encode() + os.fsencode(self.path)
        return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def decode_cursor(cursor: str) -> Place:
    """Raises `RunnerError` INVALID_ARGUMENT for anything that `Place.encode` did not make."""
    try:
        if len(cursor) > _MAX_CHARACTERS:
            raise ValueError
        raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        edge, line, path = os.fsdecode(raw).split(":", 2)
        if edge not in ("after", "before", "past", "within") or not line.isdecimal() or not path or len(line) > 18:
            raise ValueError
    except (ValueError, binascii.Error):
        raise RunnerError(
            ErrorCode.INVALID_ARGUMENT,
            "cursor is not one of ours; give next_cursor of the page before as it was, or none to start over",
            details={"argument": "cursor"},
        ) from None
    return Place(path, edge, int(line))  # type: ignore[arg-type]  # mypy does not narrow str by `in`


def sort_key(name: str, suffix: str = "") -> str:
    """The key of one entry among those of its directory; with suffix `/` of what is inside it.

    Sorting a directory's entries and its contents by these gives whole paths in plain string order (`a`, `a.txt`,
    `a/b`), as they are displayed; names that are displayed alike keep an order of their own.
    """
    if name.isascii():
        return name + suffix
    display = displayed(name)
    return display + suffix if display == name else f"{display}{suffix}\0{name}"


@dataclass(frozen=True)
class Bound:
    """What a directory on the way to a place still has to give. `key`: the first sort key; `inclusive`: itself too.
    `name`, `rest`: the entry to go on in, and the bound inside it."""

    key: str
    inclusive: bool
    name: str | None = None
    rest: Bound | None = None

    def admits(self, key: str) -> bool:
        return key > self.key or (self.inclusive and key == self.key)


def bound_of(place: Place) -> Bound:
    """The bound in the root for walking on from a place."""
    *parents, name = place.path.split("/")
    suffix = "/" if place.edge in ("before", "past") else ""
    bound = Bound(sort_key(name, suffix), inclusive=place.edge in ("before", "within"))
    for parent in reversed(parents):
        bound = Bound(sort_key(parent, "/"), True, parent, bound)
    return bound
