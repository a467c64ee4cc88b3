"""mapped_root.py MAP COMMAND…: the command as root of a user namespace whose ids are MAP, as in /proc/PID/uid_map."""

import ctypes
import os
import sys

NEWUSER, NEWNS = 0x10000000, 0x20000  # linux/sched.h
libc = ctypes.CDLL(None, use_errno=True)


def main() -> int:
    made, mapped = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        if libc.unshare(NEWUSER | NEWNS) != 0:
            sys.exit(f"unshare: {os.strerror(ctypes.get_errno())}")
        os.write(made[1], b"!")
        os.read(mapped[0], 1)
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)
        os.execv(sys.argv[2], sys.argv[2:])
    os.read(made[0], 1)
    for name in ("uid_map", "gid_map"):
        with open(f"/proc/{child}/{name}", "w", encoding="ascii") as file:
            file.write(sys.argv[1])
    os.write(mapped[1], b"!")
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    sys.exit(main())
