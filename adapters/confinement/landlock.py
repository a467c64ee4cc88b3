"""Landlock for our own helper processes: after `restrict` a process reaches the trees it was given and nothing else.

For programs of ours that read hostile input or open paths by themselves (the patch helper, a content search), which
call it once, early, before they start a thread. It refuses to know which trees those are, and it is no sandbox for
commands: those get mount namespaces, which also hide what may not be seen.

What Landlock leaves open, on every version so far: chmod, chown, utime, extended attributes, flock, stat of any path,
UDP and path-name Unix sockets; descriptors that are open already keep their rights. Sources: landlock(7),
landlock_create_ruleset(2), landlock_add_rule(2), landlock_restrict_self(2), `linux/landlock.h`.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
from collections.abc import Iterable
from typing import NamedTuple

# The numbers are the same on every architecture.
_NR_CREATE_RULESET, _NR_ADD_RULE, _NR_RESTRICT_SELF = 444, 445, 446
_CREATE_RULESET_VERSION = 1
_RULE_PATH_BENEATH = 1
_PR_SET_NO_NEW_PRIVS = 38

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REMOVE_DIR, _REMOVE_FILE, _MAKE_CHAR, _MAKE_DIR, _MAKE_REG = 1 << 4, 1 << 5, 1 << 6, 1 << 7, 1 << 8
_MAKE_SOCK, _MAKE_FIFO, _MAKE_BLOCK, _MAKE_SYM = 1 << 9, 1 << 10, 1 << 11, 1 << 12
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_ABI_1 = (1 << 13) - 1
# First version that knows a right, and what a ruleset older than it leaves open.
_LATER_RIGHTS = (
    (2, _REFER, "renames and links between directories are refused altogether"),
    (3, _TRUNCATE, "files that may be read can be truncated"),
    (5, _IOCTL_DEV, "ioctl on devices"),
)
_READ = _READ_FILE | _READ_DIR
_WRITE = (
    _READ | _WRITE_FILE | _REMOVE_DIR | _REMOVE_FILE | _MAKE_DIR | _MAKE_REG | _REFER | _TRUNCATE
)  # no devices, sockets, FIFOs or symbolic links: nothing of ours makes them
_ON_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
"""Rights that make sense for a rule on a file; the kernel answers EINVAL for the others."""

_NET_ABI, _BIND_AND_CONNECT_TCP = 4, 0b11
_SCOPE_ABI, _ABSTRACT_SOCKETS_AND_SIGNALS = 6, 0b11

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_libc.prctl.argtypes = (ctypes.c_int, *[ctypes.c_ulong] * 4)


class LandlockSupport(NamedTuple):
    """`abi`: the version this kernel offers, 0 where there is none; then `errno` says why: ENOSYS (not built in, or
    refused by a container engine's filter), EOPNOTSUPP (built in, disabled at boot) or EPERM (a filter)."""

    abi: int
    errno: int | None


class Confinement(NamedTuple):
    """What is in force: `abi` that was used, and what it leaves `open` beside the list in the module's text."""

    abi: int
    open: tuple[str, ...]


def _call(number: int, name: str, *arguments: object) -> int:
    result = int(_libc.syscall(ctypes.c_long(number), *arguments))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")
    return result


def support() -> LandlockSupport:
    """Asks the kernel, by the call itself and never by its version. Changes nothing, idempotent."""
    try:
        version = _call(
            _NR_CREATE_RULESET,
            "landlock_create_ruleset",
            None,
            ctypes.c_size_t(0),
            ctypes.c_uint32(_CREATE_RULESET_VERSION),
        )
    except OSError as error:
        return LandlockSupport(0, error.errno)
    return LandlockSupport(version, None)


def abi() -> int:
    """The version that this kernel offers; 0 where there is none (`support` says why)."""
    return support().abi


def _handled(version: int) -> int:
    return _ABI_1 | sum(right for first, right, _ in _LATER_RIGHTS if version >= first)


def _left_open(version: int) -> tuple[str, ...]:
    gaps = [text for first, _, text in _LATER_RIGHTS if version < first]
    if version < _NET_ABI:
        gaps.append("TCP")
    if version < _SCOPE_ABI:
        gaps.append("abstract Unix sockets and signals to other processes of the uid")
    return tuple(gaps)


def _add_rules(ruleset: int, trees: Iterable[int], rights: int) -> None:
    for tree in trees:
        allowed = rights if stat.S_ISDIR(os.fstat(tree).st_mode) else rights & _ON_FILES
        rule = struct.pack("=Qi", allowed, tree)
        _call(
            _NR_ADD_RULE,
            "landlock_add_rule",
            ctypes.c_int(ruleset),
            ctypes.c_int(_RULE_PATH_BENEATH),
            ctypes.c_char_p(rule),
            ctypes.c_uint32(0),
        )


def restrict(
    *,
    read: Iterable[int] = (),
    write: Iterable[int] = (),
    execute: Iterable[int] = (),
    at_least: int = 1,
    tcp: bool = False,
) -> Confinement:
    """Confines the calling thread, and all it starts from now on, for good. Also sets no_new_privs.

    `read`, `write`, `execute`: descriptors (O_PATH suffices) of directories, with all beneath them, or of files.
    `write` includes reading, making and removing files and directories, and renames among its trees; `execute`
    includes reading. TCP is refused where the kernel can, unless `tcp` leaves it alone; so are abstract Unix sockets of
    others and signals to processes outside.

    `at_least`: the oldest version that will do; below it nothing is changed. Raises OSError with the errno of the
    call that failed: ENOSYS, EOPNOTSUPP or EPERM where there is no Landlock or an older one than asked for, EBADF or
    EINVAL for a descriptor that is none. After an error the caller must not go on as if it were confined.
    """
    version, code = support()
    if version < max(at_least, 1):
        code = code if code is not None else errno.EOPNOTSUPP
        raise OSError(code, f"Landlock version {version}, needed {at_least}: {os.strerror(code)}")
    handled = _handled(version)
    attributes = struct.pack("=Q", handled)
    if version >= _NET_ABI:
        attributes += struct.pack("=Q", 0 if tcp else _BIND_AND_CONNECT_TCP)
    if version >= _SCOPE_ABI:
        attributes += struct.pack("=Q", _ABSTRACT_SOCKETS_AND_SIGNALS)
    ruleset = _call(
        _NR_CREATE_RULESET,
        "landlock_create_ruleset",
        ctypes.c_char_p(attributes),
        ctypes.c_size_t(len(attributes)),
        ctypes.c_uint32(0),
    )
    try:
        _add_rules(ruleset, read, _READ & handled)
        _add_rules(ruleset, write, _WRITE & handled)
        _add_rules(ruleset, execute, (_READ | _EXECUTE) & handled)
        if _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
            code = ctypes.get_errno()
            raise OSError(code, f"prctl(PR_SET_NO_NEW_PRIVS): {os.strerror(code)}")
        _call(_NR_RESTRICT_SELF, "landlock_restrict_self", ctypes.c_int(ruleset), ctypes.c_uint32(0))
    finally:
        os.close(ruleset)
    return Confinement(version, _left_open(version) + (("TCP",) if tcp and version >= _NET_ABI else ()))
