"""`apply_patch`: registry → policy → key replay → hold → root → lease → record → runner → record → answer.

From the lease on it is a task of its own: a caller that goes away changes nothing, and finds the result by its key. A
preview stops before the hold: it needs no lease and leaves no record. Refuses to know: patch text but for its size and
digest. Called by the application.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Literal

from gateway.answers import PatchAnswer
from gateway.errors import Code, ToolError
from gateway.leases import Lease
from gateway.policy import Action
from gateway.ports import AuditRecord
from gateway.registry import Workspace
from gateway.request_keys import key_conflict
from gateway.store.database import StoreFailed
from gateway.store.ledger import Ending, EndStatus, KeyTaken, RecordedError
from gateway.use_cases.hold import Gate, held_patch
from gateway.use_cases.patching import (
    Patching,
    PatchRequest,
    check_request,
    in_doubt,
    known_result,
    replay,
    stored,
)
from gateway.use_cases.services import Services
from runner import api
from runner.api import ErrorCode, RunnerError, RunnerLost

TOOL = "apply_patch"
_ENDS: Mapping[str, EndStatus] = {
    "failed_rolled_back": "failed_rolled_back",
    "failed_partial": "failed_partial",
    "unknown": "unknown",
}


async def apply_patch(
    services: Services,
    patching: Patching,
    gate: Gate,
    workspace_id: str,
    request: PatchRequest,
    operation_id: str | None = None,
) -> PatchAnswer:
    """Safe to cancel: what was begun goes on. `operation_id`: a new id, under which it is recorded if it is.

    Raises `ToolError`: the decisions' codes, INVALID_ARGUMENT, INVALID_PATCH and the other refusals of the runner,
    OPERATION_KEY_CONFLICT, WORKSPACE_BUSY, VERSION_CONFLICT, RUNNER_UNAVAILABLE; with `operation_id` once minted.
    """
    workspace = services.decide(TOOL, workspace_id, Action.WRITE)
    check_request(request)
    await services.verify_root(workspace)
    if request.check_only:
        return await _preview(services, patching, workspace, request)
    known = await known_result(patching, workspace.workspace_id, request)
    if known is not None:
        return await known
    await gate(workspace, held_patch(workspace_id, request))
    loop = asyncio.get_running_loop()
    operation_id = operation_id or services.ids.new("op")
    task = loop.create_task(_perform(services, patching, gate, workspace, request, operation_id), name="apply-patch")
    services.keep(task)
    if request.operation_key is not None:
        place = (workspace_id, request.operation_key)
        patching.in_flight[place] = (request.digest, task)
        task.add_done_callback(lambda _: patching.in_flight.pop(place, None))
    return await asyncio.shield(task)


# --- before the lease -------------------------------------------------------------------------------------------------
async def _preview(services: Services, patching: Patching, workspace: Workspace, request: PatchRequest) -> PatchAnswer:
    key = request.operation_key
    if key is not None:
        used = (workspace.workspace_id, key) in patching.in_flight
        if used or await stored(patching.ledger.by_key(workspace.workspace_id, key)) is not None:
            raise key_conflict("operation_key", key, workspace.workspace_id)
    runner, _ = services.present_runner()
    journal_dir = await patching.journal_dir(workspace.workspace_id)
    try:
        checked = await runner.apply_patch(
            api.ApplyPatch(
                workspace=workspace.ref(),
                patch=request.patch,
                expected_versions=dict(request.expected_versions),
                check_only=True,
                journal_dir=journal_dir,
                protect=workspace.protect,
            )
        )
    except RunnerLost:
        raise ToolError(
            Code.RUNNER_UNAVAILABLE,
            "the runner was lost during this preview, which changes nothing: try again",
            retryable=True,
        ) from None
    except RunnerError as error:
        raise ToolError.from_runner(error) from None
    return PatchAnswer(
        status="checked", files=checked.files, changes=checked.changes, warnings=checked.warnings or None
    )


# --- from the lease on ------------------------------------------------------------------------------------------------
async def _perform(
    services: Services, patching: Patching, gate: Gate, workspace: Workspace, request: PatchRequest, operation_id: str
) -> PatchAnswer:
    runner, instance_id = services.present_runner()
    if services.registry.workspaces.get(workspace.workspace_id) != workspace:
        # Reloaded since the decision: decide again, on the terms of now.
        workspace = services.decide(TOOL, workspace.workspace_id, Action.WRITE)
        await gate(workspace, held_patch(workspace.workspace_id, request))
    lease = services.leases.acquire(workspace, "patch", operation_id, instance_id)
    try:
        journal_dir = await patching.journal_dir(workspace.workspace_id)
        await stored(patching.ledger.mint(operation_id, workspace.workspace_id, request.operation_key, request.digest))
    except KeyTaken:
        # Somebody with this key came and went between the look at the key and the lease.
        services.release(operation_id)
        return await _of_taken_key(patching, workspace.workspace_id, request)
    except BaseException:
        services.release(operation_id)  # nothing has begun
        raise
    patch = api.ApplyPatch(
        workspace=workspace.ref(),
        patch=request.patch,
        expected_versions=dict(request.expected_versions),
        operation_id=operation_id,
        journal_dir=journal_dir,
        protect=workspace.protect,
    )
    try:
        applied = await services.performed(runner.apply_patch(patch))
    except RunnerError as error:
        raise await _failed(services, patching, workspace, lease, error, request.operation_key) from None
    ending = Ending("applied", applied.files, applied.changes, applied.warnings)
    await _close(services, patching, workspace, lease, ending)
    return PatchAnswer(
        status="applied",
        operation_id=operation_id,
        operation_key=request.operation_key,
        files=applied.files,
        changes=applied.changes,
        warnings=applied.warnings or None,
    )


async def _of_taken_key(patching: Patching, workspace_id: str, request: PatchRequest) -> PatchAnswer:
    assert request.operation_key is not None
    recorded = await stored(patching.ledger.by_key(workspace_id, request.operation_key))
    if recorded is None or recorded.request_digest != request.digest:
        raise key_conflict("operation_key", request.operation_key, workspace_id)
    return await replay(recorded)


async def _failed(
    services: Services,
    patching: Patching,
    workspace: Workspace,
    lease: Lease,
    error: RunnerError,
    operation_key: str | None,
) -> ToolError:
    """Records what became of an operation that was not applied and returns what the caller is told."""
    operation_id = lease.holder_id
    status: EndStatus = _ENDS.get(str(error.details.get("status")), "rejected")
    if isinstance(error, RunnerLost):
        # The lease stays until the runner is proved dead and its journal is recovered: custody sees to that.
        _audit(services, workspace, operation_id, "unknown", Code.RUNNER_UNAVAILABLE)
        await _doubt(services, patching, operation_id)
        return in_doubt(operation_id, "unknown")
    if status == "unknown" or (error.code is ErrorCode.INTERNAL and status == "rejected"):
        # The runner lives and does not know: its journal does.
        _audit(services, workspace, operation_id, "unknown", Code(error.code.value))
        await _doubt(services, patching, operation_id)
        patching.recover(lease)
        return in_doubt(operation_id, "unknown")
    told = ToolError.from_runner(error, operation_id=operation_id)
    if error.code is ErrorCode.RUNNER_UNAVAILABLE:  # proved not sent; under this key it is over all the same
        told.retryable = False
        told.message = "the runner went away before the patch was sent, so nothing changed: send it under a new key"
    elif told.retryable and operation_key is not None:  # the same call would give this result again
        told.retryable = False
        told.message = f"{told.message} Under this key it is over: send it again under a new one."
    ending = Ending(
        status,
        error=RecordedError(told.code.value, told.retryable, told.details),
        reason=str(error.details.get("reason") or told.code.value)[:200],
    )
    await _close(services, patching, workspace, lease, ending)
    return told


async def _doubt(services: Services, patching: Patching, operation_id: str) -> None:
    try:
        await patching.ledger.doubt(operation_id)
    except StoreFailed as failure:  # it stays unfinished, which recovery closes as well
        services.log.error("ledger_failed", operation_id=operation_id, reason=str(failure))


async def _close(services: Services, patching: Patching, workspace: Workspace, lease: Lease, ending: Ending) -> None:
    """Records the end and gives the lease back. Where it cannot be recorded the lease stays with recovery, which tries
    again from the journal: nothing may run on a root whose last operation is not in the ledger."""
    operation_id = lease.holder_id
    done = ending.status == "applied"
    code = None if ending.error is None else Code(ending.error.code)
    _audit(services, workspace, operation_id, "done" if done else "failed", code)
    try:
        await patching.ledger.finish(operation_id, ending)
    except StoreFailed as failure:
        services.log.error("ledger_failed", operation_id=operation_id, reason=str(failure))
        patching.recover(lease)
        raise ToolError(
            Code.FILE_OPERATION_FAILED,
            f"the patch ended as {ending.status}, but the ledger cannot be written, so the workspace waits until it "
            "can: the operator frees space on the disk of the data directory",
            details={"status": ending.status, "reason": "ledger_not_writable"},
            operation_id=operation_id,
        ) from None
    services.release(operation_id)


def _audit(
    services: Services,
    workspace: Workspace,
    operation_id: str,
    outcome: Literal["done", "failed", "unknown"],
    code: Code | None,
) -> None:
    ids = {"operation_id": operation_id}
    value = None if code is None else code.value
    services.audit.record(AuditRecord("mutation", TOOL, workspace.workspace_id, outcome, value, ids))
