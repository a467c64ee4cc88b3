"""Which bytes of a streamed file answer a read: from a first line, so many lines, at most so many bytes.

Pure: bytes in, bytes out, flat in memory. Lines end with LF; a CR before it is content. Called by `reading`.
"""

from __future__ import annotations

from dataclasses import dataclass


class LineWindow:
    """Feed the whole file in order; memory stays below `max_bytes` and a chunk.

    `first_line`: 1-based. `line_count`: None for all that follow. One byte more than `max_bytes` is kept, which tells
    a cut window from a full one.
    """

    def __init__(self, first_line: int, line_count: int | None, max_bytes: int) -> None:
        self._skip = first_line - 1
        self._left = line_count
        self._keep = max_bytes + 1
        self.kept = bytearray()

    @property
    def satisfied(self) -> bool:
        """Whether nothing that follows in the file can change the window."""
        return self._left == 0 or len(self.kept) >= self._keep

    def feed(self, chunk: memoryview) -> None:
        """Takes the next bytes of the file; they are copied where they are kept."""
        if self.satisfied:
            return
        start, end = 0, len(chunk)
        if self._skip:
            start, self._skip = _after_lines(chunk, 0, self._skip)
        if self._skip:
            return
        if self._left is not None:
            end, self._left = _after_lines(chunk, start, self._left)
        self.kept += chunk[start : min(end, start + self._keep - len(self.kept))]


def _after_lines(chunk: memoryview, start: int, lines: int) -> tuple[int, int]:
    """The index after so many line ends from `start`, or the chunk's end; and how many were not found."""
    data = bytes(chunk[start:])
    found = data.count(b"\n")
    if found < lines:
        return len(chunk), lines - found
    at = 0
    for _ in range(lines):
        at = data.index(b"\n", at) + 1
    return start + at, 0


@dataclass(frozen=True)
class Cut:
    """What is shown of a window. `lines`: how many lines the data touches, the last may be incomplete."""

    data: bytes
    truncated: bool

    @property
    def lines(self) -> int:
        return self.data.count(b"\n") + (not self.data.endswith(b"\n") and bool(self.data))


def cut(kept: bytes, max_bytes: int, *, whole_lines: bool) -> Cut:
    """At most `max_bytes` of a window: up to its last whole line if one fits and they are asked for, else up to its
    last whole UTF-8 character."""
    if len(kept) <= max_bytes:
        return Cut(kept, False)
    head = kept[:max_bytes]
    line_end = head.rfind(b"\n") + 1
    if whole_lines and line_end:
        return Cut(head[:line_end], True)
    return Cut(head[: max_bytes - _incomplete_tail(head)], True)


def _incomplete_tail(data: bytes) -> int:
    """Bytes of a UTF-8 character that has begun but not ended at the end of `data`: 0 to 3 (RFC 3629, section 3)."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue
        needed = 2 if byte >> 5 == 0b110 else 3 if byte >> 4 == 0b1110 else 4 if byte >> 3 == 0b11110 else 1
        return back if needed > back else 0
    return 0
