"""How fast one command may make the proxy decide: a bucket that refills with time. Pure; the caller brings the clock.

Each decision writes a line to the gateway's log and costs the one process that serves all commands. A command that asks
faster than this waits; nothing is left out of the log for it. Refuses to know what is decided.
"""

from __future__ import annotations

RATE_PER_S = 300.0
BURST = 1000.0


class Budget:
    """`now`: seconds, monotonic. Starts full."""

    def __init__(self, now: float, *, rate_per_s: float = RATE_PER_S, burst: float = BURST) -> None:
        self._rate_per_s, self._burst = rate_per_s, burst
        self._left, self._at = burst, now

    def take(self, now: float, turns: int = 1) -> float:
        """Takes so many turns, and says for how many seconds to wait before using them."""
        self._refill(now)
        self._left -= turns
        return max(0.0, -self._left / self._rate_per_s)

    def try_take(self, now: float) -> bool:
        """Takes one turn if there is one at once."""
        self._refill(now)
        if self._left < 1:
            return False
        self._left -= 1
        return True

    def _refill(self, now: float) -> None:
        self._left = min(self._burst, self._left + (now - self._at) * self._rate_per_s)
        self._at = now
