"""What a path leads over: the symbolic links between a name and the place that it stands for.

Whoever can write where one of them lies decides where the name leads the next time it is used. Refuses to know: what
the paths are for. Used by the registry.
"""

from __future__ import annotations

import os

from gateway.system_places import inside

_MOST_LINKS = 40
"""As many as Linux follows for one name (path_resolution(7))."""


def links_over(path: str) -> tuple[str, ...]:
    """Where each link lies that `path`, an absolute one, leads over: canonical places, in order. What does not exist
    is no link. Blocks on the disk."""
    found: list[str] = []
    at = "/"
    waiting = path.split("/")[::-1]
    while waiting and len(found) <= _MOST_LINKS:
        part = waiting.pop()
        if part == "..":
            at = os.path.dirname(at)
        if part in ("", ".", ".."):
            continue
        place = os.path.join(at, part)
        try:
            target = os.readlink(place)
        except OSError:
            at = place
            continue
        found.append(place)
        if target.startswith("/"):
            at = "/"
        waiting.extend(target.split("/")[::-1])
    return tuple(found)


def link_within(path: str, directory: str) -> str | None:
    """The first link on the way of `path` that lies in `directory`, a canonical path; or None. Blocks on the disk."""
    return next((link for link in links_over(path) if inside(link, directory)), None)
