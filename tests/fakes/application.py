"""An application without runner, registry or store: answers from its own state, for tests of the transports."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

from gateway.answers import (
    ClaimAnswer,
    CompleteAnswer,
    Coordination,
    ExecDispatched,
    FinishAnswer,
    HoldAnswer,
    OperationAnswer,
    PatchAnswer,
    Readiness,
    ResumeAnswer,
    SteerItem,
    SteerStatus,
    WorkOpened,
    WorkspaceInfo,
    WorkspaceListed,
)
from gateway.application import Application
from gateway.errors import Code, ToolError
from runner import api

FIRST_TOOLS = frozenset(
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
    }
)
ALL_TOOLS = FIRST_TOOLS | {
    "grep",
    "apply_patch",
    "operation_status",
    "approval_create",
    "approval_resolve",
    "operation_resume",
    "work_open",
    "steer_status",
    "steer_claim_next",
    "steer_complete",
    "work_finish",
}


def _arguments(method: Callable[..., object], given: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[Any, ...]:
    """A call's arguments in the order of the real method, defaults included. Raises TypeError for others."""
    bound = inspect.signature(method).bind(None, *given, **named)
    bound.apply_defaults()
    return bound.args[1:]


class FakeApplication(Application):
    """`files`: path to text of the one workspace, `demo`. `calls`: every call that came through, by tool.

    `gate`: while clear, `read_process` with a wait does not answer, and `waiting` is set; and `cancelled`,
    should the call be cancelled. `close` opens it.
    """

    def __init__(self, files: Mapping[str, str] | None = None, *, tools: frozenset[str] = FIRST_TOOLS) -> None:
        self.files = dict(files or {"hello.txt": "hello\n"})
        self.tools = tools
        self.calls: list[tuple[str, object]] = []
        self.gate = asyncio.Event()
        self.waiting = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.ready = Readiness(ready=True)
        self.exposure: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
        self.reloads = 0
        self.reload_error: Exception | None = None
        self.closed = 0
        self.fault: Exception | None = None

    async def start(self) -> None:
        return

    def available_tools(self) -> frozenset[str]:
        return self.tools

    def set_exposure(self, *, tools: Sequence[str], transports: Sequence[str]) -> None:
        self.exposure = (tuple(tools), tuple(transports))

    async def workspace_info(self, workspace_id: str | None) -> WorkspaceInfo:
        self._called("workspace_info", workspace_id)
        return WorkspaceInfo(
            server="codespace",
            version="0",
            tools_exposed=self.exposure[0],
            transports=self.exposure[1],
            workspaces=(WorkspaceListed(workspace_id="demo", profile="workspace-write"),),
        )

    async def read_file(
        self, workspace_id: str, path: str, offset: int | None = None, limit: int | None = None
    ) -> api.FileContent:
        self._called("read", (workspace_id, path, offset, limit))
        if workspace_id != "demo":
            raise ToolError(Code.WORKSPACE_NOT_FOUND, f"no workspace {workspace_id!r}", details={"workspace_id": "x"})
        if path not in self.files:
            raise ToolError(Code.FILE_NOT_FOUND, f"no file {path!r}: look with find")
        text = self.files[path]
        return api.FileContent(path=path, content=text, encoding="utf-8", size=len(text.encode()), truncated=False)

    async def find_files(
        self, workspace_id: str, pattern: str, limit: int | None = None, cursor: str | None = None
    ) -> api.FindPage:
        self._called("find", (workspace_id, pattern, limit, cursor))
        return api.FindPage(
            matches=tuple(api.FoundPath(path=path, type="file") for path in sorted(self.files)), truncated=False
        )

    async def grep_files(self, *given: Any, **named: Any) -> api.GrepPage:
        self._called("grep", _arguments(Application.grep_files, given, named))
        return api.GrepPage(matches=(api.GrepMatch(path="hello.txt", line=1, text="hello"),), truncated=False)

    async def apply_patch(self, *given: Any, **named: Any) -> PatchAnswer:
        self._called("apply_patch", _arguments(Application.apply_patch, given, named))
        return PatchAnswer(
            status="applied",
            operation_id="op_1",
            files=("hello.txt",),
            changes=(api.FileChange(path="hello.txt", kind="update"),),
        )

    async def operation_status(
        self, operation_id: str | None = None, operation_key: str | None = None, workspace_id: str | None = None
    ) -> OperationAnswer:
        self._called("operation_status", (operation_id, operation_key, workspace_id))
        return OperationAnswer(
            operation_id="op_1",
            workspace_id="demo",
            created_at=datetime(2026, 1, 2, tzinfo=UTC),
            files=(),
            changes=(),
            events=(),
        )

    async def hold_patch(self, *given: Any, **named: Any) -> HoldAnswer:
        self._called("approval_create", _arguments(Application.hold_patch, given, named))
        return HoldAnswer(approval_id="apr_1", state="pending")

    async def hold_exec(
        self, workspace_id: str, command: tuple[str, ...], tty: bool = False, request_key: str | None = None
    ) -> HoldAnswer:
        self._called("approval_create", (workspace_id, command, tty, request_key))
        return HoldAnswer(approval_id="apr_1", state="pending")

    async def approval_resolve(self, approval_id: str, decision: Literal["grant", "deny"]) -> HoldAnswer:
        self._called("approval_resolve", (approval_id, decision))
        return HoldAnswer(approval_id=approval_id, state="granted" if decision == "grant" else "denied")

    async def operation_resume(self, approval_id: str) -> ResumeAnswer:
        self._called("operation_resume", approval_id)
        dispatched = ExecDispatched(process_id="proc_1", dispatch_status="confirmed")
        return ResumeAnswer(approval_id=approval_id, exec_command=dispatched)

    async def work_open(self, workspace_id: str, title: str | None = None) -> WorkOpened:
        self._called("work_open", (workspace_id, title))
        return WorkOpened(work_id="work_1", workspace_id=workspace_id, state="active")

    async def coordination(self, work_id: str, workspace_id: str | None = None) -> Coordination:
        if work_id != "work_1":
            raise ToolError(Code.WORK_NOT_FOUND, f"no work {work_id!r}")
        return Coordination(work_id=work_id, pending_user_items=2, queue_revision=3)

    async def steer_status(self, work_id: str) -> SteerStatus:
        self._called("steer_status", work_id)
        return SteerStatus(work_id=work_id, state="active", queued=2, claimed=0, claimable_now=1, queue_revision=3)

    async def steer_claim_next(self, work_id: str) -> ClaimAnswer:
        self._called("steer_claim_next", work_id)
        item = SteerItem(intent_id="int_1", revision=1, kind="note", delivery="next_checkpoint", content="hi")
        return ClaimAnswer(item=item)

    async def steer_complete(self, work_id: str, intent_id: str, outcome: Literal["done", "blocked"]) -> CompleteAnswer:
        self._called("steer_complete", (work_id, intent_id, outcome))
        return CompleteAnswer(work_id=work_id, intent_id=intent_id, state=outcome)

    async def work_finish(self, work_id: str) -> FinishAnswer:
        self._called("work_finish", work_id)
        return FinishAnswer(work_id=work_id, closed=True, queued=0, state="closed")

    async def exec_command(
        self, workspace_id: str, command: tuple[str, ...], tty: bool = False, request_key: str | None = None
    ) -> ExecDispatched:
        self._called("exec_command", (workspace_id, command, tty, request_key))
        return ExecDispatched(process_id="proc_1", dispatch_status="confirmed")

    async def read_process(self, request: api.ReadProcess) -> api.ProcessOutput:
        self._called("read_process", request)
        if request.wait_ms:
            self.waiting.set()
            try:
                await self.gate.wait()
            except asyncio.CancelledError:
                self.cancelled.set()
                raise
        return api.ProcessOutput(
            process_id=request.process_id,
            cursor=3,
            chunk="hi\n",
            encoding="utf-8",
            eof=True,
            output_lost=False,
            retained_from=0,
        )

    async def process_status(self, request: api.QueryProcess) -> api.ProcessStatus:
        self._called("process_status", request)
        return api.ProcessStatus(
            process_id=request.process_id,
            state="exited",
            termination="exited",
            exit_code=0,
            command_exit=api.CommandExit(code=0),
            output_total=3,
            output_retained_from=0,
            eof=True,
            started_at_utc=datetime(2026, 1, 2, tzinfo=UTC),
            exited_at_utc=datetime(2026, 1, 3, tzinfo=UTC),
            isolation=api.Isolation(command_sandbox="linux-sandbox", network="restricted", protections={}),
        )

    async def write_stdin(self, request: api.WriteStdin) -> api.StdinWritten:
        self._called("write_stdin", request)
        return api.StdinWritten(process_id=request.process_id, written_bytes=len(request.data.encode()))

    async def resize_process(self, request: api.ResizeProcess) -> api.ProcessResized:
        self._called("process_resize", request)
        return api.ProcessResized(process_id=request.process_id, rows=request.rows, cols=request.cols)

    async def terminate_process(self, request: api.TerminateProcess) -> api.ProcessTerminating:
        self._called("terminate_process", request)
        return api.ProcessTerminating(process_id=request.process_id, state="running")

    async def stored_counts(self) -> dict[tuple[str, str], int]:
        return {("operations", "applied"): 5, ("holds", "pending"): 2, ("works", "active"): 1, ("intents", "queued"): 4}

    def running_processes(self) -> int:
        return sum(tool == "exec_command" for tool, _ in self.calls)

    def ended_processes(self) -> dict[str, int]:
        return {"exited": 6, "lost": 1}

    async def network_decisions(self) -> tuple[api.NetworkDecisions, ...]:
        return (api.NetworkDecisions(via="connect", decision="refused", count=3),)

    async def readiness(self) -> Readiness:
        return self.ready

    async def reload(self) -> None:
        self.reloads += 1
        if self.reload_error is not None:
            raise self.reload_error

    async def close(self) -> None:
        self.closed += 1
        self.gate.set()

    def _called(self, tool: str, arguments: object) -> None:
        self.calls.append((tool, arguments))
        if self.fault is not None:
            raise self.fault
