"""Execution locations and which one a request means (ENV-1).

The operator's choice comes with each request; nothing here looks at the machine. Made in `runner.__main__`, used by
`runner.service`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from runner.api import EnvironmentSupport, ErrorCode, RunnerError, WorkspaceRef
from runner.ports import ContentSearch, FileSystem, PatchEngine, SandboxLauncher

EnvironmentKind = Literal["host", "linux-container"]


@dataclass(frozen=True)
class Environment:
    """The ports of one execution location. None is a part it lacks. `support`: what `describe` says of it; without, it
    is told by the ports."""

    filesystem: FileSystem | None = None
    search: ContentSearch | None = None
    patch_engine: PatchEngine | None = None
    launcher: SandboxLauncher | None = None
    support: EnvironmentSupport | None = None

    @property
    def grep_available(self) -> bool:
        return self.search is not None and self.search.available

    @property
    def patch_available(self) -> bool:
        return self.patch_engine is not None and self.patch_engine.available

    async def close(self) -> None:
        """Each port in turn, the launcher last. Its commands are over by then."""
        if self.search is not None:
            await self.search.close()
        if self.patch_engine is not None:
            await self.patch_engine.close()
        if self.filesystem is not None:
            self.filesystem.close()
        if self.launcher is not None:
            await self.launcher.close()


Environments = Mapping[EnvironmentKind, Environment]


def environment_of(environments: Environments, workspace: WorkspaceRef) -> Environment:
    """Raises `RunnerError` ENVIRONMENT_UNAVAILABLE for a kind that this runner was joined without."""
    environment = environments.get(workspace.environment)
    if environment is None:
        raise RunnerError(
            ErrorCode.ENVIRONMENT_UNAVAILABLE,
            f"workspace {workspace.workspace_id} is registered in environment {workspace.environment}, which this "
            "runner does not have; the operator can register it in another",
            details={"workspace_id": workspace.workspace_id, "environment": workspace.environment},
        )
    return environment


def unavailable(what: str, remedy: str) -> RunnerError:
    """For a part of an environment that this machine or this build lacks."""
    return RunnerError(ErrorCode.ENVIRONMENT_UNAVAILABLE, f"{what} is not available in this runner; {remedy}")
