"""approval_create: holds a call for approval before it is made."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from gateway.answers import HoldAnswer
from gateway.application import Application
from gateway.errors import Code, ToolError
from gateway.mcp.tool import Arguments, Hints, Tool
from gateway.mcp.tools import apply_patch, exec_command


class ApprovalCreateArguments(Arguments):
    tool: Annotated[Literal["apply_patch", "exec_command"], Field(description="The tool to hold a call of.")]
    arguments: Annotated[
        dict[str, Any], Field(description="The call's own arguments, checked as that tool checks them.")
    ]


async def call(application: Application, arguments: ApprovalCreateArguments) -> HoldAnswer:
    if arguments.tool == "apply_patch":
        patch = apply_patch.TOOL.parse(arguments.arguments)
        if patch.check_only:
            raise ToolError(
                Code.INVALID_ARGUMENT,
                'argument "check_only" cannot be held: a preview changes nothing, so call apply_patch',
                details={"argument": "check_only"},
            )
        return await application.hold_patch(
            patch.workspace_id, patch.patch, patch.expected_versions, patch.operation_key
        )
    command = exec_command.TOOL.parse(arguments.arguments)
    return await application.hold_exec(command.workspace_id, tuple(command.command), command.tty, command.request_key)


TOOL = Tool(
    name="approval_create",
    title="Hold a call for approval",
    description=(
        "Opens a hold for a call of apply_patch or exec_command without making the call; nothing runs before "
        "approval_resolve has granted it and operation_resume is called. Where a workspace asks for approvals, the "
        "call itself opens the hold (APPROVAL_REQUIRED), so this is for other workspaces. The same call again gives "
        "the same live hold, so it is safe to repeat. A hold grants no right: the workspace's profile is checked now "
        "and again at the resume."
    ),
    arguments=ApprovalCreateArguments,
    result=HoldAnswer,
    hints=Hints(read_only=False, destructive=False, idempotent=True),
    call=call,
)
