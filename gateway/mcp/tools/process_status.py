"""process_status: whether a command runs, and how it ended."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import BaseModel

from gateway.answers import Answer, Coordination
from gateway.application import Application
from gateway.mcp.tool import Arguments, Hints, Tool
from gateway.mcp.tools.common import ProcessId, WaitMs
from gateway.mcp.tools.coordinated import HintOf, with_hint
from runner.api import CommandExit, Isolation, QueryProcess


class ProcessStatusArguments(Arguments):
    process_id: ProcessId
    wait_ms: WaitMs = 0
    work_id: HintOf | None = None


class ProcessStatusResult(Answer):
    """The runner's status with the public names of its times."""

    process_id: str
    state: Literal["running", "exited"]
    termination: Literal["exited", "timeout", "terminated", "unknown"] | None = None
    exit_code: int | None = None
    command_exit: CommandExit | None = None
    limit: Literal["timeout_s", "cpu_s", "memory_mb", "processes", "file_size_mb"] | None = None
    output_total: int
    output_retained_from: int
    eof: bool
    started_at: datetime
    exited_at: datetime | None = None
    isolation: Isolation
    coordination: Coordination | None = None


async def call(application: Application, arguments: ProcessStatusArguments) -> BaseModel:
    return await with_hint(
        application, arguments.work_id, None, ProcessStatusResult, lambda: _status(application, arguments)
    )


async def _status(application: Application, arguments: ProcessStatusArguments) -> ProcessStatusResult:
    status = await application.process_status(QueryProcess(process_id=arguments.process_id, wait_ms=arguments.wait_ms))
    return ProcessStatusResult(
        process_id=status.process_id,
        state=status.state,
        termination=status.termination,
        exit_code=status.exit_code,
        command_exit=status.command_exit,
        limit=status.limit,
        output_total=status.output_total,
        output_retained_from=status.output_retained_from,
        eof=status.eof,
        started_at=status.started_at_utc,
        exited_at=status.exited_at_utc,
        isolation=status.isolation,
    )


TOOL = Tool(
    name="process_status",
    title="How a command is doing",
    description=(
        "Tells whether a command is running or exited. Once exited: termination (exited, timeout, terminated, "
        "unknown), exit_code of the managed child with exited alone, command_exit with the command's own code or "
        "signal, the limit that ended it where that is known, output totals and the isolation that was in force. With "
        "wait_ms it waits for the end. Handles live as long as the runner and 15 minutes after the end: "
        "PROCESS_NOT_FOUND afterwards."
    ),
    arguments=ProcessStatusArguments,
    result=ProcessStatusResult,
    hints=Hints(read_only=True, destructive=False, idempotent=True),
    call=call,
)
