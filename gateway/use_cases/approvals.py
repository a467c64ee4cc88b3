"""`approval_create`, `approval_resolve`, `operation_resume`: the life of a hold (APPR-2 to APPR-6).

A resume claims the hold, runs the ordinary path once, with its policy as it is then, and records the result with the
end of the hold. It is a task of its own: a caller that goes away changes nothing. What was interrupted is settled from
what is proved: a patch by the ledger, since the claim names the operation that it was about to mint; a command by
nothing, so it stays APPROVAL_AMBIGUOUS and is never started again. Refuses to know: how a call is carried out. Called
by the application.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Literal

from gateway.answers import ExecDispatched, HoldAnswer, HoldListed, PatchAnswer, ResumeAnswer
from gateway.errors import Code, ToolError
from gateway.policy import Action
from gateway.ports import AuditRecord
from gateway.store.approvals import ApprovalStore, Hold, Outcome, State
from gateway.store.database import StoreFailed
from gateway.store.ledger import Ledger
from gateway.use_cases.hold import HeldCall, Holds, check_call
from gateway.use_cases.patching import stored
from gateway.use_cases.resumed import answer_of, in_doubt, outcome_of_error, outcome_of_operation
from gateway.use_cases.services import Services

Decision = Literal["grant", "deny"]
RunPatch = Callable[[HeldCall, str], Awaitable[PatchAnswer]]
RunExec = Callable[[HeldCall], Awaitable[ExecDispatched]]
_UNCLAIM = Outcome()
"""In the place of a result that waits to be recorded: nothing was begun."""


class Approvals:
    """One a gateway. `run_patch` and `run_exec`: the ordinary paths without a gate; the patch's under the id given."""

    def __init__(
        self,
        services: Services,
        ledger: Ledger,
        store: ApprovalStore,
        holds: Holds,
        run_patch: RunPatch,
        run_exec: RunExec,
    ) -> None:
        self._services = services
        self._ledger = ledger
        self._store = store
        self._holds = holds
        self._run_patch = run_patch
        self._run_exec = run_exec
        self._resuming: set[str] = set()
        self._unrecorded: dict[str, Outcome] = {}

    async def create(self, call: HeldCall) -> HoldAnswer:
        """Opens a hold whatever `approvals` says, or finds the live one of the same request. Raises `ToolError`: the
        decisions' codes, INVALID_PATCH, INVALID_COMMAND, INVALID_ARGUMENT, APPROVAL_CONFLICT, FILE_OPERATION_FAILED."""
        action = Action.WRITE if call.tool == "apply_patch" else Action.EXEC
        self._services.decide("approval_create", call.workspace_id, action)
        check_call(call)
        hold = await self._holds.open(call)
        return HoldAnswer(approval_id=hold.approval_id, state=hold.state)

    async def resolve(self, approval_id: str, decision: Decision) -> HoldAnswer:
        """Once. Raises `ToolError` APPROVAL_NOT_FOUND, APPROVAL_CONFLICT, FILE_OPERATION_FAILED."""
        hold = await self.find(approval_id)
        if not await stored(self._store.resolve(approval_id, decision)):
            raise _conflict(await self.find(approval_id), "only a pending hold can be granted or denied")
        if decision == "deny":
            await self._erase()
        said: Literal["allowed", "refused"] = "allowed" if decision == "grant" else "refused"
        ids = {"approval_id": approval_id}
        self._services.audit.record(AuditRecord("decision", "approval_resolve", hold.workspace_id, said, None, ids))
        return HoldAnswer(approval_id=approval_id, state="granted" if decision == "grant" else "denied")

    async def resume(self, approval_id: str) -> ResumeAnswer:
        """Runs a granted call, once; later calls get its result. Safe to cancel.

        Raises `ToolError`: APPROVAL_NOT_FOUND, APPROVAL_CONFLICT, APPROVAL_AMBIGUOUS, FILE_OPERATION_FAILED, and what
        the call came to. WORKSPACE_BUSY, and what else is retryable before anything began, leaves the hold granted.
        """
        hold = await self.find(approval_id)
        if hold.state == "consumed":
            return answer_of(hold)
        # Nothing is awaited between this look and the entry: of two callers one resumes.
        if approval_id in self._resuming:
            raise _conflict(hold, "another call is resuming it: ask again for its result", state="resuming")
        self._resuming.add(approval_id)
        task = asyncio.get_running_loop().create_task(self._resume(approval_id), name="operation-resume")
        task.add_done_callback(lambda _: self._resuming.discard(approval_id))
        self._services.keep(task)
        return await asyncio.shield(task)

    async def go_on(self, approval_id: str, call: HeldCall) -> ResumeAnswer:
        """`resume` for a call that is made once more, with the hold it was told of. That decides nothing: an approval
        is required while the hold is pending. Raises `ToolError`: also APPROVAL_REQUIRED, and INVALID_ARGUMENT where
        the hold is of another call."""
        hold = await self.find(approval_id)
        if hold.request_digest != call.digest:
            raise ToolError(
                Code.INVALID_ARGUMENT,
                f"hold {hold.approval_id} is of another call: repeat the one that it was opened for, unchanged",
                details={"approval_id": hold.approval_id},
            )
        if hold.state == "pending":
            raise self._holds.required(call, hold)
        return await self.resume(approval_id)

    async def settle_interrupted(self) -> None:
        """At start, after the ledger is recovered: closes what an earlier run of this program left resuming, as far as
        its end is proved. Raises `StoreFailed`."""
        for hold in await self._store.resuming():
            await self._settle(hold)

    async def find(self, approval_id: str) -> Hold:
        """Raises `ToolError` APPROVAL_NOT_FOUND, FILE_OPERATION_FAILED."""
        hold = await stored(self._store.by_id(approval_id[:200]))
        if hold is None:
            raise ToolError(
                Code.APPROVAL_NOT_FOUND,
                f"no hold {approval_id[:80]!r}: use the approval_id of APPROVAL_REQUIRED or of approval_create",
                details={"approval_id": approval_id[:80]},
            )
        return hold

    async def listed(
        self, workspace_id: str | None, states: tuple[State, ...], limit: int, request_bytes: int = 0
    ) -> tuple[HoldListed, ...]:
        """Newest first, with those requests that are kept and take no more than `request_bytes`. Raises `ToolError`
        WORKSPACE_NOT_FOUND, FILE_OPERATION_FAILED."""
        if workspace_id is not None:
            self._services.registry.workspace(workspace_id)
        found = await stored(self._store.listed(workspace_id, states, limit, request_bytes))
        return tuple(_shown(hold) for hold in found)

    async def shown(self, approval_id: str) -> HoldListed:
        """With the request, while it is kept. Raises `ToolError` APPROVAL_NOT_FOUND, FILE_OPERATION_FAILED."""
        return _shown(await self.find(approval_id))

    # --- one resume ---------------------------------------------------------------------------------------------------
    async def _resume(self, approval_id: str) -> ResumeAnswer:
        hold = await self.find(approval_id)
        if hold.state == "resuming":
            await stored(self._settle(hold))
            hold = await self.find(approval_id)
        if hold.state == "consumed":
            return answer_of(hold)
        if hold.state == "resuming":
            raise in_doubt(hold)
        operation_id = self._services.ids.new("op") if hold.tool == "apply_patch" else None
        if hold.state != "granted" or not await stored(self._store.claim(approval_id, operation_id)):
            remedy = "approval_resolve has to grant it first" if hold.state == "pending" else "it never runs"
            raise _conflict(hold, remedy)
        try:
            answer = await self._ordinary_path(hold, operation_id)
        except ToolError as error:
            await self._failed(hold, error)
            error.approval_id = approval_id
            raise
        field = {hold.tool: answer}
        await self._record(approval_id, Outcome(answer=answer.model_dump(mode="json", exclude_none=True)))
        return ResumeAnswer(approval_id=approval_id, **field)

    async def _ordinary_path(self, hold: Hold, operation_id: str | None) -> PatchAnswer | ExecDispatched:
        assert hold.request is not None
        call = HeldCall(hold.tool, hold.workspace_id, hold.request["arguments"], hold.request.get("request_key"))
        if operation_id is not None:
            return await self._run_patch(call, operation_id)
        return await self._run_exec(call)

    async def _failed(self, hold: Hold, error: ToolError) -> None:
        """Records what a refusal or failure means for the hold. A command's error proves that nothing started."""
        if error.operation_id is not None:
            try:
                operation = await self._ledger.by_id(error.operation_id)
            except StoreFailed:
                operation = None
            if operation is None or operation.finished_at is None:
                return  # it is in doubt, so the hold stays resuming until the ledger tells
        elif error.retryable:
            await self._record(hold.approval_id, _UNCLAIM)
            return
        await self._record(hold.approval_id, outcome_of_error(error))

    async def _record(self, approval_id: str, outcome: Outcome) -> None:
        """Once a call is carried out its result is the caller's, recorded or not; what cannot be written now is kept
        and written by the next resume."""
        self._unrecorded[approval_id] = outcome
        try:
            await self._write(approval_id)
        except StoreFailed as failure:
            self._services.log.error("approval_not_recorded", approval_id=approval_id, reason=str(failure))

    async def _write(self, approval_id: str) -> None:
        outcome = self._unrecorded[approval_id]
        if outcome is _UNCLAIM:
            await self._store.unclaim(approval_id)
        else:
            await self._store.consume(approval_id, outcome)
        del self._unrecorded[approval_id]
        if outcome is not _UNCLAIM:
            await self._erase()

    # --- what was interrupted -----------------------------------------------------------------------------------------
    async def _settle(self, hold: Hold) -> None:
        """A hold that is resuming and nobody resumes. Leaves it so only while its patch is in doubt. Raises
        `StoreFailed`."""
        if hold.approval_id not in self._unrecorded:
            outcome = Outcome(code=Code.APPROVAL_AMBIGUOUS.value)
            if hold.operation_id is not None:
                operation = await self._ledger.by_id(hold.operation_id)
                if operation is not None and operation.finished_at is None:
                    return
                # Never minted means never begun, since minting comes first (OP-1).
                outcome = _UNCLAIM if operation is None else outcome_of_operation(operation)
            self._unrecorded[hold.approval_id] = outcome
            self._services.log.warning("approval_settled", approval_id=hold.approval_id, tool=hold.tool)
        await self._write(hold.approval_id)

    async def _erase(self) -> None:
        """What ended before is gone from the file when this returns, unless a reader outside keeps it: then the next
        end, or the next start, tries again."""
        try:
            if not await self._store.erase():
                self._services.log.warning("approval_not_erased", reason="another program reads the database")
        except StoreFailed as failure:
            self._services.log.error("approval_not_erased", reason=str(failure))


def _shown(hold: Hold) -> HoldListed:
    return HoldListed(
        approval_id=hold.approval_id,
        tool=hold.tool,
        workspace_id=hold.workspace_id,
        state=hold.state,
        created_at=datetime.fromisoformat(hold.created_at),
        resolved_at=None if hold.resolved_at is None else datetime.fromisoformat(hold.resolved_at),
        finished_at=None if hold.finished_at is None else datetime.fromisoformat(hold.finished_at),
        operation_id=hold.operation_id,
        request=None if hold.request is None else hold.request["arguments"],
    )


def _conflict(hold: Hold, why: str, state: str | None = None) -> ToolError:
    state = state or hold.state
    return ToolError(
        Code.APPROVAL_CONFLICT,
        f"hold {hold.approval_id} is {state}: {why}",
        retryable=state == "resuming",
        details={"approval_id": hold.approval_id, "state": state},
        approval_id=hold.approval_id,
    )
