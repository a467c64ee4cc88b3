"""What a watcher has to say: changes, directories to scan, and that it lost track.

Plain data, apart from the watcher so that nobody loads inotify for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


class Lost(Exception):
    """Events are or may be missing; `reason` says why. Only a new watcher knows the tree again."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True)
class Change:
    """A name that was created, changed, removed, or renamed (then `from_path` is the old one). Relative to the root,
    as `os.fsdecode` gives it."""

    kind: Literal["create", "modify", "remove", "rename"]
    path: str
    from_path: str | None = None


@dataclass(frozen=True)
class NewDirectory:
    """A directory that has to be scanned: its own entries may be older than its watch. `at_once`: it was renamed, so
    what follows may be about it; one that is new has no watch yet, and can wait for others."""

    path: str
    at_once: bool = False


@dataclass(frozen=True)
class Doubt:
    """A directory was moved, and its watch does not stand where the events so far lead: a scan was ahead of them, or
    its name led to another. What was said of its names may be wrong; it is settled once no more events wait."""


Said = Change | NewDirectory | Doubt
"""What a watcher says: to be taken in this order, the next one only when this one is done with."""
