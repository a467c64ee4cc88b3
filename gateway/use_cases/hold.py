"""The place of the approval hold in the order of decisions: after policy and key, before lease and record (APPR-1).

Refuses to know: what is asked for. Called by the mutating use cases.
"""

from __future__ import annotations

from gateway.errors import Code, ToolError
from gateway.registry import Workspace


def check_hold(workspace: Workspace, tool: str) -> None:
    """Raises `ToolError` APPROVAL_REQUIRED for a workspace with `approvals: confirm`: no tool of this server can give
    the approval, so nothing of it runs."""
    if workspace.approvals == "confirm":
        raise ToolError(
            Code.APPROVAL_REQUIRED,
            f'workspace "{workspace.workspace_id}" asks for an approval before {tool}, and this server has no tool '
            "that gives one: the operator can set approvals to off in the registry",
            details={"workspace_id": workspace.workspace_id, "tool": tool},
        )
