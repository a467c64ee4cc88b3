"""Parts of the launcher's probe: where it runs, what it found, and the ladder of what a plan may do without.

Refuses to start anything. Called by the launcher.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from adapters.linux_sandbox.client import HelperClient
from adapters.linux_sandbox.host import ROOT_STAND_IN_ID
from adapters.linux_sandbox.network import PROXY_PLACE
from adapters.linux_sandbox.plan import Abilities
from runner.api import Limits, Protection, WorkspaceTerms
from sandbox_helper.protocol import NAMESPACES, Failure, Plan

PROBE_LIMITS = Limits(cpu_s=3600)
"""Every limit is set, so that each is proved."""
PREFIX = "codespace-probe-"
ABANDONED_S = 60.0
"""A probe takes less by far, and the making of its directory less still."""
_LEAF_REFUSED = ("EACCES", "EBUSY", "EBADF", "ENOENT", "ENODEV", "EOPNOTSUPP")
"""What clone3 says of the control group; of namespaces it says other things. Source: clone(2)."""


@dataclass(frozen=True)
class Probe:
    """What a real sandbox of `helper` was: `found` under a plan bent to `abilities`."""

    helper: HelperClient
    abilities: Abilities
    found: tuple[Protection, ...]


@dataclass(frozen=True)
class KnownPlan:
    """The last plan of a root, with or without a terminal, kept while its terms are."""

    terms: WorkspaceTerms
    abilities: Abilities
    plan: Plan
    id: str
    terminal: bool = False

    @property
    def key(self) -> tuple[str, bool]:
        return self.terms.root, self.terminal


@asynccontextmanager
async def temporary_workspace() -> AsyncIterator[WorkspaceTerms]:
    """A directory of the probe's own with one protected name that is there and one that is not.

    Raises OSError where there is no place for one.
    """
    making = asyncio.ensure_future(asyncio.to_thread(_make_workspace))
    try:
        root, lock = await asyncio.shield(making)
    except asyncio.CancelledError:
        making.add_done_callback(_give_up)
        raise
    try:
        protect = (".git/config", ".git/hooks")
        yield WorkspaceTerms(workspace_id="probe", root=root, protect=protect, limits=PROBE_LIMITS)
    finally:
        await asyncio.to_thread(shutil.rmtree, root, ignore_errors=True)
        os.close(lock)


def _give_up(making: asyncio.Future[tuple[str, int]]) -> None:
    """Of a probe that was cancelled before it had its directory; the next probe removes that."""
    if not making.cancelled() and making.exception() is None:
        os.close(making.result()[1])


def remove_abandoned(now_s: float, place: str) -> None:
    """Removes what probes left in `place` that were killed: directories of ours, of some age, that nobody holds."""
    owners = {os.geteuid(), ROOT_STAND_IN_ID} if os.geteuid() == 0 else {os.geteuid()}
    for entry in os.scandir(place):
        if not entry.name.startswith(PREFIX):
            continue
        try:
            found = entry.stat(follow_symlinks=False)
            if found.st_uid not in owners or now_s - found.st_ctime < ABANDONED_S:
                continue
            fd = os.open(entry.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue  # gone meanwhile, or no directory
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(entry.path, ignore_errors=True)
        except BlockingIOError:
            pass  # of a probe that goes on
        finally:
            os.close(fd)


def _make_workspace() -> tuple[str, int]:
    """The directory and a descriptor that holds its lock. Raises OSError."""
    remove_abandoned(time.time(), tempfile.gettempdir())
    root = os.path.realpath(tempfile.mkdtemp(prefix=PREFIX))
    lock = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _fill(root)
    except BaseException:
        shutil.rmtree(root, ignore_errors=True)
        os.close(lock)
        raise
    return root, lock


def _fill(root: str) -> None:
    os.makedirs(f"{root}/.git/hooks")
    if os.geteuid() == 0:
        # Whether a file system takes an id map is a matter of each workspace's own, not of the temporary directory's.
        for path in (root, f"{root}/.git", f"{root}/.git/hooks"):
            os.chown(path, ROOT_STAND_IN_ID, ROOT_STAND_IN_ID)


def is_idmap_failure(failure: Failure) -> bool:
    return failure.stage == "mounts" and failure.message.startswith("mount_setattr")


def is_leaf_refusal(failure: Failure) -> bool:
    return failure.stage == "namespace" and failure.errno in _LEAF_REFUSED


def weaken(abilities: Abilities, failure: Failure, owner: tuple[int, int]) -> Abilities | None:
    """The next plan to try after `failure`, or None where nothing less is acceptable.

    `owner`: (uid, gid) of the workspace; a command is never host uid 0, so root's own workspace needs the id map.
    """
    if failure.stage == "network" and failure.path not in ("", "proxy", PROXY_PLACE) and abilities.transparent:
        return replace(abilities, transparent=False)
    if failure.stage == "mounts" and failure.path == "proc" and abilities.own_proc:
        return replace(abilities, own_proc=False)
    if failure.stage == "mounts" and failure.path == "proc" and abilities.processes_proc:
        return replace(abilities, processes_proc=False)
    if is_idmap_failure(failure) and abilities.owner is None and owner[0] != 0:
        return replace(abilities, owner=owner)
    if abilities.leaf is not None and (failure.stage == "leaf" or is_leaf_refusal(failure)):
        return replace(abilities, leaf=None)
    if failure.stage == "namespace" and failure.errno in ("EINVAL", "EPERM", "ENOSPC") and abilities.cgroup_namespace:
        return replace(abilities, cgroup_namespace=False)
    return None


def current_namespaces() -> dict[str, str]:
    """The runner's own. A name that this kernel lacks is absent outside and inside, and so never counts as own."""
    found = {}
    for name in NAMESPACES:
        try:
            found[name] = os.readlink(f"/proc/self/ns/{name}")
        except OSError:
            found[name] = ""
    return found
