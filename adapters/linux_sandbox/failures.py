"""What broke a start, in the words of the launcher's port, and ends that are tried again.

Refuses to know how a start goes. Used by the launcher.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from typing import TypeVar

from adapters.linux_sandbox.channels import SetUpReport
from adapters.linux_sandbox.remedies import remedy_for
from runner.ports import LaunchFailed
from sandbox_helper.protocol import Failure

T = TypeVar("T")
SETTLE_TRIES, SETTLE_PAUSE_S = 100, 0.1


async def ended_already() -> None:
    """What a lost start may have made was found and reaped before its loss was told."""


async def insist(settle: Callable[[], Awaitable[T]]) -> T:
    """Once more where the shortage that broke a start off breaks its end off as well. Raises what the last try did."""
    for _ in range(SETTLE_TRIES - 1):
        try:
            return await settle()
        except Exception:  # noqa: BLE001 - of whatever kind: a command that nobody ends holds its workspace for ever
            await asyncio.sleep(SETTLE_PAUSE_S)
    return await settle()


def failure_of(said: SetUpReport) -> Failure:
    if said.failure is not None:
        return said.failure
    return Failure(said.stage, "EIO", "", "the set-up was killed")


def launch_failed(failure: Failure) -> LaunchFailed:
    path = failure.path or None
    _, remedy = remedy_for(failure)
    message = f"the command did not start: {failure.stage}: {failure.message}"
    return LaunchFailed(failure.stage, failure.errno, message, path=path, remedy=remedy)


def not_begun(error: Exception) -> LaunchFailed:
    """Whatever broke the launcher before it asked for the command."""
    code = "EIO"
    if isinstance(error, MemoryError):
        code = "ENOMEM"
    elif isinstance(error, OSError):
        code = errno_name(error)
    elif isinstance(error, RuntimeError) and "new thread" in str(error):
        code = "EAGAIN"
    return LaunchFailed("plan", code, f"the launcher failed before it asked for the command: {type(error).__name__}")


def errno_name(error: OSError) -> str:
    return errno.errorcode.get(error.errno or 0, str(error.errno))
