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
    workspace, *others = stands_on
    try:
        # Its path was canonical when it was registered; a link on the way means that somebody replaced it.
        if os.path.realpath(workspace.path, strict=True) != workspace.path:
            return workspace.path
        found = os.lstat(workspace.path)
        if (found.st_dev, found.st_ino, found.st_uid, found.st_gid) != workspace.stamp:
            return workspace.path
    except OSError:
        return workspace.path
    return next((place.path for place in others if not _is_unchanged(place)), None)


def _is_unchanged(place: Standing) -> bool:
    try:
        found = os.stat(place.path)
    except OSError:
        return False
    content = (0, 0) if stat.S_ISDIR(found.st_mode) else (found.st_size, found.st_mtime_ns)
    return (found.st_dev, found.st_ino, *content) == place.stamp
