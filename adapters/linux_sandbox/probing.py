"""Parts of the launcher's probe: where it runs, what it found, and the ladder of what a plan may do without.

Refuses to start anything. Called by the launcher.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from adapters.linux_sandbox.client import HelperClient
from adapters.linux_sandbox.plan import Abilities
from runner.api import Protection, WorkspaceTerms
from sandbox_helper.protocol import NAMESPACES, Failure


@dataclass(frozen=True)
class Probe:
    """What a real sandbox of `helper` was: `found` under a plan bent to `abilities`."""

    helper: HelperClient
    abilities: Abilities
    found: tuple[Protection, ...]


@contextmanager
def temporary_workspace() -> Iterator[WorkspaceTerms]:
    """A directory of the probe's own with one protected name that is there and one that is not."""
    root = os.path.realpath(tempfile.mkdtemp(prefix="codespace-probe-"))
    try:
        os.makedirs(f"{root}/.git/hooks")
        yield WorkspaceTerms(workspace_id="probe", root=root, protect=(".git/config", ".git/hooks"))
    finally:
        shutil.rmtree(root, ignore_errors=True)


def weaken(abilities: Abilities, failure: Failure) -> Abilities | None:
    """The next plan to try after `failure`, or None where nothing less is acceptable."""
    if failure.stage == "mounts" and failure.path == "proc" and abilities.own_proc:
        return replace(abilities, own_proc=False)
    if failure.stage == "mounts" and failure.message.startswith("mount_setattr") and abilities.idmap:
        return replace(abilities, idmap=False)
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
