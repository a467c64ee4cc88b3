"""terminate_process: ends a command with everything it started."""

from __future__ import annotations

from gateway.application import Application
from gateway.mcp.tool import Arguments, Hints, Tool
from gateway.mcp.tools.common import ProcessId
from runner.api import ProcessTerminating, TerminateProcess


class TerminateProcessArguments(Arguments):
    process_id: ProcessId


async def call(application: Application, arguments: TerminateProcessArguments) -> ProcessTerminating:
    return await application.terminate_process(TerminateProcess(process_id=arguments.process_id))


TOOL = Tool(
    name="terminate_process",
    title="End a command",
    description=(
        "Ends a command and every process it started, daemons included: TERM, then KILL after a grace. Answers at "
        "once; process_status with wait_ms tells when it is over. Safe to repeat, also after a lost response."
    ),
    arguments=TerminateProcessArguments,
    result=ProcessTerminating,
    hints=Hints(read_only=False, destructive=True, idempotent=True),
    call=call,
)
