"""A launcher whose every command finds a prepared sandbox waiting, where one can be made: the other half of each test.

Also run by the attacks' driver. It refuses to know what is being tested.
"""

from __future__ import annotations

from typing import Any

from adapters.linux_sandbox.launcher import LinuxSandboxLauncher
from adapters.linux_sandbox.waiting import WaitingSandbox
from runner.ports import LaunchFailed, LaunchRequest, ManagedProcess, SandboxUnavailable

BOUND = 2


class PreparedLauncher(LinuxSandboxLauncher):
    """`used`: how many commands ran in a sandbox that had waited for them."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **{"prepared": BOUND, **more})
        self.used = 0

    async def launch(self, request: LaunchRequest) -> ManagedProcess:
        waiting = await self.primed(request)
        process = await super().launch(request)
        self.used += process.pid in {sandbox.started.pid for sandbox in waiting}
        return process

    async def primed(self, request: LaunchRequest) -> list[WaitingSandbox]:
        """What waits for this command once all that is wanted was made."""
        try:
            helper, known, _ = await self._ready(request)
        except (LaunchFailed, SandboxUnavailable):
            return []  # the launch will say so
        use = self.pool.want(known, helper)
        if use is None:
            return []
        use.refused_at = None
        self.pool.refill()
        await self.pool.settled()
        return list(use.waiting)
