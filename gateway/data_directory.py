"""The data directory: made, checked and locked before anything in it is opened (LEASE-2, OP-5).

Refuses to know: what the store and the journals hold. Used by the application.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from gateway.errors import StartFailed
from gateway.locks import DirectoryLock, lock_directory


def open_data_directory(path: Path) -> DirectoryLock:
    """Makes `path` with mode 0700 if it is missing, and locks it. Blocks on the disk.

    Raises `StartFailed` where it cannot be made, belongs to another user or is open to others (a database of refusals
    and ids is nobody else's business), and `AlreadyServed`.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        real = os.path.realpath(path)
        status = os.stat(real)
    except OSError as error:
        raise StartFailed(
            f"the data directory cannot be made ({error.strerror})", str(path), "name another with --data-dir"
        ) from None
    if not stat.S_ISDIR(status.st_mode):
        raise StartFailed("the data directory is not a directory", str(path), "name another with --data-dir")
    if status.st_uid != os.geteuid():
        raise StartFailed(
            f"the data directory belongs to uid {status.st_uid}", str(path), f"chown it to uid {os.geteuid()}"
        )
    if stat.S_IMODE(status.st_mode) & 0o077:
        raise StartFailed("the data directory is open to other users", str(path), f"chmod 700 {path}")
    return lock_directory(real, "data directory")
