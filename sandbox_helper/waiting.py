"""A prepared child between its readiness and its command: it waits, looks once more, and goes on or ends.

Everything but the command's own process is done, from a workspace that goes on living meanwhile. What was mounted then
shows it as it is now, but a cover stays on what it was put on: whoever replaces that from outside takes it off, without
a trace here. So the child looks at every mount that stands on something of the workspace, and at every protected name,
before it takes the command; where the set-up would now do anything else, it says `stale` and ends, and the runner
starts from nothing. What lies outside the sandbox the runner looks at meanwhile, and says when to go. Refuses to
repair, and to wait for a runner that is gone. Called by the child.
"""

from __future__ import annotations

import errno
import os
import socket
import stat

from sandbox_helper import init
from sandbox_helper import syscalls as sc
from sandbox_helper.protocol import GO, Cover, Plan, encode, is_below, parse_fed
from sandbox_helper.status import Reporter


class Stale(OSError):
    """The workspace is no longer what this sandbox was prepared for."""

    def __init__(self, what: str) -> None:
        super().__init__(errno.ESTALE, what)
        self.what = what


def until_used(plan: Plan, covers: list[Cover], mounts: int, reporter: Reporter) -> tuple[bytes, ...]:
    """The argv to run, now. Does not return where the runner is gone, or the workspace is another than it was.

    `mounts`: a descriptor of the mount namespace, which goes to the runner: held there, it lets the namespace be taken
    apart after the command's end is known, and not before. Raises OSError, ProtocolError.
    """
    places = _places(plan)
    # Once beforehand: what has just been made must pass, and memory that is shared with the server is copied where the
    # same steps will write to it.
    _look(plan, covers, places)
    report = socket.socket(fileno=reporter.fd)
    socket.send_fds(report, [encode({"waiting": True})], [mounts])
    report.detach()
    os.close(mounts)
    argv = parse_fed(_read(reporter.fd, int.from_bytes(_read(reporter.fd, 4), "big")))
    try:
        _look(plan, covers, places)
    except Stale as error:
        reporter.say({"stale": error.what})
        os._exit(init.RUNNER_GONE)
    if _read(reporter.fd, len(GO)) != GO:
        os._exit(init.RUNNER_GONE)
    return argv


def _read(fd: int, count: int) -> bytes:
    """Exactly `count` bytes. Does not return at the end of the socket."""
    content = b""
    while len(content) < count:
        part = os.read(fd, count - len(content))
        if not part:
            os._exit(init.RUNNER_GONE)
        content += part
    return content


def _places(plan: Plan) -> list[str]:
    """Mounts that stand in another one that is not ours alone, so that its owner can take them off."""
    shown = [mount.target for mount in plan.mounts if mount.kind in ("read_only", "workspace")]
    return [place for place in shown if place == plan.workspace or any(is_below(place, above) for above in shown)]


def _look(plan: Plan, covers: list[Cover], places: list[str]) -> None:
    """Raises Stale."""
    try:
        for place in places:
            if not sc.statx(place).mount_root:
                raise Stale(f"nothing is mounted at {place} any more")
        known = {cover.name: cover for cover in covers}
        for name in plan.protect:
            _look_at_name(plan.workspace, name, known)
    except Stale:
        raise
    except OSError as error:
        raise Stale(f"{error.strerror}: {error.filename}") from error


def _look_at_name(workspace: str, name: str, known: dict[str, Cover]) -> None:
    """Whether `protect.cover` would find the same. Raises Stale, OSError."""
    parts = name.split("/")
    for depth in range(1, len(parts) + 1):
        prefix, last = "/".join(parts[:depth]), depth == len(parts)
        cover = known.get(prefix)
        found = _find(f"{workspace}/{prefix}")
        uncoverable = found is None or not (last or stat.S_ISDIR(found.mode) or stat.S_ISLNK(found.mode))
        if uncoverable and not last and cover is None:
            return  # nothing was to be protected there, and nothing is
        if found is None or cover is None or not found.mount_root:
            raise Stale(f"{prefix} is not what is covered")
        if (found.device, found.inode) != (cover.device, cover.inode):
            raise Stale(f"another {prefix} is covered")
        if not stat.S_ISDIR(found.mode):
            if last and found.links > 1:
                raise Stale(f"{prefix} has another name")
            return


def _find(path: str) -> sc.Found | None:
    """Raises OSError."""
    try:
        return sc.statx(path)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return None
        raise
