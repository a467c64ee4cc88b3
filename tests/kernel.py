"""Kernel features that tests ask for with `@pytest.mark.kernel("name")`, each probed by using it, never by a version.

Called by conftest.py. Knows no sandbox: a probe is the bare system call in a child of its own.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
from collections.abc import Callable

_libc = ctypes.CDLL(None, use_errno=True)
_ALL_NAMESPACES = 0x7E020000  # CLONE_NEWNS|NEWCGROUP|NEWUTS|NEWIPC|NEWUSER|NEWPID|NEWNET, linux/sched.h
_NEWUSER = 0x10000000
_SYS_OPENAT2 = 437  # the same number on every architecture, as all calls since 5.1
_SYS_MOUNT_SETATTR = 442
_SYS_LANDLOCK_CREATE_RULESET = 444


def _in_child(body: Callable[[], int]) -> int:
    """Runs `body` in a forked child and returns its errno, 0 for success."""
    pid = os.fork()
    if pid == 0:
        os._exit(min(body(), 255))
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _call(function: Callable[..., int], *arguments: object) -> int:
    return 0 if function(*arguments) >= 0 else ctypes.get_errno()


def _unshare(flags: int) -> int:
    return _in_child(lambda: _call(_libc.unshare, flags))


def _exists(number: int, *arguments: object) -> int:
    """0 where the call is known: arguments are such that the kernel refuses them first."""
    found = _in_child(lambda: _call(_libc.syscall, number, *arguments))
    return found if found in (errno.ENOSYS, errno.EPERM, errno.EOPNOTSUPP) else 0


def _seccomp() -> int:
    with open("/proc/self/status", encoding="ascii") as status:
        return 0 if "\nSeccomp:" in status.read() else errno.ENOSYS


def _cgroup_v2() -> int:
    try:
        with open("/sys/fs/cgroup/cgroup.controllers", encoding="ascii") as controllers:
            return 0 if controllers.read().strip() else errno.ENOENT
    except OSError as error:
        return error.errno or errno.EIO


PROBES: dict[str, Callable[[], int]] = {
    "seccomp": _seccomp,
    "user_namespace": lambda: _unshare(_NEWUSER),
    "namespaces": lambda: _unshare(_ALL_NAMESPACES),
    "openat2": lambda: _exists(_SYS_OPENAT2, -1, None, None, 0),
    "mount_setattr": lambda: _exists(_SYS_MOUNT_SETATTR, -1, None, 0, None, 0),
    "landlock": lambda: _exists(_SYS_LANDLOCK_CREATE_RULESET, None, 0, 1),
    "cgroup_v2": _cgroup_v2,
}
"""Feature to a probe that answers 0 or an errno."""

OPTIONAL = frozenset({"landlock", "cgroup_v2"})
"""Features that the product does without; where they are missing, CI skips their tests too."""


@functools.cache
def missing(feature: str) -> str | None:
    """Why a feature is not there, or None where it is. Raises KeyError for an unknown name."""
    found = PROBES[feature]()
    return f"the kernel refuses {feature}: {errno.errorcode.get(found, found)}" if found else None
