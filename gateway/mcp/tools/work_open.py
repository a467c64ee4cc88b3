"""work_open: a logical job with a queue of the user's instructions."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gateway.answers import WorkOpened
from gateway.application import Application
from gateway.mcp.tool import Arguments, Hints, Tool
from gateway.mcp.tools.common import WorkspaceId
from gateway.steering import MAX_TITLE_CHARS


class WorkOpenArguments(Arguments):
    workspace_id: WorkspaceId
    title: Annotated[str, Field(max_length=MAX_TITLE_CHARS, description="What it is about, for the user.")] | None = (
        None
    )


async def call(application: Application, arguments: WorkOpenArguments) -> WorkOpened:
    return await application.work_open(arguments.workspace_id, arguments.title)


TOOL = Tool(
    name="work_open",
    title="Open a work",
    description=(
        "Opens a work: a job of yours that the user can follow and write instructions for while you are at it. Pass "
        "its work_id to read, find, grep, apply_patch, exec_command, read_process and process_status: their results "
        "then carry coordination, with the number of instructions that wait. A work outlives sessions and restarts. "
        "Each call opens another one: if the response is lost, the work may be there all the same, and an unused one "
        "does no harm."
    ),
    arguments=WorkOpenArguments,
    result=WorkOpened,
    hints=Hints(read_only=False, destructive=False, idempotent=False),
    call=call,
)
