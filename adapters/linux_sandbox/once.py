"""One command or one probe for a program that is no runner: a launcher of its own, opened and closed around it.

Refusals come as `runner.api.RunnerError`, as they would from a runner. Refuses to know: terminals, workspaces' ids.
Joined in `gateway.__main__` for `codespace exec` and `codespace doctor`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from adapters.linux_sandbox.launcher import LinuxSandboxLauncher
from adapters.linux_sandbox.network import NetworkProxy
from adapters.linux_sandbox.run_once import OneCommand, OneProxy, prepare
from runner.api import ErrorCode, IsolationReport, RunnerError, WorkspaceTerms
from runner.ports import LaunchFailed, SandboxUnavailable


async def probe(terms: WorkspaceTerms | None, proxy: NetworkProxy) -> IsolationReport:
    """What a command under these terms would get here, as the real helper finds it. `proxy`: of this probe alone, and
    closed with it; started only for a network that is `enabled`."""
    launcher = LinuxSandboxLauncher(proxy=proxy)
    try:
        await launcher.start()
        return await launcher.report(terms)
    finally:
        await launcher.close()


async def prepare_one(
    terms: WorkspaceTerms,
    argv: Sequence[str],
    tty_size: tuple[int, int] | None,
    proxy: NetworkProxy,
) -> OneCommand:
    """See `run_once.prepare`. `proxy`: of the probe before it, as above; the command gets another (`with_proxy`).

    Raises `RunnerError` SANDBOX_UNAVAILABLE or PROCESS_SPAWN_FAILED, leaving nothing.
    """
    launcher = LinuxSandboxLauncher(proxy=proxy)
    try:
        await launcher.start()
        return await prepare(launcher, terms, argv, tty_size)
    except SandboxUnavailable as error:
        details = {"feature": error.feature, "errno": error.errno, "remedy": error.remedy}
        raise RunnerError(ErrorCode.SANDBOX_UNAVAILABLE, error.message, details=details) from error
    except LaunchFailed as error:
        raise _spawn_failed(error) from error
    finally:
        await launcher.close()


def with_proxy(command: OneCommand, start: Callable[[WorkspaceTerms, Sequence[str]], OneProxy]) -> OneCommand:
    """See `OneCommand.with_proxy`. Raises `RunnerError` PROCESS_SPAWN_FAILED, with the command closed."""
    try:
        return command.with_proxy(start)
    except LaunchFailed as error:
        command.close()
        raise _spawn_failed(error) from error


def _spawn_failed(error: LaunchFailed) -> RunnerError:
    details = {"stage": error.stage, "errno": error.errno, "remedy": error.remedy}
    return RunnerError(ErrorCode.PROCESS_SPAWN_FAILED, error.message, details=details)
