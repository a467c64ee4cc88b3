"""`exec_command`: registry → policy → argv → request key → hold → root → lease → runner → answer (PROC-1, PROC-8).

From the lease on the dispatch is a task of its own: a caller that goes away changes nothing. The lease is given back
here only where it is proved that nothing started; otherwise custody gives it back at the process's end. Refuses to
know: transports, how a command is run. Called by the application.
"""

from __future__ import annotations

import asyncio
import time
from typing import Literal

from gateway.answers import ExecDispatched
from gateway.errors import Code, ToolError
from gateway.policy import Action
from gateway.ports import AuditRecord
from gateway.registry import Workspace
from gateway.request_keys import check_key, fingerprint
from gateway.use_cases.hold import Gate, HeldCall, held_exec
from gateway.use_cases.services import Services
from runner import api
from runner.api import ErrorCode, RunnerError, RunnerLost

TOOL = "exec_command"


async def exec_command(
    services: Services, gate: Gate, workspace_id: str, command: tuple[str, ...], *, tty: bool, request_key: str | None
) -> ExecDispatched:
    """Dispatches one command. Safe to cancel: what was begun goes on, and a retry with the same key finds it.

    Raises `ToolError`: the decisions' codes, INVALID_COMMAND, OPERATION_KEY_CONFLICT, WORKSPACE_BUSY,
    TOO_MANY_PROCESSES, RUNNER_UNAVAILABLE, SANDBOX_UNAVAILABLE, PROCESS_SPAWN_FAILED: with each, nothing started.
    """
    workspace = services.decide(TOOL, workspace_id, Action.EXEC)
    try:
        api.check_argv(command)
    except RunnerError as error:
        raise ToolError.from_runner(error) from None
    request = ""
    if request_key is not None:
        check_key("request_key", request_key)
        request = fingerprint(command, tty)
        known = services.request_keys.find(workspace_id, request_key, request)
        if known is not None:
            return await asyncio.shield(known)
    call = held_exec(workspace_id, command, tty, request_key)
    await gate(workspace, call)
    await services.verify_root(workspace, to_run=True)
    # Nothing is awaited between this second look at the key and its entry: two callers with one key are one dispatch.
    if request_key is not None:
        known = services.request_keys.find(workspace_id, request_key, request)
        if known is not None:
            return await asyncio.shield(known)
    task = asyncio.get_running_loop().create_task(_dispatch(services, gate, workspace, call), name="exec-dispatch")
    services.keep(task)
    if request_key is not None:
        services.request_keys.put(workspace_id, request_key, request, task)
    return await asyncio.shield(task)


async def _dispatch(services: Services, gate: Gate, workspace: Workspace, call: HeldCall) -> ExecDispatched:
    runner, instance_id = services.present_runner()
    if services.registry.workspaces.get(workspace.workspace_id) != workspace:
        # Reloaded since the decision: decide again, on the terms of now.
        workspace = services.decide(TOOL, workspace.workspace_id, Action.EXEC)
        await gate(workspace, call)
    process_id = services.ids.new("proc")
    services.leases.acquire(workspace, "process", process_id, instance_id)
    record = services.processes.begin(process_id, workspace, instance_id)
    try:
        _check_count(services)
        began = time.perf_counter()
        start = api.StartProcess(
            process_id=process_id,
            terms=workspace.terms(),
            argv=tuple(call.arguments["command"]),
            tty=call.arguments["tty"],
        )
        await services.performed(runner.start_process(start))
        return _dispatched(services, workspace, process_id, "confirmed", time.perf_counter() - began)
    except ToolError as refused:
        _never_started(services, workspace, process_id, refused)
        raise
    except RunnerError as error:
        if await _may_have_started(runner, process_id, error):
            return _dispatched(services, workspace, process_id, "unknown")
        failure = ToolError.from_runner(error)
        _never_started(services, workspace, process_id, failure)
        raise failure from None
    finally:
        record.dispatched.set()


async def _may_have_started(runner: api.Runner, process_id: str, error: RunnerError) -> bool:
    """Every refusal of a runner proves that nothing started, with three exceptions: it was lost, it says itself that
    it does not know, or it met a fault of its own. After a fault it is asked whether it knows the handle."""
    if isinstance(error, RunnerLost) or error.details.get("uncertain") is True:
        return True
    if error.code is not ErrorCode.INTERNAL:
        return False
    try:
        await runner.process_status(api.QueryProcess(process_id=process_id))
    except RunnerError as answer:
        return answer.code is not ErrorCode.PROCESS_NOT_FOUND
    return True


def _check_count(services: Services) -> None:
    """Counts what may be alive, commands of a lost runner included: they still take memory and processes."""
    running = sum(lease.kind == "process" for lease in services.leases.held())
    if running > services.max_processes:
        raise ToolError(
            Code.TOO_MANY_PROCESSES,
            f"{services.max_processes} commands run already, the most this server allows: wait for one to end",
            retryable=True,
            details={"max_processes": services.max_processes},
        )


def _never_started(services: Services, workspace: Workspace, process_id: str, refusal: ToolError) -> None:
    services.processes.forget(process_id)
    services.release(process_id)
    ids = {"process_id": process_id}
    services.audit.record(AuditRecord("mutation", TOOL, workspace.workspace_id, "failed", refusal.code.value, ids))


def _dispatched(
    services: Services,
    workspace: Workspace,
    process_id: str,
    status: Literal["confirmed", "unknown"],
    seconds: float | None = None,
) -> ExecDispatched:
    outcome: Literal["done", "unknown"] = "done" if status == "confirmed" else "unknown"
    ids = {"process_id": process_id}
    services.audit.record(AuditRecord("mutation", TOOL, workspace.workspace_id, outcome, None, ids, seconds))
    return ExecDispatched(process_id=process_id, dispatch_status=status)
