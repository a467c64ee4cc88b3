"""Takes standard input and output away from everything but the wire of `codespace stdio`, which calls it."""

from __future__ import annotations

import fcntl
import os


def take_standard_streams() -> tuple[int, int]:
    """Moves 0 and 1 to private close-on-exec descriptors; 0 then reads nothing and 1 writes to standard error.

    So nothing that a library or a child prints can end up between messages, and no child inherits the wire."""
    read_fd = fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, 3)
    write_fd = fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, 3)
    null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    return read_fd, write_fd
