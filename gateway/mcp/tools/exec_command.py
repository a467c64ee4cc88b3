"""exec_command: starts one command in the sandbox of a workspace."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field

from gateway.application import Application
from gateway.mcp.tool import Arguments, Hints, Tool
from gateway.mcp.tools.common import NEVER_RESEND, WorkspaceId
from gateway.mcp.tools.coordinated import ExecCommandResult, HintOf, with_hint
from gateway.request_keys import MAX_KEY_CHARS


class ExecCommandArguments(Arguments):
    workspace_id: WorkspaceId
    command: Annotated[
        list[str],
        Field(
            fail_fast=True,  # one of a million wrong arguments is error enough
            description='The argument vector, e.g. ["python3", "-m", "pytest"]. No shell: use ["sh", "-c", "..."].',
        ),
    ]
    tty: Annotated[bool, Field(description="Give it a terminal of 24 rows and 80 columns instead of pipes.")] = False
    request_key: (
        Annotated[
            str,
            Field(
                min_length=1,
                max_length=MAX_KEY_CHARS,
                description="Makes a retry safe: the same key with the same command gives the same process_id.",
            ),
        ]
        | None
    ) = None
    work_id: HintOf | None = None


async def call(application: Application, arguments: ExecCommandArguments) -> BaseModel:
    return await with_hint(
        application,
        arguments.work_id,
        arguments.workspace_id,
        ExecCommandResult,
        lambda: application.exec_command(
            arguments.workspace_id, tuple(arguments.command), arguments.tty, arguments.request_key
        ),
    )


async def resume(application: Application, arguments: ExecCommandArguments, approval_id: str) -> BaseModel:
    return await with_hint(
        application,
        arguments.work_id,
        arguments.workspace_id,
        ExecCommandResult,
        lambda: application.resume_exec(
            approval_id, arguments.workspace_id, tuple(arguments.command), arguments.tty, arguments.request_key
        ),
    )


TOOL = Tool(
    name="exec_command",
    title="Run a command",
    description=(
        "Starts a command in the workspace's sandbox, at its root, and returns a process_id at once; read_process "
        "gives output, process_status tells how it ended, terminate_process ends it. Directory, environment, network, "
        "limits and time-out are the operator's and no arguments. One command or patch at a time changes a workspace: "
        "WORKSPACE_BUSY names the holder. When the command exits, everything it left behind is killed. "
        f"dispatch_status unknown means that it may have started: ask process_status. {NEVER_RESEND} "
        "with process_status, or use request_key, with which a retry is safe."
    ),
    arguments=ExecCommandArguments,
    result=ExecCommandResult,
    hints=Hints(read_only=False, destructive=True, idempotent=False),
    call=call,
    resume=resume,
)
