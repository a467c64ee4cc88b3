"""Children that a dead helper left without telling of them: found by the helper's session, which they are still in.

Refuses to know what they were for. Called by the launcher when a helper dies while a start is under way.
"""

from __future__ import annotations

import os
from collections.abc import Collection


def find_orphans(session: int, known: Collection[int]) -> list[int]:
    """Children of this process in `session`, the helper itself and `known` ones apart."""
    own, found = os.getpid(), []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) in (session, *known):
            continue
        try:
            with open(f"/proc/{entry}/stat", "rb") as file:
                # The name may hold spaces and parentheses; the fields after it do not.
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == own and int(fields[3]) == session:
            found.append(int(entry))
    return found
