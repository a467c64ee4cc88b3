"""From a request to a running command, or to the error that tells what is known of it (PROC-8).

The launcher's three failures become the contract's: nothing started, nothing could be tried, may have started. Called
by `runner.service`.
"""

from __future__ import annotations

from runner.api import ErrorCode, ProcessStarted, RunnerError, StartProcess
from runner.log import Log
from runner.ports import LaunchFailed, LaunchRequest, LaunchUncertain, SandboxLauncher, SandboxUnavailable
from runner.processes.process import Process
from runner.processes.table import ProcessTable
from runner.shortage import PASSING

TERMINAL_SIZE = (24, 80)
"""Rows and columns until the first resize (PROC-2)."""
_PASSING = PASSING | {"ENOSPC", "EPIPE"}
"""A machine that is short of something, or a helper that was lost: the same request may succeed later."""


async def start(
    launcher: SandboxLauncher, table: ProcessTable, process: Process, request: StartProcess, log: Log
) -> ProcessStarted:
    """Starts `process`, which is in `table`. Not safe to cancel: shield it.

    Raises `RunnerError` PROCESS_SPAWN_FAILED {stage, errno} or SANDBOX_UNAVAILABLE {feature, errno, remedy}: proved
    that nothing started, and the id is free again; so is it after what the launcher raises as `RunnerError`. INTERNAL
    {uncertain: true}: it may have started; the id stays a handle that says `running` until it is proved gone, then
    `unknown`.
    """
    launch = LaunchRequest(
        process_id=request.process_id,
        terms=request.terms,
        argv=request.argv,
        tty_size=TERMINAL_SIZE if request.tty else None,
    )
    try:
        managed = await launcher.launch(launch)
    except RunnerError:
        table.remove(request.process_id)
        raise
    except LaunchFailed as failure:
        table.remove(request.process_id)
        _log_cause(log, "launch_failed", request.process_id, failure)
        raise _spawn_failed(failure) from failure
    except SandboxUnavailable as missing:
        table.remove(request.process_id)
        raise _sandbox_unavailable(missing) from missing
    except LaunchUncertain as doubt:
        _log_cause(log, "launch_uncertain", request.process_id, doubt)
        process.lost(doubt.ended)
        raise _uncertain(request.process_id, doubt.message) from doubt
    except Exception as error:
        # Whatever broke the launcher, nothing proves that the command did not start.
        log("launch_broke", level="error", process_id=request.process_id, error=repr(error))
        process.lost(None)
        raise _uncertain(request.process_id, "the launcher broke") from error
    process.started(managed)
    return ProcessStarted(process_id=request.process_id, started_at_utc=process.started_at_utc)


def _spawn_failed(failure: LaunchFailed) -> RunnerError:
    details = {"stage": failure.stage, "errno": failure.errno, "path": failure.path, "remedy": failure.remedy}
    return RunnerError(
        ErrorCode.PROCESS_SPAWN_FAILED,
        failure.message,
        retryable=failure.errno in _PASSING,
        details={name: value for name, value in details.items() if value is not None},
    )


def _sandbox_unavailable(missing: SandboxUnavailable) -> RunnerError:
    details = {"feature": missing.feature, "errno": missing.errno, "remedy": missing.remedy}
    return RunnerError(
        ErrorCode.SANDBOX_UNAVAILABLE,
        missing.message,
        details={name: value for name, value in details.items() if value is not None},
    )


def _log_cause(log: Log, event: str, process_id: str, failure: Exception) -> None:
    """What the caller is not told: the error that the launcher met."""
    if failure.__cause__ is not None:
        log(event, level="warning", process_id=process_id, error=repr(failure.__cause__))


def _uncertain(process_id: str, why: str) -> RunnerError:
    return RunnerError(
        ErrorCode.INTERNAL,
        f"process {process_id} may have started: {why or 'its start was lost'}; ask process_status, do not resend",
        details={"uncertain": True},
    )
