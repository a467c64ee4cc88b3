"""The system calls that Python lacks: renameat2 and prctl, one thin wrapper each.

Arguments and constants have the kernel's names; errno is kept and the path is in the error. Called by the helper
process alone. Sources: renameat2(2), prctl(2), asm/unistd.h.
"""

from __future__ import annotations

import ctypes
import os

_RENAME_NOREPLACE = 1
_RENAME_EXCHANGE = 2
_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_NO_NEW_PRIVS = 38
_NR_RENAMEAT2 = {"x86_64": 316, "aarch64": 276, "riscv64": 276}

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_libc.prctl.argtypes = (ctypes.c_int, *[ctypes.c_ulong] * 4)


def _renameat2(old_fd: int, old: str, new_fd: int, new: str, flags: int) -> None:
    number = _NR_RENAMEAT2.get(os.uname().machine)
    if number is None:
        raise OSError(38, f"renameat2 is unknown on {os.uname().machine}")  # ENOSYS
    result = _libc.syscall(
        ctypes.c_long(number),
        ctypes.c_int(old_fd),
        ctypes.c_char_p(os.fsencode(old)),
        ctypes.c_int(new_fd),
        ctypes.c_char_p(os.fsencode(new)),
        ctypes.c_uint(flags),
    )
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), old, None, new)


def rename_noreplace(old_fd: int, old: str, new_fd: int, new: str) -> None:
    """Renames; EEXIST where `new` is there already. Atomic."""
    _renameat2(old_fd, old, new_fd, new, _RENAME_NOREPLACE)


def rename_exchange(old_fd: int, old: str, new_fd: int, new: str) -> None:
    """Swaps two names, both of which must exist. Atomic."""
    _renameat2(old_fd, old, new_fd, new, _RENAME_EXCHANGE)


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl({option}, {value}): {os.strerror(code)}")


def set_parent_death_signal(signum: int) -> None:
    """The signal this process gets when the thread that started it ends."""
    _prctl(_PR_SET_PDEATHSIG, signum)


def set_undumpable() -> None:
    """No core dumps, and no ptrace or /proc access by others of the uid."""
    _prctl(_PR_SET_DUMPABLE, 0)


def set_no_new_privs() -> None:
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


class _FilterProgram(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def install_seccomp(program: bytes) -> None:
    """Installs a BPF program (8 bytes an instruction) for this thread, for good. Needs no_new_privs. seccomp(2)."""
    _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2
    record = _FilterProgram(len(program) // 8, program)
    if _libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(record), 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl(PR_SET_SECCOMP): {os.strerror(code)}")
