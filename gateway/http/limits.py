"""How many connections may be open, and how long a client may take: numbers, and one counter a listener kind.

TCP and the Unix socket have shares of their own, so that whoever fills the one never shuts the other. The shares come
from the limit on open files, and leave what commands, patches and the ledger need. Refuses to know: HTTP, sockets.
Used by the server and by whoever starts it.
"""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass

from structlog.typing import FilteringBoundLogger

from gateway.metrics import Metrics

MOST_CONNECTIONS = 512
"""Of one kind, however many descriptors there are."""
LEAST_CONNECTIONS = 16
RESERVED_DESCRIPTORS = 256
"""Beyond those open at the start: for commands, patches, reloads and the ledger."""


@dataclass(frozen=True)
class Deadlines:
    """Seconds. `head`: from the connection, or from the first byte of a later request, to the end of the head. `body`:
    from there to the end of the body. `idle`: between requests; agents pause. `unread`: in which a client must take
    some of what was sent to it. Answering has no deadline here: calls bound their own waiting."""

    head_s: float = 10.0
    body_s: float = 60.0
    idle_s: float = 300.0
    unread_s: float = 60.0


@dataclass(frozen=True)
class Shares:
    """Connections that may be open at once."""

    unix: int
    tcp: int


def raise_descriptor_limit() -> None:
    """The soft limit on open files becomes the hard one (setrlimit(2)), for this process and what it starts; commands
    have limits of their own."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def shares_of(limit: int, in_use: int) -> Shares:
    """`limit`: on open files, or RLIM_INFINITY. `in_use`: descriptors open already."""
    if limit == resource.RLIM_INFINITY:
        return Shares(MOST_CONNECTIONS, MOST_CONNECTIONS)
    share = (limit - in_use - RESERVED_DESCRIPTORS) // 2
    share = max(LEAST_CONNECTIONS, min(MOST_CONNECTIONS, share))
    return Shares(share, share)


def present_shares() -> Shares:
    """For this process, as it is now. Blocks on /proc."""
    return shares_of(resource.getrlimit(resource.RLIMIT_NOFILE)[0], len(os.listdir("/proc/self/fd")))


class Room:
    """Places for connections of one kind. `enter` and `leave` belong together. Not thread-safe."""

    def __init__(self, kind: str, most: int, metrics: Metrics, log: FilteringBoundLogger) -> None:
        self.kind = kind
        self.most = most
        self.open = 0
        self._metrics = metrics
        self._log = log
        self._told = False

    def enter(self) -> bool:
        """False, counted, where all places are taken. Logged once each time that it becomes full, since whoever fills
        it should not fill the log too."""
        if self.open < self.most:
            self.open += 1
            return True
        self._metrics.request_refused("connections")
        if not self._told:
            self._told = True
            self._log.warning("connections_full", kind=self.kind, most=self.most)
        return False

    def leave(self) -> None:
        self.open -= 1
        if self.open <= self.most // 2:
            self._told = False

    def too_slow(self, phase: str) -> None:
        self._metrics.request_refused("slow")
        self._log.warning("connection_cut_off", kind=self.kind, phase=phase)
