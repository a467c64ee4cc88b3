"""Threads that resolve, shared out among workspaces so that each always has one.

A name server may hold a thread for as long as it likes. So a workspace's first name under resolution takes a thread of
its own, whatever others hold, and only those beyond it come out of what all have together: hostile workspaces can take
all of that from each other, and never the first from anybody. Refuses to know names. Owned by the resolver; one event
loop.
"""

from __future__ import annotations

import asyncio
from collections import deque

from adapters.egress_proxy.share import Share

MAX_RESOLVING = 8
"""Of one workspace."""
SPARE = 24
"""Beyond the first one of each workspace, of all together."""


class Turns:
    """`spare`: as above."""

    def __init__(self, spare: int = SPARE) -> None:
        self._spare = spare
        self._waiting: deque[tuple[Share, asyncio.Future[None]]] = deque()

    async def take(self, share: Share) -> None:
        """Waits, in order, until `share` may hold one more thread. Safe to cancel."""
        if self._grant(share):
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        place = (share, turn)
        self._waiting.append(place)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give_back(share)  # granted in the very moment in which nobody wanted it any more
            else:
                self._waiting.remove(place)
            raise

    def give_back(self, share: Share) -> None:
        """Once the thread is free, whoever waited for its answer."""
        if share.resolving > 1:
            self._spare += 1
        share.resolving -= 1
        for place in tuple(self._waiting):
            waiting, turn = place
            if not turn.done() and self._grant(waiting):
                self._waiting.remove(place)
                turn.set_result(None)

    def _grant(self, share: Share) -> bool:
        if share.resolving == 0:
            share.resolving = 1
        elif share.resolving < MAX_RESOLVING and self._spare > 0:
            share.resolving += 1
            self._spare -= 1
        else:
            return False
        return True
