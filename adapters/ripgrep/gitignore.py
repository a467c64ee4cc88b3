"""What `.gitignore` files leave out, as gitignore(5) has it, for a walk that asks to honour them.

Only `.gitignore` files inside the workspace count, and `.git` itself is left out as git does; no global or repository
excludes are read, and the workspace need not be a repository. An ignored directory is not entered, so nothing in it can
be taken back. A file that is a link, no regular file, or too large for the bounds below gives no rules: the search then
finds more, never less. Called by `search`.
"""

from __future__ import annotations

import itertools
import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from adapters.filesystem.glob import Glob, Here
from adapters.filesystem.paths import displayed
from adapters.filesystem.tree import Rules
from runner.api import RunnerError

MAX_FILE_BYTES = 64 * 1024
MAX_PATTERNS = 4096
"""In all files that count for one directory."""
MAX_GROUPS = 512
"""The same, of consecutive patterns that ignore, take back, or mean directories alone: each name is held against so
many expressions."""
_NAME = ".gitignore"
_NAMED_CLASSES = {
    "alnum": "a-zA-Z0-9",
    "alpha": "a-zA-Z",
    "blank": " \t",
    "digit": "0-9",
    "lower": "a-z",
    "space": " \t\n\r\v\f",
    "upper": "A-Z",
    "xdigit": "0-9a-fA-F",
}


class Pattern(NamedTuple):
    """One line. `glob`: a pattern of paths relative to the directory of the file, in our glob language."""

    glob: str
    negated: bool
    directories_only: bool


@dataclass(frozen=True)
class _Group:
    """Consecutive lines of one kind, and what they say inside one directory."""

    patterns: int
    here: Here
    negated: bool
    directories_only: bool


class GitIgnore:
    """The rules in one directory; immutable. `inside` gives those of a directory below."""

    def __init__(self, groups: tuple[_Group, ...] = ()) -> None:
        self._groups = groups

    def inside(self, path: str, directory_fd: int) -> Rules:
        name = displayed(path.rpartition("/")[2])
        kept = [
            replace(group, here=here)
            for group in self._groups
            if (here := group.here.enter(name) if name else group.here) is not None
        ]
        lines = _lines(directory_fd)
        fits = len(lines) <= MAX_PATTERNS - sum(group.patterns for group in kept)
        added = list(itertools.islice(_groups(lines), MAX_GROUPS - len(kept) + 1)) if fits else []
        return GitIgnore((*kept, *added) if len(kept) + len(added) <= MAX_GROUPS else tuple(kept))

    def leaves_out(self, name: str, *, is_directory: bool) -> bool:
        """The last line that matches decides."""
        if name == ".git":
            return True
        text = displayed(name)
        for group in reversed(self._groups):
            if group.directories_only and not is_directory:
                continue
            if group.here.matches is not None and group.here.matches(text):
                return not group.negated
        return False


def _groups(lines: Iterable[str]) -> Iterable[_Group]:
    patterns = (pattern for line in lines if (pattern := parse_line(line)) is not None)
    for (negated, directories_only), group in itertools.groupby(patterns, lambda pattern: pattern[1:]):
        globs = [pattern.glob for pattern in group]
        here = Glob(*globs).top()
        if here is not None:
            yield _Group(len(globs), here, negated, directories_only)


def parse_line(line: str) -> Pattern | None:
    """None for a comment, an empty line, or a malformed pattern, which git takes for one that matches nothing."""
    line = _without_trailing_spaces(line.removesuffix("\r"))
    if line.startswith("#"):
        return None
    negated = line.startswith("!")
    line = line[negated:]
    directories_only = line.endswith("/")
    line = line.removesuffix("/")
    anchored = "/" in line
    line = line.removeprefix("/")
    # git has no braces; our language has no named classes.
    line = re.sub(r"(\\.)|([{}])", lambda found: found[1] or "\\" + found[2], line)
    line = re.sub(r"\[:([a-z]+):\]", lambda found: _NAMED_CLASSES.get(found[1], found[0]), line)
    if line.endswith("/**"):
        line += "/*"  # what is inside, not the directory itself
    glob = line if anchored else f"**/{line}"
    try:
        Glob(glob)
    except RunnerError:
        return None
    return Pattern(glob, negated, directories_only)


def _without_trailing_spaces(line: str) -> str:
    """One that follows a backslash belongs to the pattern, unless the backslash itself is taken as it is."""
    kept = line.rstrip(" ")
    escaped = (len(kept) - len(kept.rstrip("\\"))) % 2
    return kept + " " if escaped and kept != line else kept


def _lines(directory_fd: int) -> list[str]:
    try:
        fd = os.open(_NAME, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory_fd)
    except OSError:
        return []
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_FILE_BYTES:
            return []
        lines = os.read(fd, MAX_FILE_BYTES).decode("utf-8", "replace").split("\n")
        return [line for line in lines if line and not line.startswith("#")]
    except OSError:
        return []
    finally:
        os.close(fd)
