"""One prepared sandbox: a managed child that has done everything but the command's own process, and waits for it.

It holds no lease and is no command: it has run nothing. It is used once, by whoever takes it, or ended. Its own end
(killed, for want of memory) is noticed at once. Refuses to know how many there are. Made by the launcher, kept by the
pool.
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
from adapters.linux_sandbox.standing import difference
from sandbox_helper.protocol import GO, ProtocolError, fed_message

USE_TIMEOUT_S = 20.0
"""As for the helper's replies: a child that takes longer from its command to exec is stopped or stuck."""

Listeners = list[tuple[str, int]]


class NotUsable(Exception):
    """This one runs nothing, and nothing has run in it: the text says why."""


class WaitingSandbox:
    """`listeners`: of an `enabled` network, held until there is a command to serve. `on_reaped`: called by `end`.
    Whoever takes it calls `claim` first, then `use`; with a command in it, `started`, `leaf` and `channels` are the
    taker's, else `end` takes care of them. `gone_on`: the command may have run. `mounts`: its mount namespace, which
    takes a while to be taken apart: by closing this, once its end is known."""

    def __init__(
        self,
        known: KnownPlan,
        helper: HelperClient,
        started: Started,
        channels: StartChannels,
        leaf: Leaf | None,
        listeners: Listeners,
        mounts: int,
        on_reaped: Callable[[], None],
    ) -> None:
        self.known, self.helper, self.started, self.channels, self.leaf = known, helper, started, channels, leaf
        self._listeners, self._on_reaped = listeners, on_reaped
        self.mounts = mounts
        self.gone_on = False
        self._waits = self._ended = False

    def watch(self, on_death: Callable[[], None]) -> None:
        """Calls `on_death` once if it ends while it waits. Raises OSError where the loop takes no descriptor more."""
        asyncio.get_running_loop().add_reader(self.started.pidfd, on_death)
        self._waits = True

    def claim(self) -> None:
        """It is no longer watched: it is about to be used or ended. Idempotent."""
        if self._waits:
            self._waits = False
            asyncio.get_running_loop().remove_reader(self.started.pidfd)

    async def use(self, argv: tuple[bytes, ...], size: tuple[int, int] | None, hand_on: HandOn) -> SetUpReport:
        """Runs the command, and reports as a start from nothing does. `size`: of its terminal, as the request has it.

        Raises NotUsable where nothing was run.
        """
        try:
            message = fed_message(argv)
        except ProtocolError as error:
            raise NotUsable(str(error)) from error
        if message is None:
            raise NotUsable("the command is too long to be handed over at once")
        if self._listeners:
            taken = await hand_on(self._listeners)
            self._close_listeners()
            if not taken:
                raise NotUsable("its network is not served")
        if size is not None:
            self.channels.set_size(*size)
        # Both look at once: the child at what lives in the workspace, a thread at what lies outside.
        if not self.channels.feed(message):
            raise NotUsable("it takes no command")
        looking = asyncio.get_running_loop().run_in_executor(None, self._look_and_go)
        if size is None:
            self.channels.widen()
        changed = await looking
        if changed is not None:
            raise NotUsable(f"{changed} is another one")
        said = await self._until_executing()
        if said.stale is not None:
            raise NotUsable(said.stale)
        if not said.executing and said.failure is None:
            raise NotUsable(f"it was killed at the stage {said.stage}")
        return said

    def _look_and_go(self) -> str | None:
        """What is another one outside; where nothing is, the child is told to go on. In a thread, whose way back to
        the loop nobody waits for then."""
        changed = difference(self.started.stands_on)
        if changed is None:
            self.gone_on = True
            self.channels.feed(GO)
        return changed

    async def _until_executing(self) -> SetUpReport:
        reading = asyncio.ensure_future(self.channels.read_report())
        try:
            async with asyncio.timeout(USE_TIMEOUT_S):
                return await asyncio.shield(reading)
        except TimeoutError:
            # Its end closes the report, which then says how far it came.
            signal.pidfd_send_signal(self.started.pidfd, signal.SIGKILL)
            return await reading

    async def end(self) -> None:
        """Ends and reaps it, and removes its control group. Not for one that became a command. Idempotent."""
        self.claim()
        if self._ended:
            return
        self._ended = True
        await end_child(self.started.pidfd)
        os.close(self.started.pidfd)
        self._on_reaped()
        self.channels.close()
        self._close_listeners()
        await asyncio.to_thread(os.close, self.mounts)
        leaf, self.leaf = self.leaf, None
        if leaf is not None:
            await asyncio.to_thread(leaf.close)

    def _close_listeners(self) -> None:
        while self._listeners:
            os.close(self._listeners.pop()[1])
