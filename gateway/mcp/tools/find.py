"""find: a bounded, sorted walk over the relative paths of a workspace."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field

from gateway.application import Application
from gateway.mcp.tool import Arguments, Hints, Tool
from gateway.mcp.tools.common import MatchLimit, PageCursor, WorkspaceId
from gateway.mcp.tools.coordinated import FindResult, HintOf, with_hint

Glob = Annotated[
    str,
    Field(
        description=(
            "Matches the whole relative path: * ? [...] within one component, ** across any number of components, "
            "{a,b} either. '**/*.py' finds every Python file, '*.py' those at the root."
        )
    ),
]


class FindArguments(Arguments):
    workspace_id: WorkspaceId
    pattern: Glob
    limit: MatchLimit | None = None
    cursor: PageCursor | None = None
    work_id: HintOf | None = None


async def call(application: Application, arguments: FindArguments) -> BaseModel:
    return await with_hint(
        application,
        arguments.work_id,
        arguments.workspace_id,
        FindResult,
        lambda: application.find_files(arguments.workspace_id, arguments.pattern, arguments.limit, arguments.cursor),
    )


TOOL = Tool(
    name="find",
    title="Find files",
    description=(
        "Finds files, directories and links of a workspace by a glob over their relative paths, in sorted order. It "
        "does not follow links. truncated says that there are more: pass next_cursor as cursor to go on."
    ),
    arguments=FindArguments,
    result=FindResult,
    hints=Hints(read_only=True, destructive=False, idempotent=True),
    call=call,
)
