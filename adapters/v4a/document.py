"""The lines of one file, without an object for each: sections 5 and 6 of the format's reference.

A file may have millions of lines and a patch names few of them. So every distinct line *of the patch* gets a
character, and for each pass the file becomes a string with one character a line (NUL for lines that the patch does not
hold). Finding a block of lines is then a substring search, and an index in that string is a line number.

It knows bytes and lines, neither chunks nor the cursor. Called by the matcher and the rewriter.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import accumulate

from adapters.v4a.budget import Budget
from adapters.v4a.errors import TooCostly
from adapters.v4a.text import BOM, LONG_LINE, PASSES

_BOM_BYTES = BOM.encode()
_PIECE_BYTES = 256 * 1024
_NFC = 4
_FIRST_NON_ASCII = 3
"""From this pass on, keys of ASCII lines are those of the pass before."""
ENTRY_STEPS = 15
"""What one line costs in a line table."""


class Document:
    """`data` as lines. `bom`: it begins with U+FEFF, which is no part of the first line. `body`: the bytes without it.
    `lines`: how many. `first_ending`: that of the first line that has one, else LF. Raises `TooCostly`."""

    def __init__(self, data: bytes, budget: Budget) -> None:
        limits = budget.limits
        if len(data) > limits.max_file_bytes:
            raise TooCostly("max_file_bytes", limits.max_file_bytes, "a file that it updates is too large")
        self.budget = budget
        self.data = data
        self.bom = data.startswith(_BOM_BYTES)
        self.body = data[len(_BOM_BYTES) :] if self.bom else data
        budget.spend(100 + len(data) // 32)
        self.lines = self.body.count(b"\n") + (self.body[-1:] not in (b"", b"\n"))
        if self.lines > limits.max_lines:
            raise TooCostly("max_lines", limits.max_lines, "a file that it updates has too many lines")
        first = self.body.find(b"\n")
        self.first_ending = b"\r\n" if first > 0 and self.body[first - 1 : first] == b"\r" else b"\n"

    def pieces(self) -> Iterator[tuple[int, bytes]]:
        """Offset and bytes of consecutive parts of the body, each of whole lines."""
        start, size = 0, len(self.body)
        while start < size:
            cut = self.body.find(b"\n", start + _PIECE_BYTES) + 1
            end = cut if cut > 0 else size
            yield start, self.body[start:end]
            start = end

    def line_texts(self) -> Iterator[list[str]]:
        """The texts of all lines without endings, a piece at a time. Bytes that are not UTF-8 become surrogates, which
        equal no character of a patch."""
        for _, piece in self.pieces():
            texts = piece.decode("utf-8", "surrogateescape").replace("\r\n", "\n").split("\n")
            if piece.endswith(b"\n"):
                texts.pop()
            yield texts

    def line_text(self, index: int) -> str:
        """One line, for a message. Costs a walk over the body."""
        start, end = self.offsets([index, index + 1]).values()
        return self.body[start:end].decode("utf-8", "surrogateescape").removesuffix("\n").removesuffix("\r")

    def offsets(self, wanted: Iterable[int]) -> dict[int, int]:
        """Where lines begin in the body: line index to byte offset, for ascending indexes; `lines` is its end."""
        result: dict[int, int] = {}
        pending = iter(wanted)
        line = next(pending, None)
        first = 0
        for offset, piece in self.pieces():
            if line is None:
                break
            count = piece.count(b"\n") + (not piece.endswith(b"\n"))
            if line < first + count:
                self.budget.spend(count * 6)
                starts = array("L", accumulate((len(part) + 1 for part in piece.split(b"\n")), initial=offset))
                while line is not None and line < first + count:
                    result[line] = starts[line - first]
                    line = next(pending, None)
            first += count
        while line is not None:
            result[line] = len(self.body)
            line = next(pending, None)
        return result


class LineTables:
    """The tables of one document for the lines of one section, one for each pass, built when first needed."""

    def __init__(self, document: Document, patch_lines: Iterable[str]) -> None:
        self.document = document
        self._wanted = list(dict.fromkeys(patch_lines))
        self._ascii = document.body.isascii() and all(map(str.isascii, self._wanted))
        self._chars: list[dict[str, str]] = []
        self._tables: list[str] = []
        self._positions: list[dict[str, array[int]]] = []

    def table(self, index: int) -> str:
        """One character a line of the file, by pass `index` of `PASSES`."""
        while len(self._tables) <= index:
            self._build(len(self._tables))
        return self._tables[index]

    def same_as_before(self, index: int) -> bool:
        """Pass `index` can find nothing that the one before did not."""
        self.table(index)
        return index > 0 and self._positions[index] is self._positions[index - 1]

    def encode(self, index: int, lines: list[str]) -> str:
        """Lines of the patch as characters of table `index`. They must be among those the tables were made for."""
        self.table(index)
        chars = self._chars[index]
        self.document.budget.spend(100 + 5 * len(lines))
        return "".join([chars[key] for key in PASSES[index][1](lines)])

    def find(self, index: int, block: str, start: int, stop: int) -> int:
        """The first line of [start, stop - len(block)] where the encoded `block` stands by pass `index`, or -1.

        Looks at the places of the block's rarest line. Only where even that one is frequent, so that a hit is near or
        the file hostile, at all lines.
        """
        budget, table, positions = self.document.budget, self._tables[index], self._positions[index]
        if stop - start < len(block):
            return -1
        budget.spend(200 + 5 * len(block))
        rarest = block if len(block) == 1 else min(set(block), key=lambda char: len(positions.get(char, ())))
        places = positions.get(rarest)
        if places is None:
            return -1
        into = block.index(rarest)
        nth = bisect_left(places, start + into)
        if len(block) == 1:
            return places[nth] if nth < len(places) and places[nth] < stop else -1
        if len(places) - nth > max(16, (stop - start) // 16):
            hit = table.find(block, start, stop)
            budget.spend_search((hit if hit >= 0 else stop) - start, len(block))
            return hit
        for candidate in range(nth, len(places)):
            first = places[candidate] - into
            if first + len(block) > stop:
                return -1
            budget.spend(20 + len(block) // 16)
            if table.startswith(block, first):
                return first
        return -1

    def find_all(self, index: int, block: str, start: int, count: int) -> list[int]:
        """The first `count` lines from `start` on where the encoded `block` stands by pass `index`."""
        if len(block) == 1:
            self.document.budget.spend(50)
            places = self._positions[index].get(block, array("I"))
            first = bisect_left(places, start)
            return places[first : first + count].tolist()
        found: list[int] = []
        while len(found) < count and (line := self.find(index, block, start, self.document.lines)) >= 0:
            found.append(line)
            start = line + 1
        return found

    def _build(self, index: int) -> None:
        document, keys_of = self.document, PASSES[index][1]
        if self._ascii and index >= _FIRST_NON_ASCII:
            self._repeat()
            return
        work = ENTRY_STEPS * (document.lines + len(self._wanted)) + len(document.body) // 8
        document.budget.spend(work if index < _FIRST_NON_ASCII else work + 4 * len(document.body))
        # NUL stands for "not in the patch", so the characters begin at 1.
        chars: dict[str, str] = {}
        for key in keys_of(self._wanted):
            chars.setdefault(key, chr(len(chars) + 1))
        get = chars.get
        parts: list[str] = []
        for texts in document.line_texts():
            if index == _NFC:
                document.budget.spend(10 * sum([len(text) for text in texts if len(text) > LONG_LINE]))
            parts.append("".join([get(key, "\0") for key in keys_of(texts)]))
        table = "".join(parts)
        if index and table == self._tables[-1] and chars == self._chars[-1]:
            self._repeat()
            return
        positions: dict[str, array[int]] = {}
        for line, char in enumerate(table):
            if char != "\0":
                places = positions.get(char)
                if places is None:
                    positions[char] = places = array("I")
                places.append(line)
        self._tables.append(table)
        self._chars.append(chars)
        self._positions.append(positions)

    def _repeat(self) -> None:
        self._tables.append(self._tables[-1])
        self._chars.append(self._chars[-1])
        self._positions.append(self._positions[-1])
