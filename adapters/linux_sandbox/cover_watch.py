"""Watches protected names of a running command from outside: a cover that is taken off ends the command (BOX-7).

A mount covers what it was put on. Inside, nobody can move that; outside, the user's own editor can put another file in
its place, or rename a directory above it, and the name is then free. inotify on the directories of the names says what
was made, moved or removed there: one of the names, and its cover may be off, though device and inode are the same again
(by a second name of the file, or those of a directory that was made anew). Where inotify tells nothing of the kind,
device and inode decide. A directory that lets nobody in proves nothing, and nothing in it can be replaced by its owner
either; it is looked into again once its permissions change. Refuses to judge who did it. Used by the process.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import struct
from collections.abc import Callable, Iterable

from sandbox_helper.protocol import Cover

_IN_ATTRIB, _IN_MOVED_FROM, _IN_MOVED_TO, _IN_CREATE, _IN_DELETE = 0x4, 0x40, 0x80, 0x100, 0x200
_IN_ONLYDIR, _IN_DONT_FOLLOW = 0x01000000, 0x02000000
_REPLACING = _IN_MOVED_FROM | _IN_MOVED_TO | _IN_CREATE | _IN_DELETE
_MASK = _IN_ATTRIB | _REPLACING | _IN_ONLYDIR | _IN_DONT_FOLLOW
_EVENT = struct.Struct("iIII")
"""Descriptor of the watch, mask, cookie, length of the name that follows. Source: inotify(7)."""

POLL_S = 0.25
"""How often the names are looked at where inotify is not to be had, or a directory cannot be read."""

_libc = ctypes.CDLL(None)
_libc.inotify_add_watch.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_uint32)


class CoverWatch:
    """The covers of one command in the workspace `root`."""

    def __init__(self, root: str, covers: Iterable[Cover]) -> None:
        self._root = root
        self._covers = tuple(covers)
        self._fd = -1
        self._directories: dict[int, str] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self, on_lost: Callable[[str], None]) -> None:
        """Calls `on_lost` once, with the reason in words, when a name has lost its cover."""
        self._task = asyncio.get_running_loop().create_task(self._watch(on_lost))

    async def stop(self) -> None:
        """Idempotent."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _watch(self, on_lost: Callable[[str], None]) -> None:
        changed = asyncio.Event()
        loop = asyncio.get_running_loop()
        # Directories that the set-up has just walked: this does not wait for a disk.
        self._fd = self._open()
        if self._fd >= 0:
            loop.add_reader(self._fd, changed.set)
        try:
            seen: str | None = None
            while (lost := seen or await asyncio.to_thread(self._lost)) is None:
                try:
                    async with asyncio.timeout(None if self._fd >= 0 else POLL_S):
                        await changed.wait()
                except TimeoutError:
                    continue
                changed.clear()
                seen = self._replaced()
            on_lost(f"protected name {lost} was replaced or moved from outside while the command ran")
        finally:
            if self._fd >= 0:
                loop.remove_reader(self._fd)
                os.close(self._fd)
                self._fd = -1

    def _open(self) -> int:
        """An inotify descriptor; -1 where machine or directory give none, so that looking now and then has to do."""
        fd: int = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if fd < 0:
            return -1
        for directory in {os.path.dirname(cover.name) for cover in self._covers}:
            watch = _libc.inotify_add_watch(fd, os.fsencode(os.path.join(self._root, directory)), _MASK)
            if watch < 0:
                os.close(fd)
                return -1
            self._directories[watch] = directory
        return fd

    def _replaced(self) -> str | None:
        """Reads what happened: the first covered name that was made, moved or removed. None says only that something
        else did, as an overflow does."""
        names, found = {cover.name for cover in self._covers}, None
        try:
            while data := os.read(self._fd, 65536):
                at = 0
                while at < len(data):
                    watch, mask, _, length = _EVENT.unpack_from(data, at)
                    at += _EVENT.size + length
                    last = os.fsdecode(data[at - length : at].rstrip(b"\0"))
                    name = os.path.join(self._directories.get(watch, ""), last)
                    if mask & _REPLACING and name in names:
                        found = found or name
        except BlockingIOError:
            pass
        return found

    def _lost(self) -> str | None:
        for cover in self._covers:
            try:
                status = os.stat(os.path.join(self._root, cover.name), follow_symlinks=False)
            except PermissionError:
                continue  # says nothing of the name; a directory above it that was replaced is a cover of its own
            except OSError:
                return cover.name
            if (status.st_dev, status.st_ino) != (cover.device, cover.inode):
                return cover.name
        return None
