"""Whether a prepared sandbox still stands on what is there: the workspace's root, and what of the machine is shown.

The same look as the helper's own before each start from nothing, from outside. Refuses to know what is mounted where:
that the child looks at. Blocks briefly; called by the waiting sandbox, in a thread.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence

from sandbox_helper.protocol import Standing


def difference(stands_on: Sequence[Standing]) -> str | None:
    """The first place that is another one now, or None. `stands_on`: the workspace, then the others."""
    workspace = stands_on[0]
    if _root_stamp(workspace.path) != workspace.stamp:
        return workspace.path
    for path, stamp in stands_on[1:]:
        try:
            found = os.stat(path)
        except OSError:
            return path
        content = (0, 0) if stat.S_ISDIR(found.st_mode) else (found.st_size, found.st_mtime_ns)
        if (found.st_dev, found.st_ino, *content) != stamp:
            return path
    return None


def _root_stamp(path: str) -> tuple[int, int, int, int] | None:
    """None where it cannot be opened, or is reached by a link: the path was canonical when it was registered, so that
    somebody replaced a directory on the way."""
    try:
        fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        found = os.fstat(fd)
        # The kernel's own name for it has no link in it.
        if os.readlink(f"/proc/self/fd/{fd}") != path:
            return None
        return found.st_dev, found.st_ino, found.st_uid, found.st_gid
    except OSError:
        return None
    finally:
        os.close(fd)
