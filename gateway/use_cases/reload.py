"""Taking a registry into force: at start, and again at each reload (POL-5, LEASE-2).

A new registry counts whole or not at all: it is read, its roots are locked, then it takes the old one's place in one
step. Later calls use it; running commands keep the terms they started with, and those whose root is no longer
registered are ended. Refuses to know: signals. Called by the application.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gateway.errors import OperatorError, StartFailed, ToolError
from gateway.leases import Lease
from gateway.registry import Registry
from gateway.root_access import open_to_owner
from gateway.store.database import StoreFailed
from gateway.use_cases.recovery import Recovery
from gateway.use_cases.services import Services
from runner.api import RunnerError, TerminateProcess


def lock_roots(services: Services, registry: Registry) -> None:
    """Locks every root, or none that was not locked before; one closed to its owner is opened. Raises
    `AlreadyServed`, `StartFailed`. Blocks."""
    fresh: list[tuple[int, int]] = []
    try:
        for workspace in registry:
            what = f"root of workspace {workspace.workspace_id}"
            place = (workspace.root, workspace.device, workspace.inode, what)
            if open_to_owner(*place, shut=workspace.shut):
                services.log.warning(
                    "root_permission_restored", workspace_id=workspace.workspace_id, reason="its owner was shut out"
                )
            if services.locks.acquire(*place):
                fresh.append((workspace.device, workspace.inode))
    except OperatorError:
        for key in fresh:
            services.locks.release(*key)
        raise


async def reload_registry(services: Services, recovery: Recovery, load: Callable[[], Registry]) -> None:
    """Not for several at once. Raises `RegistryRefused`, `AlreadyServed`, `StartFailed`: the old registry then stays in
    force, untouched."""
    registry = await asyncio.to_thread(load)
    lock_roots(services, registry)
    known = {(workspace.workspace_id, workspace.device, workspace.inode) for workspace in services.registry}
    fresh = [w for w in registry if (w.workspace_id, w.device, w.inode) not in known]
    try:
        await recovery.admit(fresh)
    except BaseException as error:
        services.settle_locks()
        if not isinstance(error, (ToolError, StoreFailed)):
            raise
        raise StartFailed(
            f"a workspace of the new registry cannot be taken into service yet ({error})",
            registry.file,
            "reload again in a moment",
        ) from None
    services.registry = registry
    roots = {(workspace.device, workspace.inode) for workspace in registry}
    for lease in services.leases.held():
        if lease.kind == "process" and (lease.device, lease.inode) not in roots:
            task = asyncio.get_running_loop().create_task(_end(services, lease), name="end-unregistered")
            services.keep(task)
    services.settle_locks()
    services.log.info("registry_reloaded", file=registry.file, workspaces=list(registry.workspaces))


async def _end(services: Services, lease: Lease) -> None:
    """Ends a command whose root is no longer registered; its lease and its lock go when it is dead."""
    record = services.processes.get(lease.holder_id)
    if record is None:
        return  # its runner is lost: it is dying already
    await record.dispatched.wait()
    services.log.info("process_of_removed_workspace_ended", workspace_id=lease.workspace_id, process_id=lease.holder_id)
    try:
        if services.processes.get(lease.holder_id) is record:
            await services.link.runner.terminate_process(TerminateProcess(process_id=lease.holder_id))
    except (RunnerError, ToolError) as error:  # its runner is lost meanwhile: it is dying already
        services.log.warning("process_of_removed_workspace", process_id=lease.holder_id, code=error.code.value)
