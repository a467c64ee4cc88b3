"""Policy: whether a workspace permits an action. Pure, and the only place that decides (POL-1).

Refuses to know: who asks, what a file or a command is, leases, runners. Called first by every use case.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from gateway.answers import Profile
from gateway.errors import Code, ToolError
from gateway.registry import Workspace


class Action(StrEnum):
    """What a tool call does to a workspace."""

    READ = "read"
    WRITE = "write"
    EXEC = "exec"


PERMITTED: Mapping[Profile, frozenset[Action]] = {
    "read-only": frozenset({Action.READ}),
    "workspace-write": frozenset({Action.READ, Action.WRITE, Action.EXEC}),
}
"""The whole policy: a profile and what it permits."""


def permits(workspace: Workspace, action: Action) -> bool:
    """Whether the profile holds the action, apart from whether anything here can perform it."""
    return action in PERMITTED[workspace.profile]


def check(workspace: Workspace, action: Action) -> None:
    """Raises `ToolError`: UNAUTHORIZED where the profile does not permit the action (named with workspace and profile),
    ENVIRONMENT_UNAVAILABLE where the workspace lies in an environment that has no backend (ENV-1)."""
    if not permits(workspace, action):
        raise ToolError(
            Code.UNAUTHORIZED,
            f'workspace "{workspace.workspace_id}" has the profile {workspace.profile}, which does not permit '
            f"{action}: only the operator can change that, in the registry",
            details={"workspace_id": workspace.workspace_id, "profile": workspace.profile, "action": action.value},
        )
    if workspace.environment != "host":
        raise ToolError(
            Code.ENVIRONMENT_UNAVAILABLE,
            f'workspace "{workspace.workspace_id}" lies in an environment of kind {workspace.environment}, which has '
            "no backend here: use a workspace of a host environment",
            details={"workspace_id": workspace.workspace_id, "kind": workspace.environment, "action": action.value},
        )
