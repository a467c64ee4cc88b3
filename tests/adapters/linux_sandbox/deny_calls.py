"""deny_calls.py CALL PROGRAM ARG…: runs a program for which one system call fails with EPERM (x86-64).

The faults of a machine that lacks something, without that machine. Run by tests as the helper's prefix.
"""

import ctypes
import os
import struct
import sys

NUMBERS = {
    "clone3": 435, "mount": 165, "open_tree": 428, "move_mount": 429, "mount_setattr": 442, "pivot_root": 155,
    "umount2": 166, "capset": 126, "capget": 125, "openat2": 437, "close_range": 436, "seccomp": 317, "setsid": 112,
    "chdir": 80, "prlimit64": 302, "socket": 41, "unshare": 272, "readlinkat": 267, "setresuid": 117,
}  # fmt: skip
"""What the helper itself calls."""
OTHERS = {"ptrace": 101}
LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, EPERM = 0x7FFF0000, 0x00050001


class Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))


def deny(number: int) -> None:
    steps = [(LOAD, 0, 0, 0), (EQUAL, 0, 1, number), (RETURN, 0, 0, EPERM), (RETURN, 0, 0, ALLOW)]
    program = Program(len(steps), b"".join(struct.pack("HBBI", *step) for step in steps))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(38, 1, 0, 0, 0) or libc.syscall(ctypes.c_long(317), 1, 0, ctypes.byref(program)):
        raise OSError(ctypes.get_errno(), "the filter of the test was refused")


if __name__ == "__main__":
    if len(sys.argv) == 2:
        # A control: the call must really fail here.
        deny(NUMBERS[sys.argv[1]])
        result = ctypes.CDLL(None, use_errno=True).syscall(ctypes.c_long(NUMBERS[sys.argv[1]]), -1, -1, -1, -1, -1)
        sys.exit(0 if result == -1 else 1)
    deny((NUMBERS | OTHERS)[sys.argv[1]])
    os.execve(sys.argv[2], sys.argv[2:], {})
