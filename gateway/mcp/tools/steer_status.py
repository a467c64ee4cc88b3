"""steer_status: how many instructions wait in a work."""

from __future__ import annotations

from gateway.answers import SteerStatus
from gateway.application import Application
from gateway.mcp.tool import Arguments, Hints, Tool
from gateway.mcp.tools.common import WorkId


class SteerStatusArguments(Arguments):
    work_id: WorkId


async def call(application: Application, arguments: SteerStatusArguments) -> SteerStatus:
    return await application.steer_status(arguments.work_id)


TOOL = Tool(
    name="steer_status",
    title="Instructions that wait",
    description=(
        "Tells the state of a work and how many of the user's instructions are queued, claimed, and claimable now; "
        "queue_revision is different whenever the queue is. Those for after the current work become claimable once "
        "work_finish was called. claimed_intent_ids names what you claimed and have not completed, also after a lost "
        "response."
    ),
    arguments=SteerStatusArguments,
    result=SteerStatus,
    hints=Hints(read_only=True, destructive=False, idempotent=True),
    call=call,
)
