"""The hint of a work beside a tool's result: `work_id` in, `coordination` out (WORK-3).

Refuses to know: any tool. Used by the tools that take `work_id`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, TypeVar

from pydantic import BaseModel, Field

from gateway.answers import Coordination, ExecDispatched, PatchAnswer
from gateway.application import Application
from gateway.errors import ToolError
from runner.api import FileContent, FindPage, GrepPage, ProcessOutput

HintOf = Annotated[
    str,
    Field(description="From work_open: the result then carries coordination, the number of instructions that wait."),
]
M = TypeVar("M", bound=BaseModel)


class ReadResult(FileContent):
    coordination: Coordination | None = None


class FindResult(FindPage):
    coordination: Coordination | None = None


class GrepResult(GrepPage):
    coordination: Coordination | None = None


class ApplyPatchResult(PatchAnswer):
    coordination: Coordination | None = None


class ExecCommandResult(ExecDispatched):
    coordination: Coordination | None = None


class ReadProcessResult(ProcessOutput):
    coordination: Coordination | None = None


async def with_hint(
    application: Application,
    work_id: str | None,
    workspace_id: str | None,
    result: type[BaseModel],
    call: Callable[[], Awaitable[M]],
) -> BaseModel:
    """What `call` answers; with a work as `result`, which adds `coordination` to it. An unknown work, or one of another
    workspace, is refused before anything is done. Raises `ToolError`."""
    if work_id is None:
        return await call()
    hint = await application.coordination(work_id, workspace_id)
    answer = await call()
    try:
        hint = await application.coordination(work_id)
    except ToolError:
        pass  # the call has had its effect: its answer counts more than a fresher number
    return result(**{**dict(answer), "coordination": hint})
