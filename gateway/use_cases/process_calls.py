"""The tools on a running command: looked up here, answered by the runner that owns the handle (PROC-3 to PROC-9).

A handle lives as long as its runner instance and its workspace are there; without either it is PROCESS_NOT_FOUND. The
profile is not asked again: a command keeps the terms it started with. Refuses to know: transports, output. Called by
the application.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from gateway.answers import ProcessListed
from gateway.errors import Code, ToolError
from gateway.ports import AuditRecord
from gateway.processes import ProcessRecord
from gateway.use_cases.services import Services
from runner import api
from runner.api import ErrorCode, Runner, RunnerError, RunnerLost

T = TypeVar("T")


async def read_process(services: Services, request: api.ReadProcess) -> api.ProcessOutput:
    """Raises `ToolError`: PROCESS_NOT_FOUND and the runner's codes. Safe to cancel."""
    return await _ask(services, request.process_id, lambda runner: runner.read_process(request))


async def process_status(services: Services, request: api.QueryProcess) -> api.ProcessStatus:
    """As `read_process`."""
    return await _ask(services, request.process_id, lambda runner: runner.process_status(request))


async def write_stdin(services: Services, request: api.WriteStdin) -> api.StdinWritten:
    """As `read_process`; cancelling does not take written bytes back."""
    return await _change(services, "write_stdin", request.process_id, lambda runner: runner.write_stdin(request))


async def resize_process(services: Services, request: api.ResizeProcess) -> api.ProcessResized:
    """As `read_process`."""
    return await _ask(services, request.process_id, lambda runner: runner.resize_process(request))


async def terminate_process(services: Services, request: api.TerminateProcess) -> api.ProcessTerminating:
    """As `read_process`; idempotent."""
    return await _change(
        services, "terminate_process", request.process_id, lambda runner: runner.terminate_process(request)
    )


async def list_processes(services: Services, workspace_id: str | None) -> tuple[ProcessListed, ...]:
    """Handles of the present runner, oldest first. Raises `ToolError` WORKSPACE_NOT_FOUND, RUNNER_UNAVAILABLE."""
    if workspace_id is not None:
        services.registry.workspace(workspace_id)
    runner, _ = services.present_runner()
    try:
        listed = await runner.list_processes(api.ListProcesses(workspace_id=workspace_id))
    except RunnerLost:
        raise ToolError(Code.RUNNER_UNAVAILABLE, "the runner was lost: nothing of it runs", retryable=True) from None
    except RunnerError as error:
        raise ToolError.from_runner(error) from None
    return tuple(
        ProcessListed(
            process_id=one.process_id,
            workspace_id=one.workspace_id,
            command=one.argv,
            tty=one.tty,
            state=one.state,
            started_at=one.started_at_utc,
        )
        for one in sorted(listed.processes, key=lambda process: process.process_id)
        if one.workspace_id in services.registry.workspaces
    )


def _find(services: Services, process_id: str) -> ProcessRecord:
    record = services.processes.get(process_id)
    if record is None:
        raise _not_found(process_id, "it was never issued, its record has expired, or its runner has ended")
    registered = services.registry.workspaces.get(record.workspace.workspace_id)
    if registered is None or registered.root != record.workspace.root:
        raise _not_found(process_id, "its workspace is no longer registered")
    return record


async def _ask(services: Services, process_id: str, call: Callable[[Runner], Awaitable[T]]) -> T:
    record = _find(services, process_id)
    # A call on a handle whose start is not answered yet waits for the answer: the runner may not know it before.
    await record.dispatched.wait()
    if services.processes.get(process_id) is not record:
        raise _not_found(process_id, "its runner has ended, and the command with it, or it never started")
    runner, _ = services.present_runner()
    try:
        return await call(runner)
    except RunnerLost:
        raise _not_found(process_id, "its runner has ended, and the command with it") from None
    except RunnerError as error:
        if error.code is ErrorCode.PROCESS_NOT_FOUND and not record.running:
            services.processes.forget(process_id)
        raise ToolError.from_runner(error) from None


async def _change(services: Services, tool: str, process_id: str, call: Callable[[Runner], Awaitable[T]]) -> T:
    """As `_ask`, with an audit line for what came of it."""
    ids = {"process_id": process_id[:80]}
    record = _find(services, process_id)
    workspace_id = record.workspace.workspace_id
    try:
        answer = await _ask(services, process_id, call)
    except ToolError as failure:
        services.audit.record(AuditRecord("mutation", tool, workspace_id, "failed", failure.code.value, ids))
        raise
    services.audit.record(AuditRecord("mutation", tool, workspace_id, "done", None, ids))
    return answer


def _not_found(process_id: str, why: str) -> ToolError:
    return ToolError(
        Code.PROCESS_NOT_FOUND,
        f"no process {process_id[:80]!r}: {why}",
        details={"process_id": process_id[:80]},
    )
