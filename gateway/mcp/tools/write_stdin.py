"""write_stdin: input for a running command."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gateway.application import Application
from gateway.mcp.tool import Arguments, Hints, Tool
from gateway.mcp.tools.common import NEVER_RESEND, ProcessId
from runner.api import StdinWritten, WriteStdin


class WriteStdinArguments(Arguments):
    process_id: ProcessId
    data: Annotated[str, Field(description="Text, written as UTF-8; at most 1 MiB; may be empty with eof.")]
    eof: Annotated[bool, Field(description="Close the input afterwards; a terminal gets its EOF character.")] = False


async def call(application: Application, arguments: WriteStdinArguments) -> StdinWritten:
    return await application.write_stdin(
        WriteStdin(process_id=arguments.process_id, data=arguments.data, eof=arguments.eof)
    )


TOOL = Tool(
    name="write_stdin",
    title="Write to a command's input",
    description=(
        "Writes text to the standard input of a running command. written_bytes may be less than was given when the "
        f"command does not read: send the rest later. {NEVER_RESEND} at the command's output."
    ),
    arguments=WriteStdinArguments,
    result=StdinWritten,
    hints=Hints(read_only=False, destructive=True, idempotent=False),
    call=call,
)
