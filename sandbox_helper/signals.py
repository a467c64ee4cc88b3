"""The two signals that the C library keeps for itself, and hides from programs.

glibc's posix_spawn leaves SIGCANCEL (32) and SIGSETXID (33) ignored in the new program (its linux/spawni.c),
and ignored signals pass through exec: without a reset every command would start with them ignored. Python's `signal`
does not know the two numbers. Called once by the helper's start.
"""

from __future__ import annotations

import ctypes
import os

_HIDDEN = (32, 33)
_NR_RT_SIGACTION = {"x86_64": 13, "aarch64": 134}
_KERNEL_SIGACTION_BYTES = 32
"""handler, flags, restorer, mask: all zero is SIG_DFL without flags (asm/signal.h)."""

_libc = ctypes.PyDLL(None, use_errno=True)


def reset_hidden() -> None:
    """Default dispositions for the signals that the C library hides. Raises OSError."""
    default = ctypes.create_string_buffer(_KERNEL_SIGACTION_BYTES)
    number = ctypes.c_long(_NR_RT_SIGACTION[os.uname().machine])
    for hidden in _HIDDEN:
        if _libc.syscall(number, ctypes.c_long(hidden), default, None, ctypes.c_size_t(8)) != 0:
            code = ctypes.get_errno()
            raise OSError(code, f"rt_sigaction({hidden}): {os.strerror(code)}")
