"""Which environment a request means, and that it is one this runner has (ENV-1).

The operator's choice comes with each request; nothing here looks at the machine. Called by `runner.service` and
`runner.files`.
"""

from __future__ import annotations

from runner.api import ErrorCode, RunnerError, WorkspaceRef


def require_environment(workspace: WorkspaceRef) -> None:
    """Raises `RunnerError` ENVIRONMENT_UNAVAILABLE for all but `host`: no other has a backend here."""
    if workspace.environment != "host":
        raise RunnerError(
            ErrorCode.ENVIRONMENT_UNAVAILABLE,
            f"workspace {workspace.workspace_id} is registered in environment {workspace.environment}, which has no "
            "backend in this runner; the operator can register it in a host environment",
            details={"environment": workspace.environment},
        )


def unavailable(what: str, remedy: str) -> RunnerError:
    """For a part of the runner that this machine or this build lacks."""
    return RunnerError(ErrorCode.ENVIRONMENT_UNAVAILABLE, f"{what} is not available in this runner; {remedy}")
