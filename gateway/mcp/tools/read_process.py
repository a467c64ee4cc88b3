"""read_process: the next piece of a command's output."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from gateway.application import Application
from gateway.mcp.tool import Arguments, Hints, Tool
from gateway.mcp.tools.common import ProcessId, WaitMs
from gateway.mcp.tools.coordinated import HintOf, ReadProcessResult, with_hint
from runner.api import ReadProcess


class ReadProcessArguments(Arguments):
    process_id: ProcessId
    cursor: Annotated[int, Field(ge=0, description="Absolute byte offset: 0, then the cursor returned.")] = 0
    wait_ms: WaitMs = 0
    max_bytes: Annotated[int, Field(ge=1, le=1024 * 1024, description="Most bytes of output to return.")] = 64 * 1024
    encoding: Annotated[
        Literal["utf-8", "base64"],
        Field(description="utf-8: bytes that are not UTF-8 appear as U+FFFD. base64: exact."),
    ] = "utf-8"
    work_id: HintOf | None = None


async def call(application: Application, arguments: ReadProcessArguments) -> BaseModel:
    return await with_hint(
        application,
        arguments.work_id,
        None,
        ReadProcessResult,
        lambda: application.read_process(
            ReadProcess(
                process_id=arguments.process_id,
                cursor=arguments.cursor,
                wait_ms=arguments.wait_ms,
                max_bytes=arguments.max_bytes,
                encoding=arguments.encoding,
            )
        ),
    )


TOOL = Tool(
    name="read_process",
    title="Read a command's output",
    description=(
        "Returns output of a command (standard output and error in one stream) from cursor on, and the cursor to pass "
        "next. With wait_ms it waits for output or the end, so there is no need to poll. eof: the output has ended and "
        "cursor is its end; it says nothing about success, process_status does. Only the last part is retained: "
        "output_lost says that bytes before retained_from are gone."
    ),
    arguments=ReadProcessArguments,
    result=ReadProcessResult,
    hints=Hints(read_only=True, destructive=False, idempotent=True),
    call=call,
)
