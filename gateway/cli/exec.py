"""`codespace exec`: one command in a workspace's sandbox, on this terminal, without an appliance.

The registry, the policy and the lock on the root are the appliance's own, so it grants nothing more than that does and
never runs beside one on the same root.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gateway.cli.console import Failed
from gateway.errors import ToolError
from gateway.locks import lock_directory
from gateway.policy import Action, check
from gateway.registry import load_registry
from gateway.root_access import open_to_owner
from gateway.settings import Settings

if TYPE_CHECKING:
    from gateway.cli.app import Parts


def exec_once(parts: Parts, *, registry: Path | None, workspace_id: str, argv: list[str], tty: bool) -> int:
    """Returns the command's exit status, 128+N after signal N. Raises `OperatorError` where nothing was run."""
    settings = Settings.load(registry=registry)
    loaded = load_registry(settings.require_registry(), parts.guarded(settings))
    try:
        workspace = loaded.workspace(workspace_id)
        check(workspace, Action.EXEC)
    except ToolError as error:
        raise Failed(error.code.value, workspace_id, error.message) from None
    what = f"root of workspace {workspace_id}"
    open_to_owner(workspace.root, workspace.device, workspace.inode, what, shut=workspace.shut)
    lock = lock_directory(workspace.root, what)
    try:
        return parts.run_once(workspace, argv, tty=tty)
    finally:
        lock.release()
