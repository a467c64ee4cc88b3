"""`read`, `find` and `grep`: decided here, performed by the runner, never under a lease (FS-1).

Refuses to know: transports, files. Called by the application.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

from gateway.errors import Code, ToolError
from gateway.policy import Action
from gateway.use_cases.services import Services
from runner import api
from runner.api import RunnerError, RunnerLost

T = TypeVar("T")
DEFAULT_MATCHES = 200


async def read_file(
    services: Services, workspace_id: str, path: str, offset: int | None, limit: int | None
) -> api.FileContent:
    """Raises `ToolError`: the decisions' codes and the runner's. Safe to cancel."""
    runner, workspace = await _reader(services, "read", workspace_id)
    return await _answer(runner.read_file(api.ReadFile(workspace=workspace, path=path, offset=offset, limit=limit)))


async def find_files(
    services: Services, workspace_id: str, pattern: str, limit: int | None, cursor: str | None
) -> api.FindPage:
    """As `read_file`."""
    runner, workspace = await _reader(services, "find", workspace_id)
    return await _answer(
        runner.find_files(
            api.FindFiles(
                workspace=workspace,
                pattern=pattern,
                limit=DEFAULT_MATCHES if limit is None else limit,
                cursor=cursor,
            )
        )
    )


async def grep_files(
    services: Services,
    workspace_id: str,
    pattern: str,
    *,
    glob: str | None,
    ignore_case: bool,
    gitignore: bool,
    context: int,
    limit: int | None,
    cursor: str | None,
) -> api.GrepPage:
    """As `read_file`."""
    runner, workspace = await _reader(services, "grep", workspace_id)
    return await _answer(
        runner.grep_files(
            api.GrepFiles(
                workspace=workspace,
                pattern=pattern,
                glob=glob,
                ignore_case=ignore_case,
                gitignore=gitignore,
                context=context,
                limit=DEFAULT_MATCHES if limit is None else limit,
                cursor=cursor,
            )
        )
    )


async def _reader(services: Services, tool: str, workspace_id: str) -> tuple[api.Runner, api.WorkspaceRef]:
    """Registry → policy → root → runner. Raises `ToolError`."""
    workspace = services.decide(tool, workspace_id, Action.READ)
    await services.verify_root(workspace)
    runner, _ = services.present_runner()
    return runner, workspace.ref()


async def _answer(work: Awaitable[T]) -> T:
    try:
        return await work
    except RunnerLost:
        raise ToolError(
            Code.RUNNER_UNAVAILABLE,
            "the runner was lost during this call, which changes nothing: it is being restarted, try again",
            retryable=True,
        ) from None
    except RunnerError as error:
        raise ToolError.from_runner(error) from None
