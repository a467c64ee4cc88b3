"""The inotify system calls, through the `inotify` package: the one module that imports it.

It is imported when the first watch starts, in a thread, since the package looks for libc with a program of its own. It
knows descriptors and nothing of trees. Called by `watcher`. Source: inotify(7).
"""

from __future__ import annotations

import os

import inotify.calls
import inotify.constants as constants

from adapters.inotify_watch.records import WATCHED

_MASK = WATCHED | constants.IN_ONLYDIR


def new_instance() -> int:
    """A non-blocking inotify descriptor. Raises `OSError`: EMFILE beyond fs.inotify.max_user_instances."""
    try:
        fd: int = inotify.calls.inotify_init()
    except inotify.calls.InotifyError as error:
        raise OSError(error.errno, f"inotify_init: {os.strerror(error.errno)}") from error
    os.set_inheritable(fd, False)
    os.set_blocking(fd, False)
    return fd


def add_watch(instance: int, directory_fd: int) -> int:
    """Watches the very directory that a descriptor holds, wherever its names lead by now. Returns the watch's number,
    the same one for the same directory. Raises `OSError`: ENOSPC beyond fs.inotify.max_user_watches."""
    path = f"/proc/self/fd/{directory_fd}".encode()
    try:
        watch: int = inotify.calls.inotify_add_watch(instance, path, _MASK)
    except inotify.calls.InotifyError as error:
        raise OSError(error.errno, f"inotify_add_watch: {os.strerror(error.errno)}") from error
    return watch


def remove_watch(instance: int, watch: int) -> None:
    """No effect if the kernel has dropped it already."""
    try:
        inotify.calls.inotify_rm_watch(instance, watch)
    except inotify.calls.InotifyError:
        return
