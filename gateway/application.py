"""The gateway's core as one object: every tool call of every transport ends in one of these methods.

Refuses to know: MCP, HTTP, the command line, log formats. Joined in `gateway.__main__`, called by the transports.
Every tool method raises `gateway.errors.ToolError` and nothing else on purpose. Cancelling a call never loses a lease
or a process: what was begun is seen to its end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from structlog.typing import FilteringBoundLogger

from gateway.answers import (
    ClaimAnswer,
    CompleteAnswer,
    Coordination,
    ExecDispatched,
    FinishAnswer,
    HoldAnswer,
    HoldListed,
    OperationAnswer,
    OperationListed,
    PatchAnswer,
    ProcessListed,
    Readiness,
    ResumeAnswer,
    SteerStatus,
    WorkOpened,
    WorkspaceInfo,
)
from gateway.changes import AnnouncingAudit, Changes, RunnerChanges
from gateway.data_directory import open_data_directory
from gateway.errors import StartFailed, ToolError
from gateway.image import require_sandbox
from gateway.liveness import LivenessDirectory
from gateway.locks import DirectoryLock
from gateway.ports import Audit, RunnerLink
from gateway.registry import Registry
from gateway.store.approvals import ApprovalStore, State
from gateway.store.counts import state_counts
from gateway.store.database import Database, StoreFailed
from gateway.store.ledger import Ledger
from gateway.store.migrations import MIGRATIONS
from gateway.store.sessions import SessionStore
from gateway.store.works import WorkStore
from gateway.use_cases import apply_patch, exec_command, operation_status, process_calls, reading
from gateway.use_cases.approvals import Approvals, Decision
from gateway.use_cases.custody import Custody
from gateway.use_cases.hold import HeldCall, Holds, approved, held_exec, held_patch, patch_of
from gateway.use_cases.patching import Patching, PatchRequest
from gateway.use_cases.recovery import Recovery
from gateway.use_cases.reload import lock_roots, reload_registry
from gateway.use_cases.services import Services
from gateway.use_cases.tidying import Tidying
from gateway.use_cases.works import Works
from gateway.use_cases.workspace_info import Informant
from runner import api

BASE_TOOLS = frozenset(
    {
        "workspace_info",
        "read",
        "find",
        "exec_command",
        "read_process",
        "process_status",
        "write_stdin",
        "process_resize",
        "terminate_process",
        "approval_create",
        "approval_resolve",
        "operation_resume",
        "work_open",
        "steer_status",
        "steer_claim_next",
        "steer_complete",
        "work_finish",
    }
)
PREDECESSOR_S = 5.0
"""How long a start waits for what a killed predecessor left to die."""
WRITABLE_S = 2.0
"""How long a ledger that took a write counts as writable, so that no poll of readiness costs a sync of the disk."""
DESCRIBE_S = 2.0
TASKS_S = 0.5
"""What begun dispatches get at close: their runner is gone by then, so they have their answer."""


class Application:
    """One gateway, started once and closed once.

    `load_registry`: reads and checks the registry; blocks, raises `RegistryRefused`. `data_dir`: for the store, the
    journals and the proofs of death. `deaths`: `LivenessDirectory(data_dir / "liveness")`, the one that `link` uses.
    `max_processes`: running commands at once. `sandbox_needed`: refuse to start where commands could not be confined.
    """

    def __init__(
        self,
        *,
        version: str,
        load_registry: Callable[[], Registry],
        data_dir: Path,
        deaths: LivenessDirectory,
        link: RunnerLink,
        audit: Audit,
        log: FilteringBoundLogger,
        max_processes: int,
        sandbox_needed: bool = False,
    ) -> None:
        self._load_registry = load_registry
        self._data_dir = data_dir
        self._deaths = deaths
        self._link = link
        self._log = log
        self._sandbox_needed = sandbox_needed
        nothing = Registry(file="", workspaces=MappingProxyType({}))
        self.changes = Changes()
        """What the console watches."""
        announcing = AnnouncingAudit(audit, self.changes)
        self._services = Services(registry=nothing, link=link, audit=announcing, log=log, max_processes=max_processes)
        self._informant = Informant(self._services, version, patches=True)
        self._database = Database(data_dir, self.changes.note)
        self.console_sessions = SessionStore(self._database)
        ledger = Ledger(self._database)
        self._recovery = Recovery(self._services, ledger, data_dir / "journal")
        self._patching = Patching(ledger, data_dir / "journal", self._recovery.take_over)
        store = ApprovalStore(self._database)
        self._holds = Holds(self._services, store)
        self._approvals = Approvals(self._services, ledger, store, self._holds, self._run_patch, self._run_exec)
        self._works = Works(self._services, WorkStore(self._database))
        self._writable_until = 0.0
        self._data_lock: DirectoryLock | None = None
        self._reloading = asyncio.Lock()
        self._closing: asyncio.Task[None] | None = None
        self._tidying = Tidying(self._services)
        link.subscribe(Custody(self._services, self._recovery, self._runner_changed))
        link.subscribe(RunnerChanges(self.changes))

    # --- life ---------------------------------------------------------------------------------------------------------
    async def start(self) -> None:
        """Takes registry, data directory and roots, waits for a killed predecessor's commands to be dead, starts the
        runner. Raises `OperatorError`; then nothing is left held or running."""
        try:
            registry = await asyncio.to_thread(self._load_registry)
            self._data_lock = await asyncio.to_thread(open_data_directory, self._data_dir)
            await self._deaths.await_the_dead(PREDECESSOR_S)
            lock_roots(self._services, registry)
            self._services.registry = registry
            self._informant.forget()
            await self._database.open(MIGRATIONS)
            await self._link.start()
            if self._sandbox_needed and (description := self._link.description) is not None:
                require_sandbox(description.isolation)
            await self._recovery.close_unregistered(registry)
            await self._recovery.admit(registry)
            await self._tidying.tidy()
            await self._approvals.settle_interrupted()
        except StoreFailed as error:
            await self.close()
            raise StartFailed(
                f"the ledger cannot be used ({error})", str(self._data_dir), "look at the disk of the data directory"
            ) from None
        except BaseException:
            await self.close()
            raise
        self._warn_of_unsandboxed()

    async def reload(self) -> None:
        """Reads the registry again. Raises `RegistryRefused`, `AlreadyServed` or `StartFailed`; the old one then stays
        in force."""
        async with self._reloading:
            await reload_registry(self._services, self._recovery, self._load_registry)
            self._informant.forget()
            self.changes.note()
            await self._tidying.tidy()
        self._warn_of_unsandboxed()

    async def close(self) -> None:
        """Ends the runner and all it runs, closes the store, gives the locks back. Bounded, idempotent."""
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close(), name="application-close")
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        await self._link.close()
        if self._services.tasks:
            _, late = await asyncio.wait(set(self._services.tasks), timeout=TASKS_S)
            for task in late:
                task.cancel()
        await self._database.close()
        self._services.threads.shutdown(wait=False, cancel_futures=True)
        self._services.locks.close()
        if self._data_lock is not None:
            self._data_lock.release()

    def _runner_changed(self) -> None:
        self._informant.forget()
        self._tidying.soon()

    def _warn_of_unsandboxed(self) -> None:
        for workspace in self._services.registry:
            if workspace.sandbox == "off":
                self._log.warning("sandbox_off", workspace_id=workspace.workspace_id)

    # --- what there is ------------------------------------------------------------------------------------------------
    @property
    def registry(self) -> Registry:
        """In force now."""
        return self._services.registry

    def running_processes(self) -> int:
        """Commands that run now; for metrics."""
        return self._services.processes.running()

    def ended_processes(self) -> dict[str, int]:
        """Commands that ended since the start, by termination or `lost` with their runner; for metrics."""
        return dict(self._services.processes.ended)

    async def network_decisions(self) -> tuple[api.NetworkDecisions, ...]:
        """What the egress proxy decided since the present runner started; for metrics. Empty where no runner says so in
        time, since a scrape must not wait for one."""
        try:
            async with asyncio.timeout(DESCRIBE_S):
                return (await self._link.runner.describe(api.Describe())).network_decisions
        except (TimeoutError, ToolError, api.RunnerError):
            return ()

    async def stored_counts(self) -> dict[tuple[str, str], int]:
        """Operations, holds, works and instructions (`intents`) by (name, state); empty where the store cannot be read.
        For metrics."""
        try:
            return await state_counts(self._database)
        except StoreFailed:
            return {}

    def available_tools(self) -> frozenset[str]:
        """Public names of the tools that work here; valid after `start`."""
        description = self._link.description
        tools = BASE_TOOLS
        if description is not None and description.grep_available:
            tools |= {"grep"}
        if description is not None and description.patch_available:
            tools |= {"apply_patch", "operation_status"}
        return tools

    def set_exposure(self, *, tools: Sequence[str], transports: Sequence[str]) -> None:
        """What the transports really list and serve, for `workspace_info`."""
        self._informant.expose(tuple(tools), tuple(transports))

    async def readiness(self) -> Readiness:
        """Whether calls can be served now: runner connected, ledger writable, every journal recovered, and the sandbox
        probed unless no workspace needs one."""
        reasons: list[str] = []
        description = self._link.description
        if description is None:
            reasons.append("the runner is not connected")
        elif not description.isolation.available and any(w.sandbox == "required" for w in self._services.registry):
            missing = [p for p in description.isolation.protections if p.required and p.state == "off"]
            names = ", ".join(f"{p.name} ({p.errno or p.detail or 'off'})" for p in missing)
            reasons.append(f"the sandbox probe failed: {names or 'see codespace doctor'}")
        now = asyncio.get_running_loop().time()
        if now >= self._writable_until:
            try:
                await self._patching.ledger.check_writable()
                self._writable_until = now + WRITABLE_S
            except StoreFailed as error:
                reasons.append(f"the ledger cannot be written: {error}")
        reasons += [f"the journal of {holder} is not recovered yet" for holder in self._recovery.pending()]
        return Readiness(ready=not reasons, reasons=tuple(reasons))

    async def workspace_info(self, workspace_id: str | None) -> WorkspaceInfo:
        return await self._informant.workspace_info(workspace_id)

    # --- reading ------------------------------------------------------------------------------------------------------
    async def read_file(
        self, workspace_id: str, path: str, offset: int | None = None, limit: int | None = None
    ) -> api.FileContent:
        return await reading.read_file(self._services, workspace_id, path, offset, limit)

    async def find_files(
        self, workspace_id: str, pattern: str, limit: int | None = None, cursor: str | None = None
    ) -> api.FindPage:
        return await reading.find_files(self._services, workspace_id, pattern, limit, cursor)

    async def grep_files(
        self,
        workspace_id: str,
        pattern: str,
        glob: str | None = None,
        ignore_case: bool = False,
        gitignore: bool = False,
        context: int = 0,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> api.GrepPage:
        return await reading.grep_files(
            self._services,
            workspace_id,
            pattern,
            glob=glob,
            ignore_case=ignore_case,
            gitignore=gitignore,
            context=context,
            limit=limit,
            cursor=cursor,
        )

    # --- patches ------------------------------------------------------------------------------------------------------
    async def apply_patch(
        self,
        workspace_id: str,
        patch: str,
        expected_versions: Mapping[str, str] | None = None,
        operation_key: str | None = None,
        check_only: bool = False,
    ) -> PatchAnswer:
        request = PatchRequest(patch, dict(expected_versions or {}), operation_key, check_only)
        return await apply_patch.apply_patch(self._services, self._patching, self._holds.check, workspace_id, request)

    async def operation_status(
        self, operation_id: str | None = None, operation_key: str | None = None, workspace_id: str | None = None
    ) -> OperationAnswer:
        return await operation_status.operation_status(
            self._services, self._patching, operation_id, operation_key, workspace_id
        )

    async def list_operations(
        self, workspace_id: str | None = None, before: str | None = None, limit: int = 50
    ) -> tuple[OperationListed, ...]:
        """Recorded patches of registered workspaces, newest first. For operators."""
        return await operation_status.list_operations(self._services, self._patching, workspace_id, before, limit)

    # --- approvals ----------------------------------------------------------------------------------------------------
    async def hold_patch(
        self,
        workspace_id: str,
        patch: str,
        expected_versions: Mapping[str, str] | None = None,
        operation_key: str | None = None,
    ) -> HoldAnswer:
        request = PatchRequest(patch, dict(expected_versions or {}), operation_key, False)
        return await self._approvals.create(held_patch(workspace_id, request))

    async def hold_exec(
        self, workspace_id: str, command: tuple[str, ...], tty: bool = False, request_key: str | None = None
    ) -> HoldAnswer:
        return await self._approvals.create(held_exec(workspace_id, command, tty, request_key))

    async def approval_resolve(self, approval_id: str, decision: Decision) -> HoldAnswer:
        return await self._approvals.resolve(approval_id, decision)

    async def operation_resume(self, approval_id: str) -> ResumeAnswer:
        return await self._approvals.resume(approval_id)

    async def resume_patch(
        self,
        approval_id: str,
        workspace_id: str,
        patch: str,
        expected_versions: Mapping[str, str] | None = None,
        operation_key: str | None = None,
    ) -> PatchAnswer:
        """Goes on with the hold of this very call."""
        request = PatchRequest(patch, dict(expected_versions or {}), operation_key, False)
        resumed = await self._approvals.go_on(approval_id, held_patch(workspace_id, request))
        assert resumed.apply_patch is not None
        return resumed.apply_patch

    async def resume_exec(
        self, approval_id: str, workspace_id: str, command: tuple[str, ...], tty: bool, request_key: str | None
    ) -> ExecDispatched:
        """Goes on with the hold of this very call."""
        resumed = await self._approvals.go_on(approval_id, held_exec(workspace_id, command, tty, request_key))
        assert resumed.exec_command is not None
        return resumed.exec_command

    async def list_holds(
        self,
        workspace_id: str | None = None,
        states: tuple[State, ...] = (),
        limit: int = 200,
        request_bytes: int = 0,
    ) -> tuple[HoldListed, ...]:
        """Newest first. For operators. With what is asked for where that is live and takes no more than
        `request_bytes`."""
        return await self._approvals.listed(workspace_id, states, limit, request_bytes)

    async def show_hold(self, approval_id: str) -> HoldListed:
        """With what is asked for, while the hold is live. For operators."""
        return await self._approvals.shown(approval_id)

    async def _run_patch(self, call: HeldCall, operation_id: str) -> PatchAnswer:
        return await apply_patch.apply_patch(
            self._services, self._patching, approved, call.workspace_id, patch_of(call), operation_id
        )

    async def _run_exec(self, call: HeldCall) -> ExecDispatched:
        command, tty = tuple(call.arguments["command"]), call.arguments["tty"]
        return await exec_command.exec_command(
            self._services, approved, call.workspace_id, command, tty=tty, request_key=call.request_key
        )

    # --- works --------------------------------------------------------------------------------------------------------
    @property
    def inbox(self) -> Works:
        """What a user does with works and instructions; the agent's side is in the methods below."""
        return self._works

    async def work_open(self, workspace_id: str, title: str | None = None) -> WorkOpened:
        return await self._works.open(workspace_id, title)

    async def steer_status(self, work_id: str) -> SteerStatus:
        return await self._works.status(work_id)

    async def steer_claim_next(self, work_id: str) -> ClaimAnswer:
        return await self._works.claim_next(work_id)

    async def steer_complete(self, work_id: str, intent_id: str, outcome: Literal["done", "blocked"]) -> CompleteAnswer:
        return await self._works.complete(work_id, intent_id, outcome)

    async def work_finish(self, work_id: str) -> FinishAnswer:
        return await self._works.finish(work_id)

    async def coordination(self, work_id: str, workspace_id: str | None = None) -> Coordination:
        """The hint beside results: counts, never what the instructions say (WORK-3)."""
        return await self._works.coordination(work_id, workspace_id)

    # --- commands -----------------------------------------------------------------------------------------------------
    async def exec_command(
        self, workspace_id: str, command: tuple[str, ...], tty: bool = False, request_key: str | None = None
    ) -> ExecDispatched:
        return await exec_command.exec_command(
            self._services, self._holds.check, workspace_id, command, tty=tty, request_key=request_key
        )

    async def read_process(self, request: api.ReadProcess) -> api.ProcessOutput:
        return await process_calls.read_process(self._services, request)

    async def process_status(self, request: api.QueryProcess) -> api.ProcessStatus:
        return await process_calls.process_status(self._services, request)

    async def write_stdin(self, request: api.WriteStdin) -> api.StdinWritten:
        return await process_calls.write_stdin(self._services, request)

    async def resize_process(self, request: api.ResizeProcess) -> api.ProcessResized:
        return await process_calls.resize_process(self._services, request)

    async def list_processes(self, workspace_id: str | None = None) -> tuple[ProcessListed, ...]:
        """What runs, or ended a short while ago. For operators."""
        return await process_calls.list_processes(self._services, workspace_id)

    async def terminate_process(self, request: api.TerminateProcess) -> api.ProcessTerminating:
        return await process_calls.terminate_process(self._services, request)
