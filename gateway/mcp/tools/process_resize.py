"""process_resize: the size of a command's terminal."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gateway.application import Application
from gateway.mcp.tool import Arguments, Hints, Tool
from gateway.mcp.tools.common import ProcessId
from runner.api import ProcessResized, ResizeProcess


class ProcessResizeArguments(Arguments):
    process_id: ProcessId
    rows: Annotated[int, Field(ge=1, le=1000)]
    cols: Annotated[int, Field(ge=1, le=1000)]


async def call(application: Application, arguments: ProcessResizeArguments) -> ProcessResized:
    return await application.resize_process(
        ResizeProcess(process_id=arguments.process_id, rows=arguments.rows, cols=arguments.cols)
    )


TOOL = Tool(
    name="process_resize",
    title="Resize a command's terminal",
    description=(
        "Sets rows and columns of the terminal of a command that was started with tty; its foreground programs get "
        "SIGWINCH. PROCESS_NOT_TTY on pipes, PROCESS_NOT_RUNNING once it has exited. Safe to repeat."
    ),
    arguments=ProcessResizeArguments,
    result=ProcessResized,
    hints=Hints(read_only=False, destructive=False, idempotent=True),
    call=call,
)
