"""What the helper takes from itself before it reads the first byte of a patch.

In order: parent-death signal, limits, Landlock on the root and the journal directory, no_new_privs, and a seccomp
filter that ends networking, new processes and programs. Landlock may be missing (an old kernel, a container's filter);
the helper then says so in its hello and goes on, since file access is by held descriptors in any case. Everything else
that fails ends the helper. Called once by `program`.
"""

from __future__ import annotations

import os
import resource
import signal
import struct
from collections.abc import Iterable

from adapters.confinement import landlock
from adapters.patch_helper import syscalls

MEMORY_BYTES = 256 * 1024 * 1024
FILE_SIZE_BYTES = 128 * 1024 * 1024
OPEN_FILES = 16_384
REQUEST_CPU_S = 30
"""CPU time of one request. The step budget ends a costly patch long before; this bounds what the budget overlooks."""

_EPERM = 1
# linux/audit.h and asm/unistd.h: audit architecture, then the calls refused.
_CALLS = {
    "x86_64": (
        0xC000003E,
        {
            "socket": 41, "connect": 42, "bind": 49, "socketpair": 53, "clone": 56, "fork": 57, "vfork": 58,
            "execve": 59, "ptrace": 101, "mount": 165, "umount2": 166, "bpf": 321, "execveat": 322, "unshare": 272,
            "setns": 308, "io_uring_setup": 425, "clone3": 435,
        },
    ),
    "aarch64": (
        0xC00000B7,
        {
            "socket": 198, "connect": 203, "bind": 200, "socketpair": 199, "clone": 220, "execve": 221, "ptrace": 117,
            "mount": 40, "umount2": 39, "bpf": 280, "execveat": 281, "unshare": 97, "setns": 268,
            "io_uring_setup": 425, "clone3": 435,
        },
    ),
}  # fmt: skip
_X32_BIT = 0x40000000
_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06  # linux/bpf_common.h
_ALLOW, _ERRNO, _KILL_PROCESS = 0x7FFF0000, 0x00050000, 0x80000000  # linux/seccomp.h


def die_with_parent(parent_pid: int) -> None:
    """SIGKILL when the runner ends. Exits if it already has."""
    syscalls.set_parent_death_signal(signal.SIGKILL)
    if os.getppid() != parent_pid:
        raise SystemExit("the runner that started this helper is gone")


def set_limits() -> None:
    """Memory, file size, descriptors, no core."""
    _limit(resource.RLIMIT_AS, MEMORY_BYTES)
    _limit(resource.RLIMIT_FSIZE, FILE_SIZE_BYTES)
    _limit(resource.RLIMIT_NOFILE, OPEN_FILES)
    _limit(resource.RLIMIT_CORE, 0)


def _limit(which: int, value: int) -> None:
    _, hard = resource.getrlimit(which)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(which, (value, value))


def renew_cpu_limit() -> None:
    """Gives the next request its own CPU time: the kernel counts what the process has used since it began."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    soft = int(usage.ru_utime + usage.ru_stime) + REQUEST_CPU_S
    resource.setrlimit(resource.RLIMIT_CPU, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))


def confine(trees: Iterable[int]) -> dict[str, str]:
    """Confines the process to `trees` (directory descriptors). What is in force, by name; raises OSError."""
    state = {"seccomp": "active", "landlock": "active"}
    try:
        # Version 2 knows renames between directories; below it they are refused altogether.
        landlock.restrict(write=trees, at_least=2)
    except OSError as error:
        state["landlock"] = f"off ({error.strerror or error})"
        syscalls.set_no_new_privs()
    machine = os.uname().machine
    if machine in _CALLS:
        syscalls.install_seccomp(_program(*_CALLS[machine]))
    else:
        state["seccomp"] = f"off (unknown machine {machine})"
    syscalls.set_undumpable()
    return state


def _program(architecture: int, calls: dict[str, int]) -> bytes:
    """Kills a foreign architecture, answers EPERM to `calls` (and to x32 numbers), allows the rest."""

    def step(code: int, k: int, yes: int = 0, no: int = 0) -> bytes:
        return struct.pack("=HBBI", code, yes, no, k)

    numbers = sorted(calls.values())
    body = [step(_LOAD, 4), step(_JUMP_EQUAL, architecture, 1, 0), step(_RETURN, _KILL_PROCESS), step(_LOAD, 0)]
    body.append(step(_JUMP_AT_LEAST, _X32_BIT, len(numbers) + 1, 0))
    body += [step(_JUMP_EQUAL, number, len(numbers) - index, 0) for index, number in enumerate(numbers)]
    return b"".join([*body, step(_RETURN, _ALLOW), step(_RETURN, _ERRNO | _EPERM)])
