"""After a crash: workspaces are freed of what the sandbox left at protected names, before they serve again (BOX-7).

A killed runner takes its commands along and leaves their placeholders. They may go once those commands are proved dead,
and they do no harm until then, so what fails here is logged and done by the next command's end instead.

Refuses to know: what a placeholder is. Used at start, at reload, and when custody says that the runner changed.
"""

from __future__ import annotations

import asyncio

from gateway.errors import ToolError
from gateway.registry import Workspace
from gateway.use_cases.services import Services
from runner.api import RunnerError, TidyWorkspace


class Tidying:
    """One a gateway."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def soon(self) -> None:
        """Begins to tidy, where a runner serves."""
        if self._services.link.description is not None:
            task = asyncio.get_running_loop().create_task(self.tidy(), name="tidy-workspaces")
            self._services.keep(task)

    async def tidy(self) -> None:
        """Every registered workspace, but those where a command of an earlier runner may still be ending."""
        for workspace in self._services.registry:
            if workspace.environment == "host" and workspace.protect:
                await self._tidy(workspace)

    async def _tidy(self, workspace: Workspace) -> None:
        try:
            runner, instance_id = self._services.present_runner()
            if self._may_be_dying(workspace, instance_id):
                return
            request = TidyWorkspace(workspace=workspace.ref(), protect=workspace.protect)
            removed = (await runner.tidy_workspace(request)).removed
        except (RunnerError, ToolError) as error:
            self._services.log.warning("tidying_failed", workspace_id=workspace.workspace_id, reason=str(error))
            return
        if removed:
            self._services.log.info("placeholders_removed", workspace_id=workspace.workspace_id, names=list(removed))

    def _may_be_dying(self, workspace: Workspace, instance_id: str) -> bool:
        root = (workspace.device, workspace.inode)
        return any(
            lease.kind == "process" and (lease.device, lease.inode) == root and lease.instance_id != instance_id
            for lease in self._services.leases.held()
        )
