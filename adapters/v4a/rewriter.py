"""From a document and its runs to the new bytes: section 7 of the format's reference. Pure; called by the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from adapters.v4a.document import Document
from adapters.v4a.matcher import Run
from adapters.v4a.text import BOM


def rewrite(document: Document, runs: Sequence[Run]) -> bytes:
    """The file after `runs` (in patch order, not overlapping). Without runs: the very bytes it had.

    Lines that no run touches keep text and ending; new ones are UTF-8.
    """
    if not runs:
        return document.data
    ordered = sorted(runs, key=lambda run: run.place)
    wanted = sorted({line for run in ordered for line in _boundaries(run)})
    offsets = document.offsets(wanted)
    body = document.body

    def ending(line: int) -> bytes:
        """That of a line of the file, or the file's first one where it has none."""
        start, end = offsets[line], offsets[line + 1]
        if body[end - 1 : end] != b"\n":
            return document.first_ending
        return b"\r\n" if body[max(start, end - 2) : end] == b"\r\n" else b"\n"

    parts: list[bytes] = []
    done = 0
    empty = True
    for run in ordered:
        kept = body[done : offsets[run.place]]
        parts.append(kept)
        # Only the file's last line can be without an ending, and now text follows it.
        if run.new and kept and kept[-1:] != b"\n":
            parts.append(document.first_ending)
        empty = empty and not kept
        parts += _new_lines(run, ending, document, at_top=empty)
        empty = empty and not run.new
        done = offsets[run.place + run.old]
    document.budget.spend(sum(10 * (1 + len(run.new)) for run in ordered) + len(body) // 16)
    parts.append(body[done:])
    return (BOM.encode() if document.bom else b"") + b"".join(parts)


def _boundaries(run: Run) -> Iterator[int]:
    """The lines whose offsets decide where the run goes and how its new lines end."""
    yield run.place
    yield run.place + run.old
    if run.new:
        yield max(run.place - 1, 0)
        yield from range(run.place, run.place + min(run.old, len(run.new)) + 1)
        yield max(run.place + run.old - 1, 0)


def _new_lines(run: Run, ending: Callable[[int], bytes], document: Document, *, at_top: bool) -> list[bytes]:
    """The k-th new line ends like the k-th old one, further ones like the last; without, like the line above."""
    if not run.new:
        return []
    if run.old:
        endings = [ending(line) for line in range(run.place, run.place + min(run.old, len(run.new)))]
        further = ending(run.place + run.old - 1)
    else:
        endings = []
        further = ending(run.place - 1) if run.place else document.first_ending
    lines: list[bytes] = []
    for number, text in enumerate(run.new):
        if at_top and number == 0 and document.bom:
            text = text.removeprefix(BOM)
        lines += [text.encode(), endings[number] if number < len(endings) else further]
    return lines
