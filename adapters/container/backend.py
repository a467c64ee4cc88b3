"""The `linux-container` environment: a type that can be registered, whose backend is absent for now (ENV-1).

Every request is answered ENVIRONMENT_UNAVAILABLE before anything is looked at, so no workspace of that environment is
ever served by the host by mistake. Joined in `runner.__main__` beside the host's adapters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from runner.api import (
    ApplyPatch,
    EnvironmentSupport,
    ErrorCode,
    FileContent,
    FindFiles,
    FindPage,
    GrepFiles,
    GrepPage,
    IsolationReport,
    PatchApplied,
    ReadFile,
    RecoveredPatches,
    RecoverPatches,
    RunnerError,
    WorkspaceTerms,
)
from runner.ports import LaunchRequest, ManagedProcess

SUPPORT = EnvironmentSupport(
    kind="linux-container", exec_supported=False, file_read_supported=False, file_write_supported=False
)
"""What the environment can do, for `describe`."""


def unavailable(workspace_id: str) -> NoReturn:
    """Raises `RunnerError` ENVIRONMENT_UNAVAILABLE, always. Not retryable: only the operator can change it."""
    raise RunnerError(
        ErrorCode.ENVIRONMENT_UNAVAILABLE,
        f"workspace {workspace_id} is registered in the environment linux-container, which has no backend here; "
        'the operator can register it with "environment": "host"',
        details={"workspace_id": workspace_id, "environment": "linux-container"},
    )


class ContainerFileSystem:
    """`runner.ports.FileSystem`."""

    def read_file(self, request: ReadFile) -> FileContent:
        unavailable(request.workspace.workspace_id)

    def find_files(self, request: FindFiles) -> FindPage:
        unavailable(request.workspace.workspace_id)

    def close(self) -> None:
        """There is nothing to close."""


class ContainerSearch:
    """`runner.ports.ContentSearch`."""

    available = False

    async def grep_files(self, request: GrepFiles) -> GrepPage:
        unavailable(request.workspace.workspace_id)

    async def close(self) -> None:
        """There is nothing to close."""


class ContainerPatchEngine:
    """`runner.ports.PatchEngine`."""

    available = False

    async def apply_patch(self, request: ApplyPatch) -> PatchApplied:
        unavailable(request.workspace.workspace_id)

    async def recover_patches(self, request: RecoverPatches) -> RecoveredPatches:
        unavailable(request.workspace.workspace_id)

    async def close(self) -> None:
        """There is nothing to close."""


class ContainerLauncher:
    """`runner.ports.SandboxLauncher`. `report` is a value, not an error: it is how the absence is shown."""

    async def start(self) -> None:
        """There is nothing to start."""

    async def report(self, terms: WorkspaceTerms | None) -> IsolationReport:
        return IsolationReport(
            command_sandbox="linux-sandbox", available=False, network_enforcement="none", protections=()
        )

    async def launch(self, request: LaunchRequest) -> ManagedProcess:
        unavailable(request.terms.workspace_id)

    async def tidy(self, root: str, protect: Sequence[str]) -> tuple[str, ...]:
        return ()  # no command ran, so none left anything

    async def close(self) -> None:
        """There is nothing to close."""


@dataclass(frozen=True)
class ContainerBackend:
    """All of the environment's ports, as the runner would use them."""

    filesystem: ContainerFileSystem = field(default_factory=ContainerFileSystem)
    search: ContainerSearch = field(default_factory=ContainerSearch)
    patch_engine: ContainerPatchEngine = field(default_factory=ContainerPatchEngine)
    launcher: ContainerLauncher = field(default_factory=ContainerLauncher)
    support: EnvironmentSupport = SUPPORT
