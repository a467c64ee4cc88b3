"""Sandboxes that wait for a command: how many of which plan, when they are made, and when they go.

A plan is worth one while it was used lately, and more while it is used in quick succession, up to the operator's bound
for all of them together. They are made one at a time, behind a start and never beside one: whoever wants a command is
served first. Nothing is kept for a plan that has changed, a helper that is gone, or a workspace that nobody has used
for a while. Refuses to know how a sandbox is made and used. Owned by the launcher, on one event loop.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from adapters.linux_sandbox.client import HelperClient
from adapters.linux_sandbox.probing import KnownPlan
from adapters.linux_sandbox.waiting import WaitingSandbox

IDLE_S = 300.0
"""A workspace without a command for so long keeps no sandbox."""
BUSY_S, BUSY_STARTS = 1.0, 4
"""One sandbox more for every BUSY_STARTS starts of a plan within BUSY_S."""
YIELD_S = 5.0
"""A plan that was not used for so long gives way to one that was."""
REST_S = 0.004
"""Between a command's start or end and the making of the next sandbox: the answer to whoever waits comes first."""
REFUSED_S = 30.0
"""A plan for which none could be made is not tried again for so long: an absent protected name, say."""

Maker = Callable[[KnownPlan], Awaitable[WaitingSandbox | None]]


class PlanUse:
    """Of one plan: `starts`, by the loop's clock; `refused_at`: when none could be made; `waiting`: oldest first."""

    def __init__(self, known: KnownPlan) -> None:
        self.known = known
        self.starts: deque[float] = deque(maxlen=64)
        self.refused_at: float | None = None
        self.waiting: list[WaitingSandbox] = []

    def wanted(self, now: float) -> int:
        if self.refused_at is not None and now - self.refused_at < REFUSED_S:
            return 0
        if now - self.starts[-1] >= IDLE_S:
            return 0
        return 1 + sum(now - start < BUSY_S for start in self.starts) // BUSY_STARTS


