"""Recorded patches: one by its id or by its key (`operation_status`, OP-3), or a list for operators. Commands are
never found here.

Refuses to know: how the record came about. Called by the application.
"""

from __future__ import annotations

from gateway.answers import OperationAnswer, OperationListed
from gateway.errors import Code, ToolError
from gateway.request_keys import check_key
from gateway.store.ledger import Operation
from gateway.use_cases.patching import Patching, stored
from gateway.use_cases.services import Services


async def operation_status(
    services: Services,
    patching: Patching,
    operation_id: str | None,
    operation_key: str | None,
    workspace_id: str | None,
) -> OperationAnswer:
    """Safe to cancel. Raises `ToolError` INVALID_ARGUMENT, WORKSPACE_NOT_FOUND, OPERATION_NOT_FOUND."""
    operation: Operation | None = None
    if operation_id is not None and operation_key is None and workspace_id is None:
        shown = operation_id
        operation = await stored(patching.ledger.by_id(operation_id[:200]))
    elif operation_id is None and operation_key is not None and workspace_id is not None:
        check_key("operation_key", operation_key)
        shown = operation_key
        services.registry.workspace(workspace_id)
        operation = await stored(patching.ledger.by_key(workspace_id, operation_key))
    else:
        raise ToolError(
            Code.INVALID_ARGUMENT,
            "give either operation_id alone, or operation_key together with workspace_id",
            details={"argument": "operation_id"},
        )
    if operation is None or operation.workspace_id not in services.registry.workspaces:
        raise ToolError(
            Code.OPERATION_NOT_FOUND,
            f"no patch operation {shown[:80]!r} is recorded in a registered workspace: a call that never reached the "
            "server minted none",
            details={"operation_id": shown[:80]} if operation_id is not None else {"operation_key": shown[:80]},
        )
    return operation.answer()


async def list_operations(
    services: Services, patching: Patching, workspace_id: str | None, before: str | None, limit: int
) -> tuple[OperationListed, ...]:
    """Newest first, older ones than `before`. Raises `ToolError` WORKSPACE_NOT_FOUND, FILE_OPERATION_FAILED."""
    if workspace_id is not None:
        services.registry.workspace(workspace_id)
    wanted = list(services.registry.workspaces) if workspace_id is None else [workspace_id]
    return tuple(operation.listed() for operation in await stored(patching.ledger.listed(wanted, before, limit)))
