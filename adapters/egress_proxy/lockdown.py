"""What the proxy takes from itself before it reads a byte of hostile traffic.

In order: no core, few descriptors; an unprivileged user where it was started as root; parent-death signal (a change of
ids clears it), no_new_privs, Landlock without any writing, undumpable. Landlock may be missing; then the hello says so,
and what is left is a process without a secret, a right or a writable file of the gateway's. Everything else that fails
ends the proxy. Called once by the program, before it starts a thread.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal

from adapters.confinement import landlock

PROXY_ID = 61001
"""uid and gid where the runner is root: in no range that Debian or systemd gives to anybody, and no command's."""
OPEN_FILES = 8192
MEMORY_BYTES = 1024 * 1024 * 1024
_READABLE = ("/etc", "/usr", "/lib", "/lib64", "/run/systemd/resolve", "/run/resolvconf", "/run/nscd")
"""What a resolver reads: its configuration, and the libraries that it loads late."""

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 1, 4, 38  # linux/prctl.h
_libc = ctypes.CDLL(None, use_errno=True)
_libc.prctl.argtypes = (ctypes.c_int, *[ctypes.c_ulong] * 4)


def confine(parent_pid: int) -> dict[str, str]:
    """What is in force, by name. Raises OSError; SystemExit where the runner is gone already."""
    for which, value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, OPEN_FILES),
        (resource.RLIMIT_DATA, MEMORY_BYTES),
    ):
        _limit(which, value)
    state = {"user": "the runner's own", "landlock": "active"}
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(PROXY_ID, PROXY_ID, PROXY_ID)
        os.setresuid(PROXY_ID, PROXY_ID, PROXY_ID)
        state["user"] = str(PROXY_ID)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        raise SystemExit("the runner that started this proxy is gone")
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    trees = [os.open(path, os.O_PATH | os.O_CLOEXEC) for path in _READABLE if os.path.exists(path)]
    try:
        landlock.restrict(execute=trees, at_least=1, tcp=True)
    except OSError as error:
        state["landlock"] = f"off ({error.strerror or error})"
    finally:
        for tree in trees:
            os.close(tree)
    _prctl(_PR_SET_DUMPABLE, 0)
    return state


def _limit(which: int, value: int) -> None:
    _, hard = resource.getrlimit(which)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(which, (value, value))


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl({option}, {value}): {os.strerror(code)}")
