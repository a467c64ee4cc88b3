"""The mutation lease: at most one command or patch changes a root at a time (LEASE-1, LEASE-2).

States of a root: free → held by one holder → free. A lease is released when its holder is known to be over: exit, proof
that it never started, or proof of death after its runner was lost. It is never taken over and never expires, since a
clock proves no death. Roots that lie in one another count as one: a reload may register a directory inside a root whose
last command is still ending. Two patches of one workspace exclude each other whatever its roots: a reload may give it
another root while a patch is under way, and both would use one journal.

Pure bookkeeping. Refuses to know: how a death is proved, registries, runners. Used by the mutating use cases.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gateway.errors import Code, ToolError
from gateway.registry import Workspace
from gateway.system_places import inside

HolderKind = Literal["process", "patch"]
_REMEDY: dict[HolderKind, str] = {
    "process": "wait for its end with process_status and wait_ms, or end it with terminate_process",
    "patch": "try again when it has finished; operation_status tells",
}


@dataclass(frozen=True)
class Lease:
    """`holder_id`: a process_id or an operation_id. `instance_id`: of the runner that performs it."""

    workspace_id: str
    root: str
    device: int
    inode: int
    kind: HolderKind
    holder_id: str
    instance_id: str


class LeaseTable:
    """All leases of this gateway. Not for use from several threads: the event loop is the lock."""

    def __init__(self) -> None:
        self._held: dict[str, Lease] = {}

    def acquire(self, workspace: Workspace, kind: HolderKind, holder_id: str, instance_id: str) -> Lease:
        """Takes the lease or raises `ToolError` WORKSPACE_BUSY with details `{workspace_id, holder: {kind, id}}`.

        `holder_id` must be new: an id that holds a lease already is a fault of ours (`ValueError`).
        """
        for held in self._held.values():
            same = (held.device, held.inode) == (workspace.device, workspace.inode)
            journal = kind == held.kind == "patch" and held.workspace_id == workspace.workspace_id
            if same or journal or inside(workspace.root, held.root) or inside(held.root, workspace.root):
                raise ToolError(
                    Code.WORKSPACE_BUSY,
                    f'workspace "{workspace.workspace_id}" is held by {held.kind} {held.holder_id}: '
                    f"{_REMEDY[held.kind]}",
                    retryable=True,
                    details={
                        "workspace_id": workspace.workspace_id,
                        "holder": {"kind": held.kind, "id": held.holder_id},
                    },
                )
        if holder_id in self._held:
            raise ValueError(f"{holder_id} holds a lease already")
        lease = Lease(
            workspace.workspace_id,
            workspace.root,
            workspace.device,
            workspace.inode,
            kind,
            holder_id,
            instance_id,
        )
        self._held[holder_id] = lease
        return lease

    def release(self, holder_id: str) -> Lease | None:
        """Gives the lease back once its holder is known to be over. None if it was given back before: idempotent."""
        return self._held.pop(holder_id, None)

    def of_instance(self, instance_id: str) -> tuple[Lease, ...]:
        """What that runner performs, or performed when it was lost."""
        return tuple(lease for lease in self._held.values() if lease.instance_id == instance_id)

    def held(self) -> tuple[Lease, ...]:
        """All leases, oldest first."""
        return tuple(self._held.values())
