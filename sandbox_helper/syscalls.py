"""Thin wrappers over the system calls that Python lacks: one function a call, errno kept, the path in the error.

PyDLL keeps the interpreter's lock: the callers are single-threaded, and a child made by clone3 has nobody to hand it
to. Argument types are set once. Refuses to know why a call is made. Called by the other modules of the helper only.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from ctypes import c_char_p, c_int, c_long, c_uint, c_ulong, c_void_p
from typing import NamedTuple

# linux/sched.h
CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
CLONE_PARENT = 0x00008000
CLONE_PIDFD = 0x00001000
CLONE_INTO_CGROUP = 0x200000000

# sys/mount.h, linux/mount.h
MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_REMOUNT = 32
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18
MS_SLAVE = 1 << 19
MNT_DETACH = 2
OPEN_TREE_CLONE = 1
MOVE_MOUNT_F_EMPTY_PATH = 0x04
MOVE_MOUNT_T_EMPTY_PATH = 0x40
MOUNT_ATTR_RDONLY = 0x01
MOUNT_ATTR_NOSUID = 0x02
MOUNT_ATTR_NODEV = 0x04
MOUNT_ATTR_NOEXEC = 0x08
MOUNT_ATTR_IDMAP = 0x00100000

# linux/fcntl.h, linux/openat2.h
AT_FDCWD = -100
AT_EMPTY_PATH = 0x1000
AT_RECURSIVE = 0x8000
RESOLVE_NO_MAGICLINKS = 0x02
RESOLVE_NO_SYMLINKS = 0x04
RESOLVE_BENEATH = 0x08
RESOLVE_IN_ROOT = 0x10
RESOLVE_INSIDE = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS
"""Beneath the descriptor, no link on the way: the walk for names that hostile code may have made."""

_MACHINE = os.uname().machine
# asm/unistd.h; the calls from 424 on have one number everywhere.
_NR = {"pivot_root": 155, "capget": 125, "capset": 126, "rt_sigaction": 13, "statx": 332} if _MACHINE == "x86_64" else {
    "pivot_root": 41,
    "capget": 90,
    "capset": 91,
    "rt_sigaction": 134,
    "statx": 291,
}  # fmt: skip
_NR_OPEN_TREE, _NR_MOVE_MOUNT, _NR_CLONE3, _NR_CLOSE_RANGE, _NR_OPENAT2, _NR_MOUNT_SETATTR = (
    428,
    429,
    435,
    436,
    437,
    442,
)

_libc = ctypes.PyDLL(None, use_errno=True)


def _numbered(*argtypes: type) -> ctypes._NamedFuncPointer:
    """`syscall` with argument types of its own: each lookup by name makes another function object."""
    function = _libc["syscall"]
    function.argtypes = (c_long, *argtypes)
    function.restype = c_long
    return function


_clone3 = _numbered(c_void_p, c_ulong)
_close_range = _numbered(c_uint, c_uint, c_uint)
_openat2 = _numbered(c_int, c_char_p, c_char_p, c_ulong)
_open_tree = _numbered(c_int, c_char_p, c_uint)
_move_mount = _numbered(c_int, c_char_p, c_int, c_char_p, c_uint)
_mount_setattr = _numbered(c_int, c_char_p, c_uint, c_char_p, c_ulong)
_rt_sigaction = _numbered(c_int, c_char_p, c_void_p, c_ulong)
_pivot_root = _numbered(c_char_p, c_char_p)
_cap = _numbered(c_char_p, c_void_p)
_statx = _numbered(c_int, c_char_p, c_uint, c_uint, c_void_p)

_mount = _libc.mount
_mount.argtypes = (c_char_p, c_char_p, c_char_p, c_ulong, c_char_p)
_mount.restype = c_int
_umount2 = _libc.umount2
_umount2.argtypes = (c_char_p, c_int)
_umount2.restype = c_int
_unshare = _libc.unshare
_unshare.argtypes = (c_int,)
_unshare.restype = c_int
_prctl = _libc.prctl
_prctl.argtypes = (c_int, c_ulong, c_ulong, c_ulong, c_ulong)
_prctl.restype = c_int
_ppoll = _libc.ppoll
_ppoll.argtypes = (c_void_p, c_ulong, c_void_p, c_void_p)
_ppoll.restype = c_int


def _failed(call: str, path: str | None = None) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{call}: {os.strerror(number)}", path)


def clone3(flags: int, cgroup_fd: int = -1) -> tuple[int, int]:
    """(pid, pidfd) in the parent; (0, -1) in the child, which must call PyOS_AfterFork_Child before other Python.

    `flags` must hold CLONE_PIDFD. With CLONE_PARENT the exit signal is the caller's own, so none is given here.
    `cgroup_fd`: the version 2 control group that the child starts in, or -1 for the caller's.
    Raises OSError. Source: clone(2).
    """
    pidfd = c_int(-1)
    if cgroup_fd >= 0:
        flags |= CLONE_INTO_CGROUP
    arguments = ctypes.create_string_buffer(
        struct.pack("11Q", flags, ctypes.addressof(pidfd), 0, 0, 0, 0, 0, 0, 0, 0, max(cgroup_fd, 0)), 88
    )
    ctypes.pythonapi.PyOS_BeforeFork()
    pid = _clone3(_NR_CLONE3, arguments, 88)
    if pid == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
        return 0, -1
    error = _failed("clone3") if pid < 0 else None
    ctypes.pythonapi.PyOS_AfterFork_Parent()
    if error is not None:
        raise error
    return pid, pidfd.value


def close_range(first: int, last: int = 0xFFFFFFFF) -> None:
    """Closes every descriptor from `first` to `last`, both included. Raises OSError. Source: close_range(2)."""
    if _close_range(_NR_CLOSE_RANGE, first, last, 0) < 0:
        raise _failed("close_range")


def close_all_but(kept: set[int]) -> None:
    """Closes every descriptor not in `kept`. Raises OSError."""
    first = 0
    for fd in sorted(kept):
        if fd > first:
            close_range(first, fd - 1)
        first = fd + 1
    close_range(first)


def openat2(dir_fd: int, path: str, flags: int, resolve: int, mode: int = 0) -> int:
    """A descriptor, always close-on-exec. Raises OSError (ELOOP for a refused link). Source: openat2(2)."""
    how = struct.pack("3Q", flags | os.O_CLOEXEC, mode, resolve)
    for _ in range(16):
        fd: int = _openat2(_NR_OPENAT2, dir_fd, os.fsencode(path), how, 24)
        if fd >= 0:
            return fd
        # A rename elsewhere on the machine may have raced with the walk; the kernel then says so.
        if ctypes.get_errno() != 11:
            break
    raise _failed("openat2", path)


def open_tree(dir_fd: int, path: str = "", flags: int = OPEN_TREE_CLONE | AT_RECURSIVE) -> int:
    """A detached copy of the mounts at a place; an empty path means `dir_fd` itself. Raises OSError."""
    empty = 0 if path else AT_EMPTY_PATH
    fd: int = _open_tree(_NR_OPEN_TREE, dir_fd, os.fsencode(path), flags | empty | os.O_CLOEXEC)
    if fd < 0:
        raise _failed("open_tree", path or None)
    return fd


def move_mount(tree_fd: int, to_fd: int, to_path: str = "") -> None:
    """Attaches a detached tree on `to_path`, or on `to_fd` itself. Raises OSError. Source: move_mount(2)."""
    flags = MOVE_MOUNT_F_EMPTY_PATH | (0 if to_path else MOVE_MOUNT_T_EMPTY_PATH)
    if _move_mount(_NR_MOVE_MOUNT, tree_fd, b"", to_fd, os.fsencode(to_path), flags) < 0:
        raise _failed("move_mount", to_path or None)


def mount_setattr(tree_fd: int, attributes: int, *, propagation: int = 0, userns_fd: int = 0) -> None:
    """Sets attributes on a tree, recursively. Raises OSError. Source: mount_setattr(2)."""
    attr = struct.pack("4Q", attributes, 0, propagation, userns_fd)
    if _mount_setattr(_NR_MOUNT_SETATTR, tree_fd, b"", AT_EMPTY_PATH | AT_RECURSIVE, attr, 32) < 0:
        raise _failed("mount_setattr")


def mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    """mount(2) by path: for places in trees of our own making only. Raises OSError."""
    if (
        _mount(
            None if source is None else os.fsencode(source),
            os.fsencode(target),
            None if kind is None else kind.encode(),
            flags,
            None if data is None else data.encode(),
        )
        < 0
    ):
        raise _failed("mount", target)


def umount_detach(target: str) -> None:
    """Raises OSError. Source: umount(2)."""
    if _umount2(os.fsencode(target), MNT_DETACH) < 0:
        raise _failed("umount2", target)


def pivot_root(new_root: str, put_old: str) -> None:
    """Raises OSError. Source: pivot_root(2)."""
    if _pivot_root(_NR["pivot_root"], os.fsencode(new_root), os.fsencode(put_old)) < 0:
        raise _failed("pivot_root", new_root)


def unshare(flags: int) -> None:
    """Raises OSError. Source: unshare(2)."""
    if _unshare(flags) < 0:
        raise _failed("unshare")


_CAP_HEADER = struct.pack("Ii", 0x20080522, 0)


def capset_empty() -> None:
    """Clears the effective, permitted and inheritable sets. Raises OSError. Source: capset(2)."""
    if _cap(_NR["capset"], _CAP_HEADER, bytes(24)) < 0:
        raise _failed("capset")


def capget() -> tuple[int, int, int]:
    """(effective, permitted, inheritable) as the kernel has them now. Raises OSError. Source: capget(2)."""
    data = ctypes.create_string_buffer(24)
    if _cap(_NR["capget"], _CAP_HEADER, data) < 0:
        raise _failed("capget")
    low = struct.unpack("6I", data.raw)
    return low[0] | low[3] << 32, low[1] | low[4] << 32, low[2] | low[5] << 32


def reset_library_signals() -> None:
    """Default dispositions for 32 and 33, which libc hides, and ignores in what posix_spawn starts. Raises OSError."""
    for number in (32, 33):
        if _rt_sigaction(_NR["rt_sigaction"], number, bytes(32), None, 8) < 0:
            raise _failed("rt_sigaction")


_PR_SET_SECUREBITS = 28


def set_securebits(bits: int) -> None:
    """Raises OSError. Source: prctl(2)."""
    if _prctl(_PR_SET_SECUREBITS, bits, 0, 0, 0) < 0:
        raise _failed("prctl PR_SET_SECUREBITS")


POLLIN = 1
POLLHUP = 0x10


def ppoll_in(fd: int, blocked_signals: int) -> int:
    """Waits until `fd` has input or its other end is gone (poll bits), or a signal came (0). No timeout.

    `blocked_signals`: the mask during the wait, bit n-1 for signal n; swapped in atomically. Raises OSError.
    Source: ppoll(2).
    """
    pollfd = ctypes.create_string_buffer(struct.pack("ihh", fd, POLLIN, 0), 8)
    mask = struct.pack("16Q", blocked_signals, *([0] * 15))
    ready = _ppoll(pollfd, 1, None, mask)
    if ready < 0:
        if ctypes.get_errno() == 4:
            return 0
        raise _failed("ppoll")
    bits: int = struct.unpack("ihh", pollfd.raw)[2]
    return bits


class Found(NamedTuple):
    """One name of the file system. `mount_root`: a mount stands on it, and not only somewhere above."""

    mode: int
    links: int
    device: int
    inode: int
    mount_root: bool


_STATX_BASIC = 0x7FF
_STATX_ATTR_MOUNT_ROOT = 0x2000
_AT_SYMLINK_NOFOLLOW = 0x100
_AT_NO_AUTOMOUNT = 0x800


def statx(path: str, fd: int = AT_FDCWD) -> Found:
    """Of the name itself, not of what it links to; with an empty one, of what `fd` is. Raises OSError; ENOSYS where the
    kernel tells of no mounts. Source: statx(2), linux/stat.h.
    """
    buffer = ctypes.create_string_buffer(256)
    flags = _AT_SYMLINK_NOFOLLOW | _AT_NO_AUTOMOUNT | (0 if path else AT_EMPTY_PATH)
    if _statx(_NR["statx"], fd, os.fsencode(path), flags, _STATX_BASIC, buffer):
        raise _failed("statx", path)
    attributes, links, mode, inode, known = _STATX_FIELDS.unpack_from(buffer)
    major, minor = struct.unpack_from("=II", buffer, 136)
    if not known & _STATX_ATTR_MOUNT_ROOT:
        raise OSError(errno.ENOSYS, "statx: no word of mounts", path)
    return Found(mode, links, os.makedev(major, minor), inode, bool(attributes & _STATX_ATTR_MOUNT_ROOT))


_STATX_FIELDS = struct.Struct("=8xQI8xHxxQ16xQ")
"""stx_attributes, stx_nlink, stx_mode, stx_ino, stx_attributes_mask."""
