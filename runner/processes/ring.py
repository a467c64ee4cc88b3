"""The last bytes of a command's output, under absolute offsets (PROC-4).

Pure: bytes in, bytes out. It refuses to know descriptors, encodings of requests and who reads.
`runner.processes.output` writes it, `runner.processes.chunks` cuts from it.
"""

from __future__ import annotations

MAX_CAPACITY_BYTES = 64 * 1024 * 1024
"""No registry setting makes one command's ring larger; also what "no limit" means here."""

_CONTINUATION_MASK = 0b1100_0000
_CONTINUATION = 0b1000_0000
_LONGEST_TAIL = 3
"""A UTF-8 character has at most three bytes after its first."""


class OutputRing:
    """Keeps at least the last `capacity` bytes (three more, so that the oldest kept byte can begin a character).

    Memory grows with the output up to the capacity and then stays. `total` counts every byte ever appended;
    `retained_from` is the offset of the oldest byte still here, exactly.
    """

    def __init__(self, capacity: int) -> None:
        if not 1 <= capacity <= MAX_CAPACITY_BYTES:
            raise ValueError(f"a ring of {capacity} bytes is outside 1..{MAX_CAPACITY_BYTES}")
        self._size = capacity + _LONGEST_TAIL
        # The byte at absolute offset o is stored at o % size.
        self._data = bytearray()
        self._total = 0
        self._start = 0

    @property
    def total(self) -> int:
        return self._total

    @property
    def retained_from(self) -> int:
        return self._start

    def append(self, data: memoryview) -> None:
        """Takes a copy of what can be retained of `data`."""
        end = self._total + len(data)
        if end <= self._size:
            self._data += data
            self._total = end
            return
        if len(self._data) < self._size:
            self._data.extend(bytes(self._size - len(self._data)))
        kept = data[-self._size :]
        at = (end - len(kept)) % self._size
        first = min(len(kept), self._size - at)
        with memoryview(self._data) as store:
            store[at : at + first] = kept[:first]
            store[: len(kept) - first] = kept[first:]
        self._total = end
        self._start = self._whole_character(max(self._start, end - self._size))

    def read(self, cursor: int, max_bytes: int) -> bytes:
        """Up to `max_bytes` from `cursor`, which lies between `retained_from` and `total`."""
        if not self._start <= cursor <= self._total:
            raise ValueError(f"offset {cursor} is outside {self._start}..{self._total}")
        count = min(max_bytes, self._total - cursor)
        at = cursor % self._size
        piece = bytes(self._data[at : at + count])
        return piece + bytes(self._data[: count - len(piece)]) if len(piece) < count else piece

    def _whole_character(self, start: int) -> int:
        """`start`, or the first byte after it that can begin a character: the cut went through the one before."""
        for offset in range(start, min(start + _LONGEST_TAIL, self._total)):
            if self._data[offset % self._size] & _CONTINUATION_MASK != _CONTINUATION:
                return offset
        return min(start + _LONGEST_TAIL, self._total)
