"""operation_resume: runs a call whose hold was granted, once."""

from __future__ import annotations

from gateway.answers import ResumeAnswer
from gateway.application import Application
from gateway.mcp.tool import Arguments, Hints, Tool
from gateway.mcp.tools.common import ApprovalId


class OperationResumeArguments(Arguments):
    approval_id: ApprovalId


async def call(application: Application, arguments: OperationResumeArguments) -> ResumeAnswer:
    return await application.operation_resume(arguments.approval_id)


TOOL = Tool(
    name="operation_resume",
    title="Run a granted call",
    description=(
        "Runs the call of a granted hold, once, under the policy of now, and returns its result under the tool's name; "
        "later calls return that result, also after a lost response or a restart, so repeating it is safe. If the call "
        "fails, its error is the result. WORKSPACE_BUSY and other retryable refusals before anything began leave the "
        "hold granted: resume again. APPROVAL_CONFLICT: it is pending, denied, or being resumed. APPROVAL_AMBIGUOUS: "
        "an earlier resume was interrupted and its end is not known; it is not run again."
    ),
    arguments=OperationResumeArguments,
    result=ResumeAnswer,
    hints=Hints(read_only=False, destructive=True, idempotent=True),
    call=call,
)
