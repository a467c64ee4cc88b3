"""Recovery of patches whose end was not seen: from the journal to the ledger, before anything else runs on their root.

A root under recovery is held by a lease, so nothing can change it meanwhile. What fails is tried again until it works:
a full disk is mended some day. An operation is closed as its journal proves it. One without a journal changed nothing,
for the journal is durable before the first change (PATCH-6, OP-4).

Refuses to know: what is in a journal. Used at start, at reload, by custody and by the patch use case.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

from gateway.errors import Code, ToolError
from gateway.leases import Lease
from gateway.registry import Registry, Workspace
from gateway.store.database import StoreFailed
from gateway.store.ledger import Ending, Ledger, RecordedError
from gateway.use_cases.services import Services
from runner.api import RecoveredPatch, RecoverPatches, RunnerError, WorkspaceRef

FIRST_RETRY_S = 0.2
LAST_RETRY_S = 30.0


class Recovery:
    """One a gateway. `journals`: holds a directory each workspace."""

    def __init__(self, services: Services, ledger: Ledger, journals: Path) -> None:
        self._services = services
        self._ledger = ledger
        self._journals = journals
        self._pending: set[str] = set()
        self._dead: set[str] = {""}
        self._performers: dict[str, str] = {}
        self._runner_up = asyncio.Event()

    def pending(self) -> tuple[str, ...]:
        """Holders of leases that wait for a recovery."""
        return tuple(sorted(self._pending))

    def runner_changed(self) -> None:
        """A waiting recovery need not wait any longer."""
        self._runner_up.set()
        self._runner_up = asyncio.Event()

    def proved_dead(self, instance_id: str) -> None:
        """Nothing of that runner is alive, so another may look at what it worked on."""
        self._dead.add(instance_id)
        self.runner_changed()

    async def admit(self, workspaces: Iterable[Workspace]) -> None:
        """Recovers what lies in the journals of these workspaces, before they serve. One that cannot be recovered now
        is held by a lease and tried again. Raises `StoreFailed` where the ledger cannot be read, `ToolError`
        WORKSPACE_BUSY where a command is still ending on a root that overlaps, or a patch of the same workspace is
        under way or in doubt."""
        unfinished = await self._ledger.unfinished()
        first: dict[str, str] = {}
        for operation in unfinished:
            first.setdefault(operation.workspace_id, operation.operation_id)
        for workspace in workspaces:
            if workspace.environment != "host":
                continue
            journal = self._journals / workspace.workspace_id
            if workspace.workspace_id in first or await asyncio.to_thread(journal.is_dir):
                await self._admit(workspace, first.get(workspace.workspace_id))

    async def close_unregistered(self, registry: Registry) -> None:
        """Operations whose workspace is gone: nobody can look at their root, so their end is unknown (OP-4)."""
        for operation in await self._ledger.unfinished():
            if operation.workspace_id not in registry.workspaces:
                ending = Ending("unknown", reason="recovered: its workspace is no longer registered")
                await self._ledger.finish(operation.operation_id, ending)

    def take_over(self, lease: Lease) -> None:
        """Recovers the root of a patch lease whose operation is in doubt, and gives the lease back in the end. Once
        for each lease, however often it is called."""
        if lease.holder_id in self._pending:
            return
        self._pending.add(lease.holder_id)
        task = asyncio.get_running_loop().create_task(self._until_done(lease), name="patch-recovery")
        self._services.keep(task)

    async def _admit(self, workspace: Workspace, operation_id: str | None) -> None:
        holder = operation_id or f"recovery-{workspace.workspace_id}"
        lease = self._services.leases.acquire(workspace, "patch", holder, "")
        try:
            await self._recover(lease)
        except (RunnerError, ToolError, StoreFailed) as error:
            self._services.log.error("recovery_failed", workspace_id=workspace.workspace_id, reason=str(error))
            self.take_over(lease)
        else:
            self._performers.pop(holder, None)
            self._services.leases.release(holder)  # its root may not be registered yet, so no lock is settled here

    async def _until_done(self, lease: Lease) -> None:
        wait_s = FIRST_RETRY_S
        while True:
            changed = self._runner_up
            try:
                await self._recover(lease)
                break
            except (RunnerError, ToolError, StoreFailed) as error:
                self._services.log.error("recovery_failed", workspace_id=lease.workspace_id, reason=str(error))
            try:
                async with asyncio.timeout(wait_s):
                    await changed.wait()
            except TimeoutError:
                wait_s = min(LAST_RETRY_S, wait_s * 2)
        self._pending.discard(lease.holder_id)
        self._performers.pop(lease.holder_id, None)
        self._services.release(lease.holder_id)

    async def _recover(self, lease: Lease) -> None:
        runner, instance_id = self._services.present_runner()
        performer = self._performers.get(lease.holder_id, lease.instance_id)
        if performer != instance_id and performer not in self._dead:
            raise ToolError(
                Code.RUNNER_UNAVAILABLE, "the runner that worked on this root is not proved dead", retryable=True
            )
        self._performers[lease.holder_id] = instance_id
        request = RecoverPatches(
            workspace=WorkspaceRef(workspace_id=lease.workspace_id, root=lease.root),
            journal_dir=str(self._journals / lease.workspace_id),
        )
        answer = await self._services.performed(runner.recover_patches(request))
        told = {patch.operation_id: patch for patch in answer.recovered}
        for patch in told.values():
            await self._close(patch.operation_id, _ending(patch))
        for operation in await self._ledger.unfinished():
            if operation.workspace_id == lease.workspace_id and operation.operation_id not in told:
                await self._close(operation.operation_id, _untouched())

    async def _close(self, operation_id: str, ending: Ending) -> None:
        if await self._ledger.finish(operation_id, ending):
            self._services.log.warning("operation_recovered", operation_id=operation_id, status=ending.status)


def _ending(patch: RecoveredPatch) -> Ending:
    error = None
    if patch.status in ("failed_rolled_back", "failed_partial"):
        details = {"status": patch.status, "reason": "interrupted"}
        error = RecordedError(Code.FILE_OPERATION_FAILED.value, False, details)
    return Ending(patch.status, patch.files, patch.changes, error=error, reason=f"recovered: {patch.reason}"[:1000])


def _untouched() -> Ending:
    details = {"status": "failed_rolled_back", "reason": "interrupted"}
    return Ending(
        "failed_rolled_back",
        error=RecordedError(Code.FILE_OPERATION_FAILED.value, False, details),
        reason="recovered: it has no journal, so it had changed nothing",
    )
