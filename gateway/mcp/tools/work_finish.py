"""work_finish: the job is done, unless the user has more."""

from __future__ import annotations

from gateway.answers import FinishAnswer
from gateway.application import Application
from gateway.mcp.tool import Arguments, Hints, Tool
from gateway.mcp.tools.common import WorkId


class WorkFinishArguments(Arguments):
    work_id: WorkId


async def call(application: Application, arguments: WorkFinishArguments) -> FinishAnswer:
    return await application.work_finish(arguments.work_id)


TOOL = Tool(
    name="work_finish",
    title="Finish a work",
    description=(
        "Call it when the job is done. closed: false with reason pending_user_input means that instructions are open: "
        "claim and complete them, those for after the current work included, then call it again. closed: true ends the "
        "work. Safe to repeat, also after a lost response."
    ),
    arguments=WorkFinishArguments,
    result=FinishAnswer,
    hints=Hints(read_only=False, destructive=False, idempotent=True),
    call=call,
)
