"""What a resume came to, as it is kept with the hold and as it is told again.

Kept without any text of the request, which is gone by then: a result, or an error's code and plain details (APPR-6).
Pure. Refuses to know: the store, how a call is carried out. Used by `gateway.use_cases.approvals`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.answers import ExecDispatched, PatchAnswer, ResumeAnswer
from gateway.errors import Code, ToolError
from gateway.store.approvals import Hold, Outcome
from gateway.store.ledger import Ending, Operation

_KEPT = frozenset(
    {"status", "reason", "stage", "errno", "workspace_id", "profile", "action", "kind", "line", "limit", "feature"}
)
"""Details that are words of ours and numbers: never a path, an argument or a line of a file."""


def outcome_of_error(error: ToolError) -> Outcome:
    return Outcome(code=error.code.value, details=_kept(error.details), operation_id=error.operation_id)


def outcome_of_operation(operation: Operation) -> Outcome:
    """What the ledger says of a finished patch; an end that is unknown for good is ambiguous here too."""
    ending = operation.ending or Ending("unknown")
    if ending.status == "applied":
        answer = PatchAnswer(
            status="applied",
            operation_id=operation.operation_id,
            operation_key=operation.operation_key,
            files=ending.files,
            changes=ending.changes,
            warnings=ending.warnings or None,
        )
        return Outcome(answer=answer.model_dump(mode="json", exclude_none=True))
    if ending.error is None:
        details = {"status": ending.status}
        return Outcome(code=Code.APPROVAL_AMBIGUOUS.value, details=details, operation_id=operation.operation_id)
    details = _kept(ending.error.details) | {"status": ending.status}
    return Outcome(code=ending.error.code, details=details, operation_id=operation.operation_id)


def answer_of(hold: Hold) -> ResumeAnswer:
    """The result of a consumed hold. Raises `ToolError` where the call came to an error."""
    outcome = hold.outcome
    assert outcome is not None
    if outcome.answer is None:
        raise _error(hold, outcome)
    if hold.tool == "apply_patch":
        return ResumeAnswer(approval_id=hold.approval_id, apply_patch=PatchAnswer.model_validate(outcome.answer))
    return ResumeAnswer(approval_id=hold.approval_id, exec_command=ExecDispatched.model_validate(outcome.answer))


def in_doubt(hold: Hold) -> ToolError:
    """Its patch was interrupted and its end is not known yet."""
    return ToolError(
        Code.APPROVAL_AMBIGUOUS,
        f"whether the patch of hold {hold.approval_id} was applied is not known yet: ask operation_status, or resume "
        "again later; it is not run again",
        retryable=True,
        details={"approval_id": hold.approval_id, "state": "resuming", "status": "unknown"},
        operation_id=hold.operation_id,
        approval_id=hold.approval_id,
    )


def _error(hold: Hold, outcome: Outcome) -> ToolError:
    code = Code(outcome.code or Code.INTERNAL)
    details = dict(outcome.details or {})
    if code is Code.APPROVAL_AMBIGUOUS:
        message = (
            f"the resume of hold {hold.approval_id} was interrupted, so its {hold.tool} may or may not have been "
            "carried out; it is never run again: look at the workspace, and make the call anew if it is still wanted"
        )
    else:
        shown = ", ".join(f"{key} {value}" for key, value in details.items())
        message = (
            f'hold {hold.approval_id} was resumed, and its {hold.tool} in workspace "{hold.workspace_id}" ended with '
            f"{code}{f' ({shown})' if shown else ''}; it is not run again: make a new call if it is still wanted"
        )
    return ToolError(
        code,
        message,
        details={**details, "replayed": True},
        operation_id=outcome.operation_id,
        approval_id=hold.approval_id,
    )


def _kept(details: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: value
        for key, value in details.items()
        if key in _KEPT and (isinstance(value, int) or (isinstance(value, str) and len(value) <= 100))
    }
