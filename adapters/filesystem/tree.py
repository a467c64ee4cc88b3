"""A bounded walk of a tree in plain string order of whole paths, from any place on, following nothing.

Every directory is opened from the root's descriptor by `beneath`, so one that is swapped for a link meanwhile is
passed over; no descriptor is held between directories. Called by find and by the ripgrep adapter. It knows entries,
not answers.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

from adapters.filesystem.beneath import Opener
from adapters.filesystem.cursor import Bound, Place, bound_of, sort_key
from adapters.filesystem.errors import path_error
from adapters.filesystem.glob import Glob, Here
from adapters.filesystem.paths import displayed
from runner.api import ErrorCode, RunnerError

DIRECTORY_KEEP = 100_000
"""Entries of one directory that are held at a time, so that memory does not follow a directory of millions."""
UNREADABLE_SHOWN = 20
_CHECKED_EVERY = 64
"""Entries between two looks at the clock."""

Kind = Literal["file", "directory", "symlink", "other"]
GONE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EXDEV})
"""It was listed and is no directory below the root any more: the answer is that of a walk that came later."""
_OURS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN})


@dataclass(frozen=True)
class Entry:
    """`path`: relative, as `os.fsdecode` gives it. `kind`: as the directory said."""

    path: str
    kind: Kind


class Rules(Protocol):
    """Names that a walk leaves out, directory by directory."""

    def inside(self, path: str, directory_fd: int) -> Rules:
        """The rules in a directory below: called once it is open, before its entries are looked at."""
        ...

    def leaves_out(self, name: str, *, is_directory: bool) -> bool: ...


_Item = tuple[str, str, Kind | None, Here | None]
"""(sort key, name, kind of a match or None for what is inside a directory, what the glob says inside)"""


class TreeWalk:
    """One walk. After iteration ends or is left: `place` is where, `exhausted` whether the bound on entries ended it.

    `max_entries`: a bound on directory entries looked at, checked between directories; those on the way to `start` do
    not count and at least one new directory is read, so that repeated walks get on. `expired` ends it in the same way,
    also while the next directory is listed. `overdue`: even the first one is given up, with an error.
    `unreadable`: directories that were refused (at most UNREADABLE_SHOWN), as displayed.
    """

    def __init__(
        self,
        opener: Opener,
        root_fd: int,
        glob: Glob,
        start: Place | None,
        max_entries: int,
        *,
        expired: Callable[[], bool],
        overdue: Callable[[], bool],
        rules: Rules | None = None,
    ) -> None:
        self.place = start
        self.exhausted = False
        self.unreadable: list[str] = []
        self._opener = opener
        self._root_fd = root_fd
        self._glob = glob
        self._bound = bound_of(start) if start else None
        self._left = max_entries
        self._listed = False
        self._rules = rules
        self._expired, self._overdue = expired, overdue

    def __iter__(self) -> Iterator[Entry]:
        """Raises `RunnerError` where the root cannot be listed, descriptors run out, or a directory takes too long."""
        top = self._glob.top()
        if top is None:
            return
        stack = [_Level("", self._bound, self._rules)]
        self._list(stack[-1], top)
        while stack:
            level = stack[-1]
            item = next(level.items, None)
            if item is None:
                if level.cut:
                    self.exhausted = True
                    return
                stack.pop()
                if stack:
                    self.place = Place(level.prefix[:-1], "past")
                continue
            _, name, kind, inside = item
            path = level.prefix + name
            if kind is not None:
                self.place = Place(path, "after")
                yield Entry(path, kind)
            elif inside is not None:
                if self._listed and (self._left <= 0 or self._expired()):
                    self.place = Place(path, "before")
                    self.exhausted = True
                    return
                bound = level.bound.rest if level.bound and level.bound.name == name else None
                stack.append(_Level(path + "/", bound, level.rules))
                try:
                    self._list(stack[-1], inside)
                except _TooLong:
                    self.place = Place(path, "before")
                    self.exhausted = True
                    return

    def _list(self, level: _Level, here: Here) -> None:
        """Raises `_TooLong` where the walk has got on already and can end before this directory."""
        path = level.prefix[:-1]
        try:
            fd = self._opener.open_directory(self._root_fd, path.split("/") if path else ())
        except OSError as error:
            self._refused(path, error)
            return
        try:
            if level.rules is not None:
                level.rules = level.rules.inside(path, fd)
            may_end = self._listed and level.bound is None
            too_long = self._expired if may_end else self._overdue
            items, seen, level.cut = _read_directory(fd, here, level.bound, level.rules, too_long)
        except _TooLong:
            if may_end:
                raise
            raise _never_listed(path) from None
        except OSError as error:
            self._refused(path, error)
            return
        finally:
            os.close(fd)
        level.items = iter(items)
        if level.bound is None:
            self._left -= seen
            self._listed = True

    def _refused(self, path: str, error: OSError) -> None:
        if not path or error.errno in _OURS:
            raise path_error(path or ".", error, "list") from error
        if error.errno not in GONE and len(self.unreadable) < UNREADABLE_SHOWN:
            self.unreadable.append(displayed(path))


class _TooLong(Exception):
    """Listing one directory took longer than was asked for."""


def _never_listed(path: str) -> RunnerError:
    shown = displayed(path) or "."
    return RunnerError(
        ErrorCode.FILE_OPERATION_FAILED,
        f"directory {shown!r} cannot be listed in time: it has too many entries for the pattern, or its ignore rules "
        "are too many; use a simpler pattern or none of them, or list it with a command",
        retryable=True,
        details={"path": shown},
    )


class _Level:
    """One open level of the walk. `prefix`: the directory's path with its slash. `cut`: there is more than items."""

    def __init__(self, prefix: str, bound: Bound | None, rules: Rules | None) -> None:
        self.prefix, self.bound, self.rules = prefix, bound, rules
        self.items: Iterator[_Item] = iter(())
        self.cut = False


