"""How often a token may be tried. Counts attempts, never says whether one was right.

A bucket a peer and one for all: a peer gets BURST attempts and another each REFILL_S; all together have more, so that
whoever tries from many addresses is slowed down too. Refuses to know: tokens, HTTP. Used by the console's login.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from collections.abc import Callable

BURST = 10
REFILL_S = 6.0
ALL_BURST = 100
ALL_REFILL_S = 0.6
MAX_PEERS = 1_024
"""The one that tried longest ago is forgotten; that one has refilled most."""


def network_of(address: str) -> str:
    """What counts as one peer: of IPv6 the network (RFC 4291, 2.5.4), since whoever has one address of it has all. With
    them he could use up what all peers have together, and keep out who has the token."""
    try:
        found = ipaddress.IPv6Address(address)
    except ValueError:
        return address
    return str(found.ipv4_mapped or ipaddress.IPv6Network((int(found) >> 64 << 64, 64)))


class _Bucket:
    def __init__(self, size: int, refill_s: float, now: float) -> None:
        self._size, self._refill_s = size, refill_s
        self._left, self._at = float(size), now

    def wait_s(self, now: float) -> float:
        self._left = min(self._size, self._left + (now - self._at) / self._refill_s)
        self._at = now
        return 0.0 if self._left >= 1 else (1 - self._left) * self._refill_s

    def take(self, attempts: int) -> None:
        self._left = min(self._size, self._left - attempts)


class Throttle:
    """`clock`: seconds that only go forward."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._all = _Bucket(ALL_BURST, ALL_REFILL_S, clock())
        self._peers: OrderedDict[str, _Bucket] = OrderedDict()

    def attempt(self, peer: str) -> float:
        """0 where the attempt is counted and may be made, else seconds until one may."""
        now = self._clock()
        bucket = self._peers.pop(peer, None) or _Bucket(BURST, REFILL_S, now)
        self._peers[peer] = bucket
        while len(self._peers) > MAX_PEERS:
            self._peers.popitem(last=False)
        wait_s = max(bucket.wait_s(now), self._all.wait_s(now))
        if wait_s == 0:
            bucket.take(1)
            self._all.take(1)
        return wait_s

    def give_back(self, peer: str) -> None:
        """The last attempt was no guess."""
        self._all.take(-1)
        if (bucket := self._peers.get(peer)) is not None:
            bucket.take(-1)
