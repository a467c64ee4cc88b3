"""Where each chunk of an Update belongs: section 6 of the format's reference.

Lines and passes are `document`'s; here are the order of search, the cursor, stacked headers, the retry without a
trailing empty line, and the warnings. Placing is never undone: the first place wins. Pure; called by the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from adapters.v4a.document import Document, LineTables
from adapters.v4a.messages import context_not_found, lines_not_found
from adapters.v4a.model import Chunk, UpdateFile
from adapters.v4a.text import BOM, PASSES

MAX_OTHER_LINES = 20


@dataclass(frozen=True)
class Run:
    """Old lines [place, place + old) of the file give way to `new`."""

    place: int
    old: int
    new: list[str]


@dataclass(frozen=True)
class Hit:
    """`line`: index in the file. `index`: of the pass."""

    line: int
    index: int


class Block:
    """Lines of the patch that are searched for together; their encoding is made once for each pass."""

    def __init__(self, tables: LineTables, lines: list[str]) -> None:
        self.lines = lines
        self._tables = tables
        self._encoded: dict[int, str] = {}
        # A BOM that the patch carries along is left out where the line is compared with the first of such a file.
        self._top = None
        if lines and tables.document.bom and lines[0].startswith(BOM):
            self._top = Block(tables, [lines[0][1:], *lines[1:]])

    def __len__(self) -> int:
        return len(self.lines)

    def find(self, index: int, start: int, stop: int) -> int:
        """The first line of [start, stop - len] where the block stands by pass `index`, or -1."""
        if self._top is not None and start == 0:
            if self._tables.table(index).startswith(self._top.encoded(index)) and len(self) <= stop:
                return 0
            start = 1
        return self._tables.find(index, self.encoded(index), start, stop)

    def find_all(self, index: int, first: int, count: int) -> Iterator[int]:
        """`first`, where the block was found, and where else it stands below, counted from 1; at most `count`."""
        yield first + 1
        for line in self._tables.find_all(index, self.encoded(index), first + 1, count - 1):
            yield line + 1

    def encoded(self, index: int) -> str:
        if index not in self._encoded:
            self._encoded[index] = self._tables.encode(index, self.lines)
        return self._encoded[index]


@dataclass(frozen=True)
class Placement:
    """`headers`: where each header was found. `old`: where OLD was, None for a pure addition. `place`: the line that
    new text of a pure addition goes before. `line`: what a warning says, counted from 1. `cursor`: afterwards."""

    chunk: Chunk
    headers: list[Hit]
    old: Hit | None
    place: int
    line: int
    cursor: int


class Matcher:
    """Places the chunks of one section in one document. Use once."""

    def __init__(self, section: UpdateFile, path: str, document: Document) -> None:
        self._section = section
        self._path = path
        self.document = document
        wanted = [line for chunk in section.chunks for lines in (chunk.headers, chunk.old()) for line in lines]
        if document.bom:
            wanted += [line[1:] for line in wanted if line.startswith(BOM)]
        self.tables = LineTables(document, wanted)
        self._single: dict[str, Block] = {}
        self.cursor = 0
        self.warnings: list[dict[str, Any]] = []

    def locate(self) -> list[Run]:
        """The runs of all chunks, in patch order. Raises `PatchError`: `context_not_found` or `lines_not_found`."""
        runs: list[Run] = []
        for number, chunk in enumerate(self._section.chunks, start=1):
            found = self._place(chunk, number)
            self._warn(found, number)
            runs += _runs_of(found)
            self.cursor = found.cursor
        return runs

    def block(self, lines: list[str]) -> Block:
        """Lines of this section as something to search for. One for each header, however often it is repeated."""
        if len(lines) != 1:
            return Block(self.tables, lines)
        if lines[0] not in self._single:
            self._single[lines[0]] = Block(self.tables, lines)
        return self._single[lines[0]]

    # --- placing ------------------------------------------------------------------------------------------------------
    def _place(self, chunk: Chunk, number: int) -> Placement:
        old = chunk.old()
        headers = [self.block([header]) for header in chunk.headers]
        found = self._attempt(chunk, number, headers, self.block(old), retried=False)
        if found is None and old and old[-1] == "":
            # Upstream's leniency: an empty line between two sections reads as context.
            chunk = chunk.without_trailing_blank()
            found = self._attempt(chunk, number, headers, self.block(old[:-1]), retried=True)
        if found is None:
            raise lines_not_found(self, old, number, self._path)
        return found

    def _attempt(
        self, chunk: Chunk, number: int, headers: list[Block], old: Block, *, retried: bool
    ) -> Placement | None:
        """None: the headers can be placed, OLD cannot."""

        def rest(start: int) -> Hit | None:
            return self.search(old, start, at_end=chunk.end_of_file)

        hits: list[Hit] | None = []
        if len(headers) == 1:
            hit = self.search(headers[0], self.cursor)
            hits = [hit] if hit else None
        elif headers:
            hits = self._stack(headers, lambda start: not old.lines or rest(start) is not None)
        if hits is None:
            self._check_headers(headers, number)
            return None
        start = hits[-1].line + 1 if hits else self.cursor
        if old.lines:
            found = rest(start)
            if found is None:
                return None
            return Placement(chunk, hits, found, found.line, found.line + 1, found.line + len(old))
        end = not retried and (not hits or chunk.end_of_file)
        place = self.document.lines if end else start
        return Placement(chunk, hits, None, place, place, start)

    def search(self, block: Block, start: int, *, at_end: bool = False) -> Hit | None:
        """The first place from `start` on, by the strictest pass that has one. `at_end`: only at the file's end."""
        stop = self.document.lines
        if at_end:
            start = max(start, stop - len(block))
        for index in range(len(PASSES)):
            if self.tables.same_as_before(index):
                continue
            line = block.find(index, start, stop)
            if line >= 0:
                return Hit(line, index)
        return None

    def _stack(self, headers: list[Block], fits: Callable[[int], bool]) -> list[Hit] | None:
        """Lines for two or more headers, so that the rest of the chunk fits after the last; None if there are none.

        A depth-first search without recursion. What cannot be placed from one line cannot from any later one, so a
        failure rules out every candidate below it, in every pass, and is remembered for each header.
        """
        lines = self.document.lines
        fails_from = [lines + 1] * (len(headers) + 1)
        frames = [(self.cursor, 0, lines)]  # first line to look at, next pass to try, line to stop before
        chosen: list[Hit] = []
        while frames:
            depth = len(frames) - 1
            start, index, stop = frames[-1]
            if start < fails_from[depth]:
                if depth == len(headers):
                    if fits(start):
                        return chosen
                elif hit := self._candidate(headers[depth], start, index, min(stop, fails_from[depth + 1] - 1)):
                    frames[-1] = (start, hit.index + 1, hit.line)
                    frames.append((hit.line + 1, 0, lines))
                    chosen.append(hit)
                    continue
                fails_from[depth] = start
            frames.pop()
            if chosen:
                chosen.pop()
        return None

    def _candidate(self, header: Block, start: int, index: int, stop: int) -> Hit | None:
        for later in range(index, len(PASSES)):
            if later > index and self.tables.same_as_before(later):
                continue
            line = header.find(later, start, stop)
            if line >= 0:
                return Hit(line, later)
        return None

    def _check_headers(self, headers: list[Block], number: int) -> None:
        """Raises for the first header that no choice reaches: each earliest place leaves most room for the next."""
        start = self.cursor
        for header in headers:
            places = [header.find(index, start, self.document.lines) for index in range(len(PASSES))]
            found = [line for line in places if line >= 0]
            if not found:
                raise context_not_found(self, header.lines[0], number, self._path, start)
            start = min(found) + 1

    # --- warnings -----------------------------------------------------------------------------------------------------
    def _warn(self, found: Placement, number: int) -> None:
        where = {"path": self._path, "chunk": number, "line": found.line}
        loosest = max([hit.index for hit in found.headers] + [found.old.index if found.old else 0])
        if loosest:
            self.warnings.append({"kind": "fuzzy_match", **where, "pass": PASSES[loosest][0]})
        others: list[int] = []
        for line in self._places(found):
            if line != found.line and line not in others:
                others.append(line)
                if len(others) == MAX_OTHER_LINES:
                    break
        if loosest or others:
            self.document.budget.warn(100 + len(self._path) + 10 * len(others))
        if others:
            self.warnings.append({"kind": "ambiguous_match", **where, "other_lines": sorted(others)})

    def _places(self, found: Placement) -> Iterator[int]:
        """The lines, counted from 1, where the chunk fits by its winning passes. May repeat a line; ascending."""
        chunk, lines = found.chunk, self.document.lines
        if chunk.end_of_file or (found.old is None and not found.headers):
            return
        old = self.block(chunk.old())
        if not found.headers:
            assert found.old is not None
            yield from old.find_all(found.old.index, found.old.line, MAX_OTHER_LINES + 1)
            return
        blocks = [self.block([text]) for text in chunk.headers]
        headers = [(block, hit.index) for block, hit in zip(blocks, found.headers, strict=True)]
        start = self.cursor
        while True:
            chain: list[int] = []
            after = start
            for header, index in headers:
                line = header.find(index, after, lines)
                if line < 0:
                    return
                chain.append(line)
                after = line + 1
            if found.old is not None:
                line = old.find(found.old.index, after, lines)
                if line < 0:
                    return
                chain.append(line)
            yield chain[-1] + 1
            # Hits of the first header before the second member of this chain lead to the same place.
            start = chain[1] if len(chain) > 1 else chain[0] + 1


def _runs_of(found: Placement) -> Iterator[Run]:
    """Maximal runs of old and new lines between context lines."""
    place, old = found.place, 0
    new: list[str] = []
    for kind, text in zip(found.chunk.kinds, found.chunk.texts, strict=True):
        if kind == " ":
            if old or new:
                yield Run(place, old, new)
                place, old, new = place + old, 0, []
            place += 1
        elif kind == "-":
            old += 1
        else:
            new.append(text)
    if old or new:
        yield Run(place, old, new)