def _read_directory(
    fd: int, here: Here, bound: Bound | None, rules: Rules | None, too_long: Callable[[], bool]
) -> tuple[list[_Item], int, bool]:
    """The sorted items of one directory, how many entries it has, and whether items beyond DIRECTORY_KEEP were cut.
    Raises `_TooLong`, `OSError`."""
    items: list[_Item] = []
    seen, cut = 0, False
    matches, enter = here.matches, here.enter
    admits = bound.admits if bound else _admit_all
    with os.scandir(fd) as entries:
        for entry in entries:
            seen += 1
            if not seen % _CHECKED_EVERY and too_long():
                raise _TooLong
            name = entry.name
            text = name if name.isascii() else displayed(name)
            try:
                is_directory = entry.is_dir(follow_symlinks=False)
                if rules is not None and rules.leaves_out(name, is_directory=is_directory):
                    continue
                if is_directory:
                    inside = enter(text)
                    if inside is not None and admits(key := sort_key(name, "/")):
                        items.append((key, name, None, inside))
                if matches is not None and matches(text) and admits(key := sort_key(name)):
                    items.append((key, name, _kind(entry, is_directory), None))
            except FileNotFoundError:  # the type was asked of the file itself, and it is gone
                continue
            if len(items) > 2 * DIRECTORY_KEEP:
                items.sort(key=_key)
                del items[DIRECTORY_KEEP:]
                cut = True
    items.sort(key=_key)
    if cut:
        del items[DIRECTORY_KEEP:]
    return items, seen, cut


def _admit_all(_key: str) -> bool:
    return True


def _key(item: _Item) -> str:
    return item[0]


def _kind(entry: os.DirEntry[str], is_directory: bool) -> Kind:
    if is_directory:
        return "directory"
    if entry.is_symlink():
        return "symlink"
    return "file" if entry.is_file(follow_symlinks=False) else "other"
