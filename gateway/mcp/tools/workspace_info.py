"""workspace_info: what is registered, and what a workspace permits and enforces."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gateway.answers import WorkspaceInfo
from gateway.application import Application
from gateway.mcp.tool import Arguments, Hints, Tool


class WorkspaceInfoArguments(Arguments):
    workspace_id: Annotated[str, Field(description="A registered workspace; leave out to list all.")] | None = None


async def call(application: Application, arguments: WorkspaceInfoArguments) -> WorkspaceInfo:
    return await application.workspace_info(arguments.workspace_id)


TOOL = Tool(
    name="workspace_info",
    title="Workspace information",
    description=(
        "Lists the registered workspaces and the tools of this server. With workspace_id it also tells what that "
        "workspace permits (read, write, exec), how its commands are isolated and what is really enforced, its network "
        "policy and its limits. Call it first. The id chooses a workspace and is no credential."
    ),
    arguments=WorkspaceInfoArguments,
    result=WorkspaceInfo,
    hints=Hints(read_only=True, destructive=False, idempotent=True),
    call=call,
)
