"""grep: a bounded search in file contents."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field

from gateway.application import Application
from gateway.mcp.tool import Arguments, Hints, Tool
from gateway.mcp.tools.common import MatchLimit, PageCursor, WorkspaceId
from gateway.mcp.tools.coordinated import GrepResult, HintOf, with_hint


class GrepArguments(Arguments):
    workspace_id: WorkspaceId
    pattern: Annotated[str, Field(description="A regular expression (ripgrep's default syntax), matched line by line.")]
    glob: Annotated[str, Field(description="Only files whose whole relative path matches, as with find.")] | None = None
    ignore_case: Annotated[bool, Field(description="Match letters of either case.")] = False
    gitignore: Annotated[bool, Field(description="Leave out what .gitignore files exclude.")] = False
    context: Annotated[int, Field(ge=0, le=20, description="Lines to show before and after each match.")] = 0
    limit: MatchLimit | None = None
    cursor: PageCursor | None = None
    work_id: HintOf | None = None


async def call(application: Application, arguments: GrepArguments) -> BaseModel:
    return await with_hint(
        application,
        arguments.work_id,
        arguments.workspace_id,
        GrepResult,
        lambda: application.grep_files(
            arguments.workspace_id,
            arguments.pattern,
            arguments.glob,
            arguments.ignore_case,
            arguments.gitignore,
            arguments.context,
            arguments.limit,
            arguments.cursor,
        ),
    )


TOOL = Tool(
    name="grep",
    title="Search in files",
    description=(
        "Searches the files of a workspace for a regular expression and returns matching lines with path and line "
        "number, in sorted order; with context also the lines around them. truncated says that there are more: pass "
        "next_cursor as cursor to go on."
    ),
    arguments=GrepArguments,
    result=GrepResult,
    hints=Hints(read_only=True, destructive=False, idempotent=True),
    call=call,
)
