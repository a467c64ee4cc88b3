"""read: one file, whole or by lines, with the version of the whole file."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field

from gateway.application import Application
from gateway.mcp.tool import Arguments, Hints, Tool
from gateway.mcp.tools.common import RelativePath, WorkspaceId
from gateway.mcp.tools.coordinated import HintOf, ReadResult, with_hint


class ReadArguments(Arguments):
    workspace_id: WorkspaceId
    path: RelativePath
    offset: Annotated[int, Field(ge=1, description="First line to return, counted from 1.")] | None = None
    limit: Annotated[int, Field(ge=1, description="Number of lines to return.")] | None = None
    work_id: HintOf | None = None


async def call(application: Application, arguments: ReadArguments) -> BaseModel:
    return await with_hint(
        application,
        arguments.work_id,
        arguments.workspace_id,
        ReadResult,
        lambda: application.read_file(arguments.workspace_id, arguments.path, arguments.offset, arguments.limit),
    )


TOOL = Tool(
    name="read",
    title="Read a file",
    description=(
        "Reads one regular file of a workspace, also while a command runs. Returns the text, its size in bytes and "
        "version (sha256 of the whole file, whatever part is returned). At most 1 MiB comes back at once; truncated "
        "says that there is more: ask for it by lines with offset and limit. Bytes that are not UTF-8 come as base64, "
        "and encoding says so. Symbolic links, devices, FIFOs and paths out of the workspace are refused."
    ),
    arguments=ReadArguments,
    result=ReadResult,
    hints=Hints(read_only=True, destructive=False, idempotent=True),
    call=call,
)
