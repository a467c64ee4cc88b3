"""What probes are made of: the table of them, their outcomes, and system calls by number.

Part of a program that runs in the sandbox, as a command, with an interpreter that the command sees: the standard
library only, and nothing of this project. It refuses to know what a good outcome is.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import signal
from collections.abc import Callable
from typing import Any, NamedTuple


class Outcome(NamedTuple):
    """`state`: `open` (what the probe tries works), `refused` (it was stopped, with the errno) or `untried`."""

    state: str
    errno: str | None = None
    detail: str = ""


class Place(NamedTuple):
    """Where a probe works. `control`: outside, without a sandbox, where every probe has to succeed.

    `bait`: what was laid out for the probes, by name (see the module that lays it out).
    """

    workspace: str
    bait: dict[str, Any]
    control: bool


class Probe(NamedTuple):
    kind: str
    attempt: Callable[[Place], Outcome]


PROBES: dict[str, Probe] = {}
X86_64 = platform.machine() == "x86_64"
NUMBERS = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "clone": (56, 220),
    "unshare": (272, 97),
    "setns": (308, 268),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "clock_settime": (227, 112),
    "ioctl": (16, 29),
    "mount": (165, 40),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438),
    "mount_setattr": (442, 442),
    "statmount": (457, 457),
    "renameat2": (316, 276),
}
"""By name: the number on x86-64 and on the architectures with the generic table."""
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


def probe(kind: str, name: str) -> Callable[[Callable[[Place], Outcome]], Callable[[Place], Outcome]]:
    def register(function: Callable[[Place], Outcome]) -> Callable[[Place], Outcome]:
        PROBES[name] = Probe(kind, function)
        return function

    return register


def call(name: str, *arguments: object) -> tuple[int, str]:
    """(result, errno name or `ok`) of a call by number, so that libc cannot fall back to another."""
    number = NUMBERS[name][0 if X86_64 else 1]
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = int(libc.syscall(ctypes.c_long(number), *words))
    return result, "ok" if result >= 0 else errno.errorcode[ctypes.get_errno()]


def tried(action: Callable[..., object], *arguments: object) -> Outcome:
    try:
        action(*arguments)
    except OSError as error:
        return Outcome("refused", errno.errorcode.get(error.errno or 0))
    return Outcome("open")


def works(action: Callable[..., object], *arguments: object) -> bool:
    return tried(action, *arguments).state == "open"


def can_write(path: str) -> bool:
    """Opened only, never written."""
    return works(lambda: os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)))


def reached(answers: dict[str, str], refusals: set[str]) -> Outcome:
    """Calls with impossible arguments: whatever is not one of `refusals` came from the kernel behind the filter."""
    through = {name: answer for name, answer in answers.items() if answer not in refusals}
    if through:
        return Outcome("open", None, str(through))
    return Outcome("refused", "/".join(sorted(set(answers.values()))))


def found_any(found: list[str], errno_name: str | None = None) -> Outcome:
    """`open` where the probe found something it must not see."""
    return Outcome("open", None, " ".join(found[:4])) if found else Outcome("refused", errno_name)


def child_that_waits() -> int:
    child = os.fork()
    if child == 0:
        signal.pause()
        os._exit(0)
    return child


def end(child: int) -> None:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def own_user_namespace(extra: int = 0) -> None:
    """For controls: what a process may do that is root in a user namespace of its own. Raises OSError."""
    uid, gid = os.getuid(), os.getgid()
    result, answer = call("unshare", 0x10000000 | extra)
    if result < 0:
        raise OSError(getattr(errno, answer), "unshare")
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
