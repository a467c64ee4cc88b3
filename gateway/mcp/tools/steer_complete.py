"""steer_complete: says what became of a claimed instruction."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from gateway.answers import CompleteAnswer
from gateway.application import Application
from gateway.mcp.tool import Arguments, Hints, Tool
from gateway.mcp.tools.common import WorkId


class SteerCompleteArguments(Arguments):
    work_id: WorkId
    intent_id: Annotated[str, Field(description="From steer_claim_next.")]
    outcome: Annotated[Literal["done", "blocked"], Field(description="blocked: it could not be carried out.")]


async def call(application: Application, arguments: SteerCompleteArguments) -> CompleteAnswer:
    return await application.steer_complete(arguments.work_id, arguments.intent_id, arguments.outcome)


TOOL = Tool(
    name="steer_complete",
    title="Complete an instruction",
    description=(
        "Marks a claimed instruction as done or blocked, for the user to see. Safe to repeat with the same outcome, "
        "also after a lost response; another outcome, or one that is not claimed, is INTENT_NOT_EDITABLE."
    ),
    arguments=SteerCompleteArguments,
    result=CompleteAnswer,
    hints=Hints(read_only=False, destructive=False, idempotent=True),
    call=call,
)
