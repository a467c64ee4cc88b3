"""The place of the approval hold in the order of decisions: after policy and key, before lease and record (APPR-1).

A hold stops a call that the policy allows until somebody says yes. It is no boundary: the same caller may grant it.
Refuses to know: how a hold is resolved or resumed. `Holds` is what the mutating use cases are given by the application,
`approved` what they are given for a call whose hold was granted.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gateway.errors import Code, ToolError
from gateway.ports import AuditRecord
from gateway.registry import Workspace
from gateway.request_keys import check_key, fingerprint
from gateway.store.approvals import ApprovalStore, HeldTool, Hold, TooManyHolds
from gateway.use_cases.patching import PatchRequest, check_request, stored
from gateway.use_cases.services import Services
from runner import api
from runner.api import RunnerError


@dataclass(frozen=True)
class HeldCall:
    """A mutation as it was asked for. `arguments`: JSON values, all of them, defaults included, so that equal requests
    are equal here; without `workspace_id`, `work_id` and `request_key`. The key is kept apart: it is a retry's, and no
    part of what is asked."""

    tool: HeldTool
    workspace_id: str
    arguments: Mapping[str, Any]
    request_key: str | None = None

    @property
    def digest(self) -> str:
        """Equal for the same logical request (APPR-6)."""
        return fingerprint(self.tool, self.workspace_id, dict(self.arguments))

    def kept(self) -> dict[str, Any]:
        """What the store keeps while the hold is live."""
        request: dict[str, Any] = {"arguments": dict(self.arguments)}
        return request if self.request_key is None else {**request, "request_key": self.request_key}


def held_patch(workspace_id: str, request: PatchRequest) -> HeldCall:
    arguments = {
        "patch": request.patch,
        "expected_versions": dict(request.expected_versions),
        "operation_key": request.operation_key,
    }
    return HeldCall("apply_patch", workspace_id, arguments)


def held_exec(workspace_id: str, command: tuple[str, ...], tty: bool, request_key: str | None) -> HeldCall:
    return HeldCall("exec_command", workspace_id, {"command": list(command), "tty": tty}, request_key)


def patch_of(call: HeldCall) -> PatchRequest:
    """`held_patch` the other way."""
    arguments = call.arguments
    return PatchRequest(arguments["patch"], arguments["expected_versions"], arguments["operation_key"], False)


def check_call(call: HeldCall) -> None:
    """As the call itself would be checked before anything is done. Raises `ToolError` INVALID_PATCH, INVALID_COMMAND,
    INVALID_ARGUMENT."""
    if call.tool == "apply_patch":
        check_request(patch_of(call))
        return
    try:
        api.check_argv(tuple(call.arguments["command"]))
    except RunnerError as error:
        raise ToolError.from_runner(error) from None
    if call.request_key is not None:
        check_key("request_key", call.request_key)


Gate = Callable[[Workspace, HeldCall], Awaitable[None]]
"""Returns, without waiting, where the call may go on. Raises `ToolError` APPROVAL_REQUIRED."""


async def approved(workspace: Workspace, call: HeldCall) -> None:
    """The gate of a call whose hold was granted."""


class Holds:
    """Opens holds. One a gateway."""

    def __init__(self, services: Services, store: ApprovalStore) -> None:
        self._services = services
        self._store = store

    async def check(self, workspace: Workspace, call: HeldCall) -> None:
        """A `Gate`. Every call of a workspace with `approvals: confirm` is held; the same one again by the same hold.
        Raises `ToolError` APPROVAL_REQUIRED with `approval_id`."""
        if workspace.approvals != "confirm":
            return
        raise self.required(call, await self.open(call))

    def required(self, call: HeldCall, hold: Hold) -> ToolError:
        """What a call that is held is told, and the audit line of it."""
        ids = {"approval_id": hold.approval_id}
        refused = Code.APPROVAL_REQUIRED
        self._services.audit.record(AuditRecord("decision", call.tool, call.workspace_id, "refused", refused, ids))
        return ToolError(
            refused,
            f'workspace "{call.workspace_id}" asks for an approval before {call.tool}, and nothing ran: '
            f"{_REMEDY.get(hold.state, _REMEDY['pending'])}",
            details={"workspace_id": call.workspace_id, "tool": call.tool, "state": hold.state},
            approval_id=hold.approval_id,
        )

    async def open(self, call: HeldCall) -> Hold:
        """The live hold of this request, or a new one. Raises `ToolError` APPROVAL_CONFLICT (`too_many`),
        FILE_OPERATION_FAILED."""
        approval_id = self._services.ids.new("apr")
        try:
            return await stored(self._store.open(approval_id, call.tool, call.workspace_id, call.digest, call.kept()))
        except TooManyHolds:
            raise ToolError(
                Code.APPROVAL_CONFLICT,
                f'workspace "{call.workspace_id}" cannot hold another call before some of the live ones are granted '
                "and resumed, or denied",
                retryable=True,
                details={"workspace_id": call.workspace_id, "reason": "too_many"},
            ) from None


_REMEDY: Mapping[str, str] = {
    "pending": "once approval_resolve has granted this hold, operation_resume runs it",
    "granted": "its hold is granted, so call operation_resume with approval_id",
    "resuming": "its hold is being resumed; operation_resume with approval_id tells the result",
}
