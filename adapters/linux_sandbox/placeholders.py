"""Removes what the sandbox left in a real workspace for absent protected names (BOX-7).

A placeholder is known by what it is: an empty regular file with one name and the helper's own mode and time. Nothing
else is ever removed, so a forged one costs its maker an empty file. Refuses to know who is running; the caller has made
sure that no command is. Called by the launcher after each command, and before one for those of a crash.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable

from sandbox_helper.protocol import PLACEHOLDER_MODE, PLACEHOLDER_MTIME_S


def sweep(root: str, names: Iterable[str]) -> list[str]:
    """The names that were removed. What cannot be reached without following a link is left alone. Blocks briefly."""
    removed = []
    for name in names:
        parent_fd = _open_parent(root, name)
        if parent_fd is None:
            continue
        try:
            last = name.rpartition("/")[2]
            if _is_placeholder(os.stat(last, dir_fd=parent_fd, follow_symlinks=False)):
                os.unlink(last, dir_fd=parent_fd)
                removed.append(name)
        except OSError:
            continue  # absent, or not ours to remove
        finally:
            os.close(parent_fd)
    return removed


def _open_parent(root: str, name: str) -> int | None:
    flags = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
    try:
        fd = os.open(root, flags)
    except OSError:
        return None
    for part in name.split("/")[:-1]:
        try:
            below = os.open(part, flags | os.O_NOFOLLOW, dir_fd=fd)
        except OSError:
            return None
        finally:
            os.close(fd)
        fd = below
    return fd


def _is_placeholder(status: os.stat_result) -> bool:
    return (
        stat.S_ISREG(status.st_mode)
        and stat.S_IMODE(status.st_mode) == PLACEHOLDER_MODE
        and status.st_size == 0
        and status.st_nlink == 1
        and int(status.st_mtime) == PLACEHOLDER_MTIME_S
    )
