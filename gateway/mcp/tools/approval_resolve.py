"""approval_resolve: yes or no to a held call."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from gateway.answers import HoldAnswer
from gateway.application import Application
from gateway.mcp.tool import Arguments, Hints, Tool
from gateway.mcp.tools.common import ApprovalId


class ApprovalResolveArguments(Arguments):
    approval_id: ApprovalId
    decision: Annotated[Literal["grant", "deny"], Field(description="deny is final: the call never runs.")]


async def call(application: Application, arguments: ApprovalResolveArguments) -> HoldAnswer:
    return await application.approval_resolve(arguments.approval_id, arguments.decision)


TOOL = Tool(
    name="approval_resolve",
    title="Grant or deny a held call",
    description=(
        "Grants or denies a pending hold. A grant runs nothing by itself: operation_resume does. It changes no profile "
        "and lets through this one call, once. Ask the person who has to decide before you grant. A hold that is "
        "granted, denied or used already is APPROVAL_CONFLICT, and details.state tells which: after a lost response, "
        "look there."
    ),
    arguments=ApprovalResolveArguments,
    result=HoldAnswer,
    hints=Hints(read_only=False, destructive=False, idempotent=False),
    call=call,
)
