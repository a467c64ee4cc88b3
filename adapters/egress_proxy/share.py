"""What one workspace may take of the process that serves them all, over all its commands.

Two things cost more than the bytes that they move: names under resolution, each of which holds a thread for as long as
the machine's resolver likes, and the lines between the chunks of a body, which are parsed one by one on the one event
loop. Refuses to know protocols and rules. Made by the program, used through the gate.
"""

from __future__ import annotations

import asyncio
from weakref import WeakValueDictionary

from adapters.egress_proxy.budget import Budget

LINES_PER_S = 20_000.0
LINES_BURST = 20_000.0


class Share:
    """Of one workspace. `resolving`: how many threads resolve for it, as the turns count them."""

    def __init__(self, now: float) -> None:
        self.resolving = 0
        self.parsing = asyncio.Lock()
        self._lines = Budget(now, rate_per_s=LINES_PER_S, burst=LINES_BURST)

    async def parsed(self, lines: int) -> None:
        """To be awaited with `parsing` held, after so many lines: others have their turn, and a workspace over its rate
        waits."""
        await asyncio.sleep(self._lines.take(asyncio.get_running_loop().time(), lines))


class Shares:
    """A workspace's is one object for as long as anything of it is under way, also what its ended commands left."""

    def __init__(self) -> None:
        self._shares: WeakValueDictionary[str, Share] = WeakValueDictionary()

    def of(self, workspace_id: str) -> Share:
        share = self._shares.get(workspace_id)
        if share is None:
            share = self._shares[workspace_id] = Share(asyncio.get_running_loop().time())
        return share
