"""Locating and rewriting as the format's reference words it, as plainly as possible and without any regard for cost.

Lists of lines, loops and recursion instead of tables: what the engine does fast is compared with this.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from adapters.v4a.model import Chunk, UpdateFile
from adapters.v4a.text import BOM, PASSES


class NotFound(Exception):
    """`reason`: context_not_found or lines_not_found. `header`: the one that is named."""

    def __init__(self, reason: str, chunk: int, header: str | None = None) -> None:
        super().__init__(reason)
        self.reason, self.chunk, self.header = reason, chunk, header


@dataclass
class Line:
    text: str
    ending: str


def split(text: str) -> tuple[str, list[Line]]:
    mark = BOM if text.startswith(BOM) else ""
    lines = []
    rest = text[len(mark) :]
    while rest:
        body, newline, rest = rest.partition("\n")
        carriage = "\r" if newline and body.endswith("\r") else ""
        lines.append(Line(body[: len(body) - len(carriage)], carriage + newline))
    return mark, lines


class Reference:
    def __init__(self, text: str, section: UpdateFile) -> None:
        self.mark, self.lines = split(text)
        self.section = section
        self.cursor = 0
        self.warnings: list[dict[str, Any]] = []
        # (place, order, old count, new texts)
        self.runs: list[tuple[int, int, int, list[str]]] = []

    def equal(self, index: int, patch_line: str, at: int) -> bool:
        if at == 0 and self.mark and patch_line.startswith(BOM):
            patch_line = patch_line[1:]
        key = PASSES[index][1]
        return key([patch_line]) == key([self.lines[at].text])

    def fits(self, index: int, block: list[str], at: int) -> bool:
        return at + len(block) <= len(self.lines) and all(
            self.equal(index, line, at + offset) for offset, line in enumerate(block)
        )

    def search(self, block: list[str], start: int, at_end: bool) -> tuple[int, int] | None:
        """(pass, line)"""
        if not block:
            return 0, start
        if at_end:
            start = max(start, len(self.lines) - len(block))
        for index in range(len(PASSES)):
            for at in range(start, len(self.lines)):
                if self.fits(index, block, at):
                    return index, at
        return None

    def choices(self, headers: list[str], start: int, rest: Any) -> list[tuple[int, int]] | None:
        if not headers:
            return [] if rest(start) else None
        tried = set()
        for index in range(len(PASSES)):
            for at in range(start, len(self.lines)):
                if at not in tried and self.equal(index, headers[0], at):
                    tried.add(at)
                    later = self.choices(headers[1:], at + 1, rest)
                    if later is not None:
                        return [(index, at), *later]
        return None

    def headers_from(self, chunk: Chunk, number: int, old: list[str]) -> list[tuple[int, int]] | None:
        """None: the headers can be placed, OLD cannot."""
        headers = chunk.headers
        if len(headers) == 1:
            hit = self.search(headers, self.cursor, False)
            if hit is None:
                raise NotFound("context_not_found", number, headers[0])
            return [hit]
        found = self.choices(
            headers, self.cursor, lambda start: not old or self.search(old, start, chunk.end_of_file) is not None
        )
        if found is None:
            for count in range(1, len(headers) + 1):
                if self.choices(headers[:count], self.cursor, lambda _: True) is None:
                    raise NotFound("context_not_found", number, headers[count - 1])
        return found

    def run(self) -> NotFound | None:
        try:
            for number, chunk in enumerate(self.section.chunks, start=1):
                self.place(chunk, number)
        except NotFound as error:
            return error
        return None

    def place(self, chunk: Chunk, number: int) -> None:
        old = chunk.old()
        hits = self.headers_from(chunk, number, old) if chunk.headers else []
        start = self.cursor if not chunk.headers else hits[-1][1] + 1 if hits else 0
        if not old:
            at = start if chunk.headers and not chunk.end_of_file else len(self.lines)
            self.take(chunk, number, hits or [], None, at, start)
            return
        hit = self.search(old, start, chunk.end_of_file) if hits is not None else None
        if hit is None and old[-1] == "":
            chunk = chunk.without_trailing_blank()
            old = old[:-1]
            hits = self.headers_from(chunk, number, old) if chunk.headers else []
            if hits is not None:
                start = self.cursor if not chunk.headers else hits[-1][1] + 1
                hit = self.search(old, start, chunk.end_of_file)
        if hit is None or hits is None:
            raise NotFound("lines_not_found", number)
        self.take(chunk, number, hits, hit if old else None, hit[1], hit[1] + len(old))

    def take(
        self, chunk: Chunk, number: int, hits: list[tuple[int, int]], old: tuple[int, int] | None, at: int, cursor: int
    ) -> None:
        line = at if old is None else at + 1
        where = {"path": self.section.path, "chunk": number, "line": line}
        loosest = max([hit[0] for hit in hits] + [old[0] if old else 0])
        if loosest:
            self.warnings.append({"kind": "fuzzy_match", **where, "pass": PASSES[loosest][0]})
        others = sorted({place for place in self.places(chunk, hits, old) if place != line})[:20]
        if others:
            self.warnings.append({"kind": "ambiguous_match", **where, "other_lines": others})
        place, count = at, 0
        new: list[str] = []
        for kind, text in [*zip(chunk.kinds, chunk.texts, strict=True), (" ", "")]:
            if kind == " ":
                if count or new:
                    self.runs.append((place, len(self.runs), count, new))
                place, count, new = place + count + 1, 0, []
            elif kind == "-":
                count += 1
            else:
                new.append(text)
        self.cursor = cursor

    def places(self, chunk: Chunk, hits: list[tuple[int, int]], old: tuple[int, int] | None) -> Iterator[int]:
        block = chunk.old()
        everywhere = range(len(self.lines))
        if chunk.end_of_file or (old is None and not hits):
            return
        if not hits:
            assert old is not None
            yield from (at + 1 for at in everywhere if at >= self.cursor and self.fits(old[0], block, at))
            return
        for first in everywhere:
            if first < self.cursor or not self.equal(hits[0][0], chunk.headers[0], first):
                continue
            at: int | None = first
            for header, (index, _) in zip(chunk.headers[1:], hits[1:], strict=True):
                at = next((n for n in everywhere if at is not None and n > at and self.equal(index, header, n)), None)
            if at is not None and old is not None:
                above = at
                at = next((n for n in everywhere if n > above and self.fits(old[0], block, n)), None)
            if at is not None:
                yield at + 1

    def result(self) -> str:
        first = next((line.ending for line in self.lines if line.ending), "\n")
        out: list[Line] = []
        done = 0
        fresh: set[int] = set()
        for place, _, count, new in sorted(self.runs):
            out += self.lines[done:place]
            gone = self.lines[place : place + count]
            above = self.lines[place - 1].ending if place else ""
            for k, text in enumerate(new):
                ending = gone[min(k, len(gone) - 1)].ending if gone else above
                fresh.add(len(out))
                out.append(Line(text, ending or first))
            done = place + count
        out += self.lines[done:]
        out = [line if line.ending or n == len(out) - 1 else Line(line.text, first) for n, line in enumerate(out)]
        if self.mark and 0 in fresh:
            out[0] = Line(out[0].text.removeprefix(BOM), out[0].ending)
        return self.mark + "".join(line.text + line.ending for line in out)
