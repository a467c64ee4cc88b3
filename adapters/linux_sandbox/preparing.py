"""Makes one sandbox that waits for its command: the helper's set-up as for a command, but for the command.

It leaves no mark in the workspace: where a protected name is absent and would need a placeholder, none is prepared.
Refuses to know when one is wanted. Called by the launcher for the pool.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable

from adapters.linux_sandbox.cgroups import Leaf
from adapters.linux_sandbox.channels import HandOn, SetUpReport, StartChannels
from adapters.linux_sandbox.client import HelperClient, Started, end_child
from adapters.linux_sandbox.probing import KnownPlan
from adapters.linux_sandbox.waiting import Listeners, WaitingSandbox
from sandbox_helper.protocol import Failure, Run

PREPARE_TIMEOUT_S = 20.0
"""As for the helper's replies."""
TERMINAL_SIZE = (24, 80)
"""Until the request says another."""


async def prepare(
    helper: HelperClient, known: KnownPlan, leaf: Leaf | None, channels: StartChannels, told: set[int]
) -> WaitingSandbox | None:
    """One that waits, or None where the set-up failed; then nothing of it is left but `leaf` and `channels`, which are
    the caller's again. `told`: pids that are nobody's orphans, kept up to date.

    Raises HelperGone, OSError and the like where a child may have been made that nobody was told of.
    """
    listeners: Listeners = []

    async def hold(found: list[tuple[str, int]]) -> bool:
        try:
            for kind, fd in found:
                listeners.append((kind, os.dup(fd)))
        except OSError:
            return False  # no descriptor is left; the child is told so, and fails
        return True

    size = TERMINAL_SIZE if known.terminal else None
    run = Run(0, "", (), size, "exec", leaf is not None, waits=True)
    fds = [*channels.for_child(), *(() if leaf is None else (leaf.fd,))]
    started = await helper.run(known.plan, known.id, run, fds)
    channels.close_child_ends()
    if isinstance(started, Failure):
        return None
    child = started
    told.add(child.pid)
    made: WaitingSandbox | None = None
    mounts: int | None = None
    try:
        said = await _readiness(child, channels, hold)
        mounts = said.mounts
        if mounts is not None and said.failure is None:
            made = WaitingSandbox(known, helper, child, channels, leaf, listeners, mounts, _forgetting(told, child.pid))
        return made
    finally:
        if made is None:
            for fd in (*(fd for _, fd in listeners), *(() if mounts is None else (mounts,))):
                os.close(fd)
            await end_child(child.pidfd)
            os.close(child.pidfd)
            told.discard(child.pid)


def _forgetting(told: set[int], pid: int) -> Callable[[], None]:
    return lambda: told.discard(pid)


async def _readiness(child: Started, channels: StartChannels, hold: HandOn) -> SetUpReport:
    reading = asyncio.ensure_future(channels.until_waiting(hold))
    try:
        async with asyncio.timeout(PREPARE_TIMEOUT_S):
            return await asyncio.shield(reading)
    except TimeoutError:
        signal.pidfd_send_signal(child.pidfd, signal.SIGKILL)
        return await reading
