"""Ids of what the gateway issues: `proc_…`, `op_…`, `apr_…`, `work_…`, `int_…`. Time-ordered and never reused.

48 bits of milliseconds since 1970, then 80 random bits, in 26 characters of Crockford's base 32 in lower case (the
ULID layout), so that ids of one kind sort by age. Within one millisecond the random part counts up. Refuses to know:
what the ids stand for.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import Literal

Kind = Literal["proc", "op", "apr", "work", "int"]
_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_RANDOM_BITS = 80


class IdFactory:
    """Issues ids. `now_ms` and `random_bits` are replaced in tests. Not for use from several threads."""

    def __init__(
        self,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        random_bits: Callable[[int], int] = secrets.randbits,
    ) -> None:
        self._now_ms = now_ms
        self._random_bits = random_bits
        self._last = 0

    def new(self, kind: Kind) -> str:
        """A new id, greater than every one issued before, also when the clock steps back."""
        value = (self._now_ms() << _RANDOM_BITS) | self._random_bits(_RANDOM_BITS)
        if value >> _RANDOM_BITS <= self._last >> _RANDOM_BITS:
            value = self._last + 1
        self._last = value
        return f"{kind}_" + "".join(_ALPHABET[(value >> shift) & 31] for shift in range(125, -1, -5))
