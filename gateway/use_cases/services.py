"""What all use cases work on, and the two decisions that each of them begins with.

One object a gateway, joined by `application`. Refuses to know: transports, and what any single tool does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from structlog.typing import FilteringBoundLogger

from gateway import policy
from gateway.answers import ExecDispatched
from gateway.errors import Code, ToolError, new_error_id
from gateway.ids import IdFactory
from gateway.leases import LeaseTable
from gateway.locks import LockSet
from gateway.policy import Action
from gateway.ports import Audit, AuditRecord, RunnerLink
from gateway.processes import ProcessDirectory
from gateway.registry import Registry, Workspace
from gateway.request_keys import RequestKeys
from runner.api import ErrorCode, Runner, RunnerError

T = TypeVar("T")


@dataclass(eq=False)
class Services:
    """`registry` is replaced as a whole at a reload; everything else is one for the life of the gateway."""

    registry: Registry
    link: RunnerLink
    audit: Audit
    log: FilteringBoundLogger
    max_processes: int
    ids: IdFactory = field(default_factory=IdFactory)
    leases: LeaseTable = field(default_factory=LeaseTable)
    locks: LockSet = field(default_factory=LockSet)
    processes: ProcessDirectory = field(default_factory=ProcessDirectory)
    request_keys: RequestKeys[ExecDispatched] = field(default_factory=RequestKeys)
    tasks: set[asyncio.Task[object]] = field(default_factory=set)
    """What was begun and must be seen to its end, whoever stopped waiting for it."""
    threads: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(max_workers=2, thread_name_prefix="gateway-roots")
    )
    """For looks at roots: a file system that hangs holds up two of these, never the loop."""

    # --- decisions ----------------------------------------------------------------------------------------------------
    def decide(self, tool: str, workspace_id: str, action: Action) -> Workspace:
        """Registry, then policy, then the audit line. Raises `ToolError` WORKSPACE_NOT_FOUND, UNAUTHORIZED,
        ENVIRONMENT_UNAVAILABLE."""
        try:
            workspace = self.registry.workspace(workspace_id)
            policy.check(workspace, action)
        except ToolError as refusal:
            self.audit.record(AuditRecord("decision", tool, workspace_id[:80], "refused", refusal.code.value))
            raise
        self.audit.record(AuditRecord("decision", tool, workspace_id, "allowed"))
        return workspace

    async def verify_root(self, workspace: Workspace, *, to_run: bool = False) -> None:
        """The root is still the directory that is locked, and open to us, or with `to_run` to a command. Raises
        `ToolError` (`reason: root_replaced` or `root_unreadable`)."""
        lock = self.locks.get(workspace.device, workspace.inode)
        if lock is None:
            raise ToolError(
                Code.WORKSPACE_NOT_FOUND,
                f'workspace "{workspace.workspace_id}" was removed from the registry a moment ago',
                details={"workspace_id": workspace.workspace_id},
            )
        loop = asyncio.get_running_loop()
        look = partial(lock.verify, workspace.workspace_id)
        if to_run:
            look = partial(lock.verify_to_run, workspace.workspace_id, as_owner=workspace.sandbox == "required")
        await loop.run_in_executor(self.threads, look)

    # --- the runner ---------------------------------------------------------------------------------------------------
    def present_runner(self) -> tuple[Runner, str]:
        """The runner that serves now and its instance id. Raises `ToolError` RUNNER_UNAVAILABLE."""
        runner = self.link.runner
        description = self.link.description
        if description is None:
            raise ToolError(Code.RUNNER_UNAVAILABLE, "the runner is not connected, try again", retryable=True)
        return runner, description.runner_instance_id

    async def performed(self, change: Awaitable[T]) -> T:
        """What the runner answers. A fault of one that runs in this very process is an INTERNAL of it, as a worker's
        is: whoever holds a lease meanwhile has to hear of it as of any other answer. Raises `RunnerError`."""
        try:
            return await change
        except RunnerError:
            raise
        except Exception:
            error_id = new_error_id()
            self.log.exception("runner_failed", error_id=error_id)
            raise RunnerError(ErrorCode.INTERNAL, "the runner failed", details={"error_id": error_id}) from None

    # --- the end of things --------------------------------------------------------------------------------------------
    def release(self, holder_id: str) -> None:
        """Gives a lease back, and with the last lease of a root that is no longer registered also its lock."""
        if self.leases.release(holder_id) is not None:
            self.settle_locks()

    def settle_locks(self) -> None:
        """Unlocks roots that are neither registered nor under a lease."""
        wanted = {(workspace.device, workspace.inode) for workspace in self.registry}
        wanted |= {(lease.device, lease.inode) for lease in self.leases.held()}
        for key in self.locks.held():
            if key not in wanted:
                self.locks.release(*key)

    def keep(self, task: asyncio.Task[object]) -> None:
        """Remembers a task until it is done, so that neither the collector nor a shutdown loses it."""
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
