"""`workspace_info`: what is registered, and what this machine really enforces for it (BOX-4, ENV-1).

Facts come from the registry and from the runner's own probe, never from a version or a guess. Answers are remembered
until the registry, the runner or the exposure changes. Refuses to know: transports. Called by the application.
"""

from __future__ import annotations

from gateway import policy
from gateway.answers import (
    Availability,
    EnvironmentInfo,
    ExecutionInfo,
    FilesInfo,
    IsolationInfo,
    NetworkInfo,
    Permissions,
    ProcessCapabilities,
    ProcessInfo,
    WorkspaceInfo,
    WorkspaceListed,
)
from gateway.errors import Code, ToolError
from gateway.policy import Action
from gateway.registry import Workspace
from gateway.use_cases.services import Services
from runner.api import Describe, RunnerDescription, RunnerError, RunnerLost

SERVER = "codespace"


class Informant:
    """Answers `workspace_info`. `patches`: whether a ledger stands behind `apply_patch`."""

    def __init__(self, services: Services, version: str, *, patches: bool) -> None:
        self._services = services
        self._version = version
        self._patches = patches
        self._tools: tuple[str, ...] = ()
        self._transports: tuple[str, ...] = ()
        self._remembered: dict[str | None, WorkspaceInfo] = {}

    def expose(self, tools: tuple[str, ...], transports: tuple[str, ...]) -> None:
        self._tools, self._transports = tools, transports
        self.forget()

    def forget(self) -> None:
        """Registry, runner or exposure changed."""
        # A new object: an answer that is being built for the old state is remembered in the old one.
        self._remembered = {}

    async def workspace_info(self, workspace_id: str | None) -> WorkspaceInfo:
        """Raises `ToolError` WORKSPACE_NOT_FOUND; with an id also RUNNER_UNAVAILABLE. Safe to cancel."""
        remembered = self._remembered
        known = remembered.get(workspace_id)
        if known is not None:
            return known
        listed = tuple(
            WorkspaceListed(workspace_id=workspace.workspace_id, profile=workspace.profile)
            for workspace in self._services.registry
        )
        general = WorkspaceInfo(
            server=SERVER,
            version=self._version,
            tools_exposed=self._tools,
            transports=self._transports,
            workspaces=listed,
        )
        if workspace_id is None:
            remembered[None] = general
            return general
        workspace = self._services.registry.workspace(workspace_id)
        execution, lasting = await self._execution(workspace)
        answer = general.model_copy(
            update={
                "workspace_id": workspace_id,
                "workspace_id_is_credential": False,
                "profile": workspace.profile,
                "execution": execution,
            }
        )
        if lasting:
            remembered[workspace_id] = answer
        return answer

    async def _execution(self, workspace: Workspace) -> tuple[ExecutionInfo, bool]:
        """The facts, and whether they last: a sandbox that is not available now is asked for again next time."""
        if workspace.environment != "host":
            return _without_backend(workspace), True
        runner, _ = self._services.present_runner()
        try:
            description = await runner.describe(Describe(terms=workspace.terms()))
        except RunnerLost:
            raise ToolError(
                Code.RUNNER_UNAVAILABLE, "the runner was lost during this call: try again", retryable=True
            ) from None
        except RunnerError as error:
            raise ToolError.from_runner(error) from None
        return _of_host(workspace, description, self._patches), description.isolation.available


def _of_host(workspace: Workspace, description: RunnerDescription, patches: bool) -> ExecutionInfo:
    support, isolation = description.environment, description.isolation
    runs = support.exec_supported and isolation.available
    return ExecutionInfo(
        environment=EnvironmentInfo(
            kind=support.kind,
            exec_supported=support.exec_supported,
            file_read_supported=support.file_read_supported,
            file_write_supported=support.file_write_supported,
        ),
        permissions=_permissions(workspace),
        files=FilesInfo(
            read=Availability(available=support.file_read_supported),
            find=Availability(available=support.file_read_supported),
            patch=Availability(available=patches and description.patch_available and support.file_write_supported),
        ),
        process=ProcessInfo(available=runs, capabilities=ProcessCapabilities() if runs else None),
        isolation=IsolationInfo(
            command_sandbox=isolation.command_sandbox,
            protections={protection.name: protection.state for protection in isolation.protections},
        ),
        network=NetworkInfo(policy=workspace.network, enforcement=isolation.network_enforcement),
        approvals=workspace.approvals,
        limits=workspace.limits.model_dump(),
    )


def _without_backend(workspace: Workspace) -> ExecutionInfo:
    no = Availability(available=False)
    return ExecutionInfo(
        environment=EnvironmentInfo(
            kind=workspace.environment, exec_supported=False, file_read_supported=False, file_write_supported=False
        ),
        permissions=_permissions(workspace),
        files=FilesInfo(read=no, find=no, patch=no),
        process=ProcessInfo(available=False),
        isolation=IsolationInfo(command_sandbox="none", protections={}),
        network=NetworkInfo(policy=workspace.network, enforcement="none"),
        approvals=workspace.approvals,
        limits=workspace.limits.model_dump(),
    )


def _permissions(workspace: Workspace) -> Permissions:
    return Permissions(
        read=policy.permits(workspace, Action.READ),
        write=policy.permits(workspace, Action.WRITE),
        exec=policy.permits(workspace, Action.EXEC),
    )
