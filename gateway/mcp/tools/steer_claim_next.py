"""steer_claim_next: takes the next instruction of a work."""

from __future__ import annotations

from gateway.answers import ClaimAnswer
from gateway.application import Application
from gateway.mcp.tool import Arguments, Hints, Tool
from gateway.mcp.tools.common import WorkId


class SteerClaimNextArguments(Arguments):
    work_id: WorkId


async def call(application: Application, arguments: SteerClaimNextArguments) -> ClaimAnswer:
    return await application.steer_claim_next(arguments.work_id)


TOOL = Tool(
    name="steer_claim_next",
    title="Take the next instruction",
    description=(
        "Claims the next of the user's instructions and returns it as item; without item nothing can be claimed now. "
        "A stop_notice says that the user ended what ran: do not start it again unasked. Carry the instruction out, "
        "then call steer_complete. No item is given twice: if the response is lost, steer_status names it in "
        "claimed_intent_ids; complete it as blocked, so that the user sees it and can write it again."
    ),
    arguments=SteerClaimNextArguments,
    result=ClaimAnswer,
    hints=Hints(read_only=False, destructive=False, idempotent=False),
    call=call,
)
