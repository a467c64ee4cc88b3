"""Which workspaces have commands, and when their placeholders may go: once none has a cover there (BOX-7).

A cover whose placeholder is removed falls off, so a sweep and a start in one root never overlap: either waits for the
other. Refuses to know processes. Owned by the launcher, on one event loop.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterable

from adapters.linux_sandbox import placeholders


class Roots:
    """Commands that live or start, by the root of their workspace."""

    def __init__(self) -> None:
        self._live: Counter[str] = Counter()
        self._litter: defaultdict[str, set[str]] = defaultdict(set)
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def enter(self, root: str) -> None:
        """A command is about to start there; `leave` follows, whatever becomes of it."""
        async with self._turns[root]:
            self._live[root] += 1

    def litter(self, root: str, names: Iterable[str]) -> None:
        """Placeholders stand there, or may."""
        if found := set(names):
            self._litter[root] |= found

    async def leave(self, root: str) -> None:
        """The command is over. The last one takes the placeholders along."""
        self._live[root] -= 1
        if self._live[root] > 0 or root in self._litter:
            await self.tidy(root, ())
        else:
            del self._live[root]  # nothing to sweep, so no start has to wait

    async def tidy(self, root: str, names: Iterable[str]) -> list[str]:
        """Removes known placeholders and those at `names`, unless a command lives there: its end does it then.
        Returns what was removed."""
        self.litter(root, names)
        async with self._turns[root]:
            if self._live[root] > 0:
                return []
            del self._live[root]
            names = self._litter.pop(root, ())
            return await asyncio.to_thread(placeholders.sweep, root, sorted(names)) if names else []
