"""What the core's tests share: registries on a temporary disk, a runner and a link that do as they are told."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import structlog
from structlog.typing import FilteringBoundLogger

from gateway.errors import Code, ToolError
from gateway.ports import AuditRecord, LinkListener
from gateway.registry import Guarded, Registry, Workspace, load_registry
from runner import api
from runner.api import ErrorCode, RunnerError

NOW = datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC)


def quiet_log() -> FilteringBoundLogger:
    """A logger that writes nothing."""
    logger: FilteringBoundLogger = structlog.wrap_logger(
        None, processors=[_drop], wrapper_class=structlog.make_filtering_bound_logger(0)
    )
    return logger


def _drop(logger: object, method: str, event: Any) -> Any:
    raise structlog.DropEvent


def write_registry(path: Path, workspaces: Mapping[str, Mapping[str, object]], **more: object) -> Path:
    path.write_text(json.dumps({"workspaces": workspaces, **more}))
    path.chmod(0o600)
    return path


def workspace(root: Path, workspace_id: str = "demo", **settings: object) -> Workspace:
    """One workspace as the registry would have it, without a registry file."""
    root.mkdir(exist_ok=True)
    file = root.parent / f"{root.name}.registry.json"
    write_registry(file, {workspace_id: {"root": str(root), "profile": "workspace-write", **settings}})
    return load_registry(file, Guarded()).workspace(workspace_id)


def registry_of(*workspaces: Workspace) -> Registry:
    return Registry(file="test", workspaces=MappingProxyType({w.workspace_id: w for w in workspaces}))


class RecordingAudit:
    def __init__(self) -> None:
        self.records: list[AuditRecord] = []

    def record(self, record: AuditRecord) -> None:
        self.records.append(record)

    def lines(self) -> list[tuple[str, str, str, str | None]]:
        return [(r.kind, r.tool, r.outcome, r.code) for r in self.records]


def description(instance_id: str = "run-1", *, available: bool = True, grep: bool = True) -> api.RunnerDescription:
    return api.RunnerDescription(
        runner_instance_id=instance_id,
        environment=api.EnvironmentSupport(
            kind="host", exec_supported=True, file_read_supported=True, file_write_supported=True
        ),
        isolation=api.IsolationReport(
            command_sandbox="linux-sandbox",
            available=available,
            network_enforcement="enforced",
            protections=(
                api.Protection(
                    name="user_namespace",
                    state="active" if available else "off",
                    required=True,
                    errno=None if available else "EPERM",
                ),
            ),
        ),
        grep_available=grep,
        patch_available=True,
    )


class FakeRunner:
    """Answers from `answers`, method to result or exception; `hold` makes a method wait until it is set.

    Every request is kept in `requests`, in order. Commands run until `exit` is called.
    """

    def __init__(self, instance_id: str = "run-1") -> None:
        self.instance_id = instance_id
        self.requests: list[tuple[str, api.Message]] = []
        self.answers: dict[str, api.Message | RunnerError] = {}
        self.hold: dict[str, asyncio.Event] = {}
        self.asked: dict[str, asyncio.Event] = {}
        self.available = True
        self.running: dict[str, str] = {}
        self.listeners: list[api.EventListener] = []
        self.closed = False

    def asked_for(self, method: str) -> asyncio.Event:
        return self.asked.setdefault(method, asyncio.Event())

    def count(self, method: str) -> int:
        return sum(name == method for name, _ in self.requests)

    async def _reply(self, method: str, request: api.Message) -> Any:
        self.requests.append((method, request))
        self.asked_for(method).set()
        if method in self.hold:
            await self.hold[method].wait()
        answer = self.answers.get(method)
        if isinstance(answer, RunnerError):
            raise answer
        return answer

    def exit(self, process_id: str, termination: Literal["exited", "timeout", "terminated"] = "exited") -> None:
        event = api.ProcessExited(
            process_id=process_id,
            workspace_id=self.running.pop(process_id),
            termination=termination,
            exited_at_utc=NOW,
        )
        for listener in self.listeners:
            listener(event)

    async def describe(self, request: api.Describe) -> api.RunnerDescription:
        await self._reply("describe", request)
        return description(self.instance_id, available=self.available)

    async def read_file(self, request: api.ReadFile) -> api.FileContent:
        answer: api.FileContent | None = await self._reply("read_file", request)
        return answer or api.FileContent(path=request.path, content="x", encoding="utf-8", size=1, truncated=False)

    async def find_files(self, request: api.FindFiles) -> api.FindPage:
        answer: api.FindPage | None = await self._reply("find_files", request)
        return answer or api.FindPage(matches=(), truncated=False)

    async def grep_files(self, request: api.GrepFiles) -> api.GrepPage:
        answer: api.GrepPage | None = await self._reply("grep_files", request)
        return answer or api.GrepPage(matches=(), truncated=False)

    async def apply_patch(self, request: api.ApplyPatch) -> api.PatchApplied:
        answer: api.PatchApplied | None = await self._reply("apply_patch", request)
        status: Literal["applied", "checked"] = "checked" if request.check_only else "applied"
        return answer or api.PatchApplied(status=status, files=(), changes=())

    async def recover_patches(self, request: api.RecoverPatches) -> api.RecoveredPatches:
        answer: api.RecoveredPatches | None = await self._reply("recover_patches", request)
        return answer or api.RecoveredPatches(recovered=())

    async def tidy_workspace(self, request: api.TidyWorkspace) -> api.WorkspaceTidied:
        answer: api.WorkspaceTidied | None = await self._reply("tidy_workspace", request)
        return answer or api.WorkspaceTidied(removed=())

    async def start_process(self, request: api.StartProcess) -> api.ProcessStarted:
        await self._reply("start_process", request)
        self.running[request.process_id] = request.terms.workspace_id
        return api.ProcessStarted(process_id=request.process_id, started_at_utc=NOW)

    async def read_process(self, request: api.ReadProcess) -> api.ProcessOutput:
        await self._reply("read_process", request)
        return api.ProcessOutput(
            process_id=request.process_id,
            cursor=0,
            chunk="",
            encoding="utf-8",
            eof=False,
            output_lost=False,
            retained_from=0,
        )

    async def process_status(self, request: api.QueryProcess) -> api.ProcessStatus:
        await self._reply("process_status", request)
        return api.ProcessStatus(
            process_id=request.process_id,
            state="running",
            output_total=0,
            output_retained_from=0,
            eof=False,
            started_at_utc=NOW,
            isolation=api.Isolation(command_sandbox="linux-sandbox", network="restricted", protections={}),
        )

    async def write_stdin(self, request: api.WriteStdin) -> api.StdinWritten:
        await self._reply("write_stdin", request)
        return api.StdinWritten(process_id=request.process_id, written_bytes=len(request.data.encode()))

    async def resize_process(self, request: api.ResizeProcess) -> api.ProcessResized:
        await self._reply("resize_process", request)
        return api.ProcessResized(process_id=request.process_id, rows=request.rows, cols=request.cols)

    async def terminate_process(self, request: api.TerminateProcess) -> api.ProcessTerminating:
        await self._reply("terminate_process", request)
        if request.process_id in self.running:
            self.exit(request.process_id, "terminated")
        return api.ProcessTerminating(process_id=request.process_id, state="exited")

    async def terminate_workspace(self, request: api.TerminateWorkspace) -> api.WorkspaceTerminated:
        await self._reply("terminate_workspace", request)
        ended = [p for p, w in self.running.items() if w == request.workspace_id]
        for process_id in ended:
            self.exit(process_id, "terminated")
        return api.WorkspaceTerminated(process_ids=tuple(ended))

    async def list_processes(self, request: api.ListProcesses) -> api.ProcessList:
        await self._reply("list_processes", request)
        return api.ProcessList(processes=())

    def subscribe(self, listener: api.EventListener) -> None:
        self.listeners.append(listener)

    async def close(self) -> None:
        self.closed = True
        for process_id in list(self.running):
            self.exit(process_id, "terminated")


class FakeLink:
    """A link whose runner comes and goes when the test says so."""

    def __init__(self) -> None:
        self.fake: FakeRunner | None = None
        self.listeners: list[LinkListener] = []
        self.first = FakeRunner()

    @property
    def runner(self) -> api.Runner:
        if self.fake is None:
            raise ToolError(Code.RUNNER_UNAVAILABLE, "down", retryable=True)
        return self.fake

    @property
    def description(self) -> api.RunnerDescription | None:
        return None if self.fake is None else description(self.fake.instance_id, available=self.fake.available)

    def subscribe(self, listener: LinkListener) -> None:
        self.listeners.append(listener)

    def up(self, runner: FakeRunner) -> None:
        self.fake = runner
        for listener in self.listeners:
            runner.subscribe(lambda event, listener=listener: listener.process_exited(runner.instance_id, event))  # type: ignore[misc]
            listener.runner_up(runner.instance_id)

    def lose(self) -> str:
        assert self.fake is not None
        instance_id, self.fake = self.fake.instance_id, None
        for listener in self.listeners:
            listener.runner_lost(instance_id)
        return instance_id

    def prove_dead(self, instance_id: str) -> None:
        for listener in self.listeners:
            listener.all_dead(instance_id)

    async def start(self) -> None:
        self.up(self.first)

    async def close(self) -> None:
        if self.fake is not None:
            runner = self.fake
            instance_id = self.lose()
            await runner.close()
            self.prove_dead(instance_id)


def not_found(process_id: str) -> RunnerError:
    return RunnerError(ErrorCode.PROCESS_NOT_FOUND, f"no process {process_id}")


def descriptors() -> int:
    """Open descriptors of this process."""
    return len(os.listdir("/proc/self/fd"))
