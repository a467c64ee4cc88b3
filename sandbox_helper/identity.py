"""Ids: the map that makes a workspace's files appear as the command's own, and the change to the command's ids.

An id map of a mount is described by a user namespace. One is made for each owner: a child that waits in a namespace of
its own until its maps are written and a descriptor of it is taken. Only a privileged helper needs any of this. Refuses
to know mounts. Called by the tree (maps) and the child (ids).
"""

from __future__ import annotations

import os
import signal

from sandbox_helper import syscalls as sc
from sandbox_helper.namespaces import OLD_ROOT

_ALL_IDS = 2**32 - 1


def id_map(inside: int, outside: int) -> str:
    """The text of a map that shows `inside` (on disk) as `outside`, and every other id but these two as itself."""
    if inside == outside:
        return f"0 0 {_ALL_IDS}"
    low, high = sorted((inside, outside))
    ranges = [(0, low), (low + 1, high - low - 1), (high + 1, _ALL_IDS - high - 1)]
    lines = [f"{inside} {outside} 1", *(f"{first} {first} {count}" for first, count in ranges if count > 0)]
    return "\n".join(lines)


class IdMaps:
    """User namespaces by (owner, command), kept open for the helper's life."""

    __slots__ = ("_cache",)

    def __init__(self) -> None:
        self._cache: dict[tuple[int, int, int, int], int] = {}

    def userns(self, owner_uid: int, owner_gid: int, uid: int, gid: int) -> int:
        """A descriptor of the namespace, not the caller's to close. Raises OSError."""
        key = (owner_uid, owner_gid, uid, gid)
        if key not in self._cache:
            try:
                self._cache[key] = _make(id_map(owner_uid, uid), id_map(owner_gid, gid))
            except PermissionError:
                # A container may lack most ids; the owner's alone is enough for the owner's files.
                self._cache[key] = _make(f"{owner_uid} {uid} 1", f"{owner_gid} {gid} 1")
        return self._cache[key]


def _make(uid_map: str, gid_map: str) -> int:
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    # An ordinary child of the helper's own, which the helper reaps.
    pid = os.fork()
    if pid == 0:
        try:
            os.close(read_end)
            sc.unshare(sc.CLONE_NEWUSER)
            os.write(write_end, b"1")
            signal.pause()
        finally:
            os._exit(1)
    os.close(write_end)
    try:
        if os.read(read_end, 1) != b"1":
            raise OSError(1, "no user namespace for an id map")
        for name, text in (("uid_map", uid_map), ("gid_map", gid_map)):
            fd = os.open(f"{OLD_ROOT}/proc/{pid}/{name}", os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(fd, text.encode())
            finally:
                os.close(fd)
        return os.open(f"{OLD_ROOT}/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(read_end)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def become(uid: int, gid: int) -> None:
    """Real, effective, saved and file-system ids, at once; clears the parent-death signal. Raises OSError."""
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
