"""operation_status: what became of a recorded patch."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gateway.answers import OperationAnswer
from gateway.application import Application
from gateway.mcp.tool import Arguments, Hints, Tool
from gateway.mcp.tools.common import WorkspaceId


class OperationStatusArguments(Arguments):
    operation_id: Annotated[str, Field(description="From apply_patch.")] | None = None
    operation_key: Annotated[str, Field(description="The key given to apply_patch; needs workspace_id.")] | None = None
    workspace_id: WorkspaceId | None = None


async def call(application: Application, arguments: OperationStatusArguments) -> OperationAnswer:
    return await application.operation_status(arguments.operation_id, arguments.operation_key, arguments.workspace_id)


TOOL = Tool(
    name="operation_status",
    title="What became of a patch",
    description=(
        "Tells what became of a recorded patch, also after a lost response or a restart. Give operation_id, or "
        "operation_key together with workspace_id. status is absent while it runs. It knows patches alone, no commands."
    ),
    arguments=OperationStatusArguments,
    result=OperationAnswer,
    hints=Hints(read_only=True, destructive=False, idempotent=True),
    call=call,
)
