"""Opening names below a held directory descriptor without following a link (FS-1).

`openat2(RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_SYMLINKS)` where the kernel (5.6) and the container's
filter have it, else a walk that opens each component O_PATH | O_NOFOLLOW from the descriptor of the one before. Both
refuse a link swapped in at any moment, since the refusal is the open itself. Source: openat2(2), open(2).

It refuses to know roots, requests and answers: it raises `OSError` alone, with ELOOP for a link at any component and
ENOTDIR for a file used as a directory. Called by the file adapters.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Sequence
from typing import Literal, Protocol

_SYS_OPENAT2 = 437  # the same number on every architecture: asm-generic/unistd.h
_RESOLVE_NO_MAGICLINKS = 0x02  # linux/openat2.h
_RESOLVE_NO_SYMLINKS = 0x04
_RESOLVE_BENEATH = 0x08
_RESOLVE = _RESOLVE_BENEATH | _RESOLVE_NO_MAGICLINKS | _RESOLVE_NO_SYMLINKS

_AGAIN_LIMIT = 128
"""openat2 answers EAGAIN where a rename or mount raced it; callers are to try again, boundedly (openat2(2))."""
# O_NONBLOCK and O_NOCTTY: the type was checked before, but an open must not hang or steal a terminal in any case.
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_DIRECTORY = _READ | os.O_DIRECTORY
_NAME = os.O_PATH | os.O_CLOEXEC

Method = Literal["openat2", "walk"]


class Opener(Protocol):
    """One way to open below a root. Safe to use from several threads. `components`: none is empty, `.` or `..`."""

    def open_name(self, root_fd: int, components: Sequence[str]) -> int:
        """An O_PATH descriptor of whatever is there, which the caller closes. Touches nothing, blocks on nothing."""
        ...

    def open_directory(self, root_fd: int, components: Sequence[str]) -> int:
        """A readable descriptor of a directory, which the caller closes. Raises `OSError` (ENOTDIR for the rest)."""
        ...


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


_syscall = ctypes.CDLL(None, use_errno=True).syscall
_syscall.restype = ctypes.c_long
_syscall.argtypes = (ctypes.c_long, ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(_OpenHow), ctypes.c_size_t)
# The kernel only reads these, so all calls share them.
_HOW_NAME = _OpenHow(_NAME, 0, _RESOLVE)
_HOW_DIRECTORY = _OpenHow(_DIRECTORY, 0, _RESOLVE)


def _openat2(root_fd: int, path: bytes, how: _OpenHow) -> int:
    number = errno.EAGAIN
    for _ in range(_AGAIN_LIMIT):
        fd: int = _syscall(_SYS_OPENAT2, root_fd, path, ctypes.byref(how), ctypes.sizeof(how))
        if fd >= 0:
            return fd
        number = ctypes.get_errno()
        if number not in (errno.EAGAIN, errno.EINTR):
            break
    raise OSError(number, os.strerror(number), os.fsdecode(path))


class OpenAt2:
    """The kernel resolves the whole path beneath the root in one call."""

    def open_name(self, root_fd: int, components: Sequence[str]) -> int:
        return _openat2(root_fd, _joined(components), _HOW_NAME)

    def open_directory(self, root_fd: int, components: Sequence[str]) -> int:
        return _openat2(root_fd, _joined(components), _HOW_DIRECTORY)


class Walk:
    """Component by component, for kernels and filters without openat2."""

    def open_name(self, root_fd: int, components: Sequence[str]) -> int:
        here = os.open(".", _NAME | os.O_DIRECTORY, dir_fd=root_fd)
        for name in components:
            try:
                step = os.open(name, _NAME | os.O_NOFOLLOW, dir_fd=here)
            finally:
                os.close(here)
            here = step
            # O_PATH | O_NOFOLLOW opens the link itself: the one case that the flags leave to us.
            if stat.S_ISLNK(os.fstat(here).st_mode):
                os.close(here)
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), name)
        return here

    def open_directory(self, root_fd: int, components: Sequence[str]) -> int:
        name_fd = self.open_name(root_fd, components)
        try:
            return os.open(".", _DIRECTORY, dir_fd=name_fd)
        finally:
            os.close(name_fd)


def choose_opener(method: Method | None = None) -> Opener:
    """The opener of that method, or of the better one that works here (asked of the kernel, not of its version)."""
    if method is None:
        try:
            os.close(_openat2(-100, b"/", _OpenHow(_NAME, 0, 0)))  # AT_FDCWD: fcntl.h
        except OSError:
            method = "walk"  # ENOSYS: an old kernel. EPERM: a container filter of before 2020.
        else:
            method = "openat2"
    return OpenAt2() if method == "openat2" else Walk()


def reopen_for_reading(name_fd: int) -> int:
    """A readable descriptor of the very inode that an O_PATH descriptor holds.

    The caller has seen by fstat that it is a regular file, so this open has no side effect and cannot block; opening
    the name again could meet another file. Needs /proc. Source: open(2), O_PATH.
    """
    return os.open(f"/proc/self/fd/{name_fd}", _READ)


def _joined(components: Sequence[str]) -> bytes:
    return os.fsencode("/".join(components)) or b"."
