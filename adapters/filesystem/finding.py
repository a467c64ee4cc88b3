"""`find`: one page of a tree's paths by glob, with types and sizes.

It knows how a page is made; the walk below knows the disk. Called by `openat_filesystem`.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Sequence

from adapters.filesystem.beneath import Opener
from adapters.filesystem.cursor import decode_cursor
from adapters.filesystem.glob import Glob
from adapters.filesystem.paths import displayed
from adapters.filesystem.tree import Entry, Kind, TreeWalk
from runner.api import FindFiles, FindPage, FoundPath

MAX_ENTRIES = 500_000
"""Directory entries that one page looks at: about a second's work."""
DEADLINE_S = 3.0
"""For the walk of one page, where the disk is slow. What is found by then is given, with a cursor."""
DIRECTORY_DEADLINE_S = 15.0
"""For the first directory that a page lists: without it there is no page."""
MAX_PAGE_BYTES = 2 * 1024 * 1024
"""Paths in one page. JSON may write six bytes for one, so this stays below the frame's bound."""


def find_page(opener: Opener, root_fd: int, request: FindFiles, max_entries: int) -> FindPage:
    """The next `limit` matches after the cursor, and a cursor if there is, or may be, more."""
    start = decode_cursor(request.cursor) if request.cursor is not None else None
    began = time.monotonic()
    walk = TreeWalk(
        opener,
        root_fd,
        Glob(request.pattern),
        start,
        max_entries,
        expired=lambda: time.monotonic() > began + DEADLINE_S,
        overdue=lambda: time.monotonic() > began + DIRECTORY_DEADLINE_S,
    )
    entries: list[Entry] = []
    more, last = None, start
    size = 0
    for entry in walk:
        if len(entries) == request.limit or size > MAX_PAGE_BYTES:
            more = last
            break
        entries.append(entry)
        size += len(os.fsencode(entry.path))
        last = walk.place
    else:
        more = walk.place if walk.exhausted else None
    return FindPage(
        matches=_described(opener, root_fd, entries),
        truncated=more is not None,
        next_cursor=more.encode() if more else None,
        unreadable=tuple(walk.unreadable) or None,
    )


def _described(opener: Opener, root_fd: int, entries: Sequence[Entry]) -> tuple[FoundPath, ...]:
    """The entries with their sizes. One that has gone since keeps the type that its directory gave."""
    found: list[FoundPath] = []
    folder, folder_fd = None, -1
    try:
        for entry in entries:
            parent, _, name = entry.path.rpartition("/")
            if parent != folder:
                if folder_fd >= 0:
                    os.close(folder_fd)
                folder, folder_fd = parent, _open(opener, root_fd, parent)
            found.append(_found(entry, folder_fd, name))
    finally:
        if folder_fd >= 0:
            os.close(folder_fd)
    return tuple(found)


def _open(opener: Opener, root_fd: int, folder: str) -> int:
    try:
        return opener.open_name(root_fd, folder.split("/") if folder else ())
    except OSError:
        return -1


def _found(entry: Entry, folder_fd: int, name: str) -> FoundPath:
    kind, size = entry.kind, None
    if folder_fd >= 0:
        try:
            status = os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
        except OSError:
            pass
        else:
            kind = _kind(status.st_mode)
            size = status.st_size if kind == "file" else None
    path = displayed(entry.path)
    return FoundPath(path=path, type=kind, size=size, addressable=None if path == entry.path else False)


def _kind(mode: int) -> Kind:
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "directory"
    return "symlink" if stat.S_ISLNK(mode) else "other"
