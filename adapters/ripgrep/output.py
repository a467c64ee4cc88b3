"""What `rg` printed, as matches with their context.

Sans-I/O: bytes in, matches out, bounded in memory whatever the files hold. It knows the two formats that `program` asks
for and no process. Called by `program`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

FILE_PREFIX = b"/proc/self/fd/"
MAX_TEXT_BYTES = 4096
"""A line longer than this is cut there, at a whole character, and ends in `…`."""
MAX_PAGE_BYTES = 2 * 1024 * 1024
"""Text in one page. JSON may write six bytes for one, so this stays below the frame's bound."""
_MAX_BUFFERED = 16 * MAX_TEXT_BYTES


@dataclass
class RawMatch:
    """`file`: which of the batch. `line`: from 1. Lines are bytes without their ending, at most MAX_TEXT_BYTES + 1."""

    file: int
    line: int
    text: bytes
    before: tuple[bytes, ...]
    after: list[bytes] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Bytes of text, its context included."""
        return len(self.text) + sum(map(len, self.before)) + sum(map(len, self.after))


class _Lines:
    """Cuts output into lines. The rest of an endless one is dropped as it comes: its head is all that is used."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        *lines, rest = (self._rest + chunk).split(b"\n")
        self._rest = rest[:_MAX_BUFFERED]
        yield from lines


class NumberReader:
    """Reads `LINE:text` of a search without context; `numbers` are the lines that match, `full` once it has `needed`.

    `after`: lines up to this one are not wanted.
    """

    def __init__(self, needed: int, after: int = 0) -> None:
        self.numbers: list[int] = []
        self._needed, self._after = needed, after
        self._lines = _Lines()

    @property
    def full(self) -> bool:
        return len(self.numbers) >= self._needed

    def feed(self, chunk: bytes) -> None:
        for line in self._lines.feed(chunk):
            number, colon, _ = line.partition(b":")
            if colon and int(number) > self._after and not self.full:
                self.numbers.append(int(number))

    def end(self) -> None:
        """Nothing waits: every line has been ended by a line end."""


class MatchReader:
    """Reads `PATH NUL LINE:text`, with `-` for context; `full` once `needed` matches are complete with their context,
    or more bytes than fit into a page.

    `skip`: a descriptor and the line up to which its matches are not wanted. `file` of a match is the descriptor.
    """

    def __init__(self, context: int, needed: int, skip: tuple[int, int] | None = None) -> None:
        self.complete: list[RawMatch] = []
        self._context, self._needed, self._skip = context, needed, skip
        self._open: deque[RawMatch] = deque()
        self._recent: deque[tuple[int, bytes]] = deque(maxlen=context)
        self._fd = -1
        self._bytes = 0
        self._lines = _Lines()

    @property
    def full(self) -> bool:
        return len(self.complete) >= self._needed or self._bytes > 2 * MAX_PAGE_BYTES

    def feed(self, chunk: bytes) -> None:
        for line in self._lines.feed(chunk):
            self._line(line)

    def end(self) -> None:
        """The output has ended: what was waiting for context is complete."""
        self._leave_file()

    def _line(self, line: bytes) -> None:
        name, separator, rest = line.partition(b"\0")
        if not separator:
            return  # "PATH: binary file matches …": rg's word that it gives no more of that file
        digits = len(rest) - len(rest.lstrip(b"0123456789"))
        number, is_match = int(rest[:digits]), rest[digits : digits + 1] == b":"
        text = clipped(rest[digits + 1 :])
        fd = int(name.removeprefix(FILE_PREFIX))
        if fd != self._fd:
            self._leave_file()
            self._fd = fd
        self._add(number, is_match, text)

    def _add(self, number: int, is_match: bool, text: bytes) -> None:
        while self._open and number > self._open[0].line + self._context:
            self._complete(self._open.popleft())
        for match in self._open:
            match.after.append(text)
        if is_match and not (self._skip and self._skip[0] == self._fd and number <= self._skip[1]):
            before = tuple(line for at, line in self._recent if at >= number - self._context)
            self._open.append(RawMatch(self._fd, number, text, before))
        self._recent.append((number, text))

    def _leave_file(self) -> None:
        while self._open:
            self._complete(self._open.popleft())
        self._recent.clear()

    def _complete(self, match: RawMatch) -> None:
        self.complete.append(match)
        self._bytes += match.size


def clipped(line: bytes) -> bytes:
    """A line without its CR, and one byte longer than is shown where it is too long."""
    return line.removesuffix(b"\r")[: MAX_TEXT_BYTES + 1]


def shown(text: bytes) -> str:
    """A line as answers carry it: bytes that are not UTF-8 become U+FFFD, a line that was cut ends in `…`."""
    if len(text) <= MAX_TEXT_BYTES:
        return text.decode("utf-8", "replace")
    head = text[:MAX_TEXT_BYTES]
    for back in range(1, 4):  # do not show part of a character: RFC 3629, section 3
        if head[-back] >= 0xC0:
            head = head[:-back]
            break
        if head[-back] < 0x80:
            break
    return head.decode("utf-8", "replace") + "…"
