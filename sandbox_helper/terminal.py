"""The command's terminal, made in the sandbox's own devpts so that its name is true inside; the master goes out.

Refuses to know who reads it. Called by the child after the pivot.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import termios

from sandbox_helper.protocol import encode

_TIOCSPTLCK = 0x40045431
_TIOCGPTN = 0x80045430


def make(report_fd: int, size: tuple[int, int]) -> str:
    """Sends the master over the report socket and returns the path of the terminal. `size`: rows, columns.

    The size is set before any program can ask for it. Raises OSError. Source: pts(4), ioctl_tty(2).
    """
    master = os.open("/dev/pts/ptmx", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        fcntl.ioctl(master, _TIOCSPTLCK, struct.pack("i", 0))
        (number,) = struct.unpack("I", fcntl.ioctl(master, _TIOCGPTN, bytes(4)))
        fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("4H", size[0], size[1], 0, 0))
        report = socket.socket(fileno=report_fd)
        try:
            socket.send_fds(report, [encode({"master": number})], [master])
        finally:
            report.detach()
    finally:
        os.close(master)
    return f"/dev/pts/{number}"


def take(slave_path: str) -> int:
    """Opens the terminal and makes it the controlling one of the caller's new session. Raises OSError."""
    slave = os.open(slave_path, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
    return slave