class SandboxPool:
    """`bound`: sandboxes in all, 0 for none ever. `make`: prepares one, or None where it cannot be; raises nothing that
    the pool could do something about."""

    def __init__(self, bound: int, make: Maker) -> None:
        self._bound, self._make = bound, make
        self._uses: dict[tuple[str, bool], PlanUse] = {}
        self._starting = 0
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._refilling: asyncio.Task[None] | None = None
        self._soon: asyncio.TimerHandle | None = None
        self._again = False
        self._meanwhile: list[Callable[[WaitingSandbox], bool]] | None = None
        """What `discard` was asked for while one is made."""
        self._expiry: asyncio.TimerHandle | None = None
        self._endings: set[asyncio.Task[None]] = set()
        self._retired: list[int] = []
        self._closed = False

    # --- use --------------------------------------------------------------------------------------------------------
    @contextmanager
    def starting(self) -> Iterator[None]:
        """Around every start: nothing is made meanwhile, and something may be afterwards."""
        self._starting += 1
        self._quiet.clear()
        try:
            yield
        finally:
            self._starting -= 1
            if self._starting == 0:
                self._quiet.set()

    def take(self, known: KnownPlan, helper: HelperClient) -> WaitingSandbox | None:
        """One that waits for a command of this very plan, made by this very helper; it is the caller's now."""
        use = self.want(known, helper)
        if use is None or not use.waiting:
            return None
        found = use.waiting.pop()
        found.claim()
        return found

    def want(self, known: KnownPlan, helper: HelperClient) -> PlanUse | None:
        """Notes a use of the plan, and ends what waits for another one of the same workspace, or is not this helper's.
        None where nothing waits for such plans ever."""
        if self._bound == 0 or known.terms.sandbox == "off" or self._closed:
            return None
        use = self._uses.get(known.key)
        if use is None or use.known is not known:
            if use is not None:
                self._discard(use, use.waiting)
            use = self._uses[known.key] = PlanUse(known)
        use.starts.append(_now())
        self._expire_later()
        self._discard(use, [sandbox for sandbox in use.waiting if sandbox.helper is not helper])
        return use

    def refill(self) -> None:
        """Makes what is wanted, soon; after a start, and after a command's end."""
        self._again = True
        if self._refilling is None and self._soon is None and (self._uses or self._retired) and not self._closed:
            self._soon = asyncio.get_running_loop().call_later(REST_S, self._begin)

    def _begin(self) -> None:
        self._soon = None
        self._refilling = asyncio.get_running_loop().create_task(self._refill(), name="prepare sandboxes")
        self._refilling.add_done_callback(self._refilled)

    @property
    def waiting(self) -> int:
        """How many there are."""
        return sum(len(use.waiting) for use in self._uses.values())

    async def settled(self) -> None:
        """Until nothing is wanted, under way or ending."""
        while self._soon is not None or self._refilling is not None or self._endings:
            if self._soon is not None:
                self._soon.cancel()
                self._begin()
            await asyncio.wait({task for task in (self._refilling, *self._endings) if task is not None})
            await asyncio.sleep(0)  # the callbacks of what is done come next

    # --- making -----------------------------------------------------------------------------------------------------
    async def _refill(self) -> None:
        self._again = False
        await self._take_apart()
        while (use := self._most_wanted()) is not None:
            await self._quiet.wait()
            if not await self._make_one(use):
                return

    def retire(self, mounts: int) -> None:
        """Takes the mount namespace of a command that is over, to be closed behind the starts as well."""
        if self._closed:
            os.close(mounts)
        else:
            self._retired.append(mounts)

    async def _take_apart(self) -> None:
        retired, self._retired = self._retired, []
        if retired:
            await asyncio.to_thread(_close_all, retired)

    def _refilled(self, task: asyncio.Task[None]) -> None:
        self._refilling = None
        if not task.cancelled():
            task.result()
            if self._again:
                self.refill()

    async def _make_one(self, use: PlanUse) -> bool:
        """False where it was discarded before it waited, so that nothing is made in its place."""
        meanwhile = self._meanwhile = []
        try:
            made = await self._make(use.known)
        finally:
            self._meanwhile = None
        if made is None:
            use.refused_at = _now()
            return True
        kept = False
        try:
            if any(unwanted(made) for unwanted in meanwhile):
                return False
            if not self._closed and self._uses.get(use.known.key) is use:
                made.watch(lambda: self._discard(use, [made]))
                use.waiting.append(made)
                kept = True
            return True
        finally:
            if not kept:
                await made.end()

    def _most_wanted(self) -> PlanUse | None:
        """The plan used last of those that lack one, if there is room or another plan gives way."""
        now = _now()
        lacking = [use for use in self._uses.values() if len(use.waiting) < use.wanted(now)]
        if not lacking or self._closed:
            return None
        chosen = max(lacking, key=lambda use: use.starts[-1])
        if self.waiting < self._bound:
            return chosen
        latest = min(chosen.starts[-1], now - YIELD_S)
        yielding = [
            use for use in self._uses.values() if use.waiting and use.starts[-1] <= latest and use is not chosen
        ]
        if not yielding:
            return None
        oldest = min(yielding, key=lambda use: use.starts[-1])
        self._discard(oldest, oldest.waiting[:1])
        return chosen

    # --- ending -----------------------------------------------------------------------------------------------------
    def discard(self, unwanted: Callable[[WaitingSandbox], bool]) -> None:
        """Ends those, and one that is just being made; nothing is made in their place before the next use."""
        if self._meanwhile is not None:
            self._meanwhile.append(unwanted)
        for use in self._uses.values():
            self._discard(use, [sandbox for sandbox in use.waiting if unwanted(sandbox)])

    def _discard(self, use: PlanUse, unwanted: list[WaitingSandbox]) -> None:
        for sandbox in list(unwanted):
            if sandbox in use.waiting:
                use.waiting.remove(sandbox)
                sandbox.claim()
                self.end(sandbox)

    def end(self, sandbox: WaitingSandbox) -> None:
        """Ends one that was taken and not used, in the background."""
        task = asyncio.get_running_loop().create_task(sandbox.end(), name="end a sandbox")
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)

    def _expire_later(self) -> None:
        if self._expiry is None and self._uses and not self._closed:
            first = min(use.starts[-1] for use in self._uses.values())
            self._expiry = asyncio.get_running_loop().call_at(first + IDLE_S, self.expire)

    def expire(self) -> None:
        """Ends what waits for plans that nobody used for IDLE_S."""
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        now = _now()
        for key, use in list(self._uses.items()):
            if now - use.starts[-1] >= IDLE_S:
                self._discard(use, use.waiting)
                del self._uses[key]
        self._expire_later()

    async def close(self) -> None:
        """Returns once none is alive. Idempotent."""
        self._closed = True
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None
        if self._refilling is not None:
            self._quiet.set()
            await asyncio.gather(self._refilling, return_exceptions=True)
        self.discard(lambda _: True)
        if self._endings:
            await asyncio.wait(self._endings)
        await self._take_apart()
        self._uses.clear()


def _close_all(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)


def _now() -> float:
    return asyncio.get_running_loop().time()
