"""Removes what the sandbox left in a real workspace for absent protected names (BOX-7).

A placeholder is known by what it is: an empty regular file with one name and the helper's own mode and time. Nothing
else is ever removed, so a forged one costs its maker an empty file. A command may have taken its owner's permissions
from a directory on the way; they are given for the removal and put back. Refuses to know who is running; the caller has
made sure that no command is. Called by `Roots`.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterable

from sandbox_helper.protocol import PLACEHOLDER_MODE, PLACEHOLDER_MTIME_S

_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


def sweep(root: str, names: Iterable[str]) -> list[str]:
    """The names that were removed. What cannot be reached without following a link is left alone. Blocks briefly."""
    removed = []
    for name in names:
        try:
            found = _remove(root, name, _keep)
        except PermissionError:
            try:
                found = _remove(root, name, _open_up)
            except OSError:
                continue  # of another owner, who alone can give the permission
        except OSError:
            continue  # absent, or not ours to remove
        if found:
            removed.append(name)
    return removed


Opener = Callable[[contextlib.ExitStack, int], None]
"""Makes a directory writable and searchable until the stack is closed, or leaves it as it is."""


def _remove(root: str, name: str, opener: Opener) -> bool:
    """Raises OSError."""
    *ancestors, last = name.split("/")
    with contextlib.ExitStack() as stack:
        fd = _held(stack, os.open(root, _DIRECTORY))
        opener(stack, fd)
        for part in ancestors:
            fd = _held(stack, os.open(part, _DIRECTORY | os.O_NOFOLLOW, dir_fd=fd))
            opener(stack, fd)
        if not _is_placeholder(os.stat(last, dir_fd=fd, follow_symlinks=False)):
            return False
        os.unlink(last, dir_fd=fd)
        return True


def _held(stack: contextlib.ExitStack, fd: int) -> int:
    stack.callback(os.close, fd)
    return fd


def _keep(_stack: contextlib.ExitStack, _fd: int) -> None:
    pass


def _open_up(stack: contextlib.ExitStack, fd: int) -> None:
    """By its descriptor, so that no other directory can take its place meanwhile. Raises OSError."""
    mode = stat.S_IMODE(os.fstat(fd).st_mode)
    if mode & 0o300 != 0o300:
        place = f"/proc/self/fd/{fd}"
        os.chmod(place, mode | 0o300)
        stack.callback(os.chmod, place, mode)


def _is_placeholder(status: os.stat_result) -> bool:
    return (
        stat.S_ISREG(status.st_mode)
        and stat.S_IMODE(status.st_mode) == PLACEHOLDER_MODE
        and status.st_size == 0
        and status.st_nlink == 1
        and int(status.st_mtime) == PLACEHOLDER_MTIME_S
    )
