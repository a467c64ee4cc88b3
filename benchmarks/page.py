"""Publishes kept runs: a page of their figures and a picture of each, in `docs/benchmarks/`.

The page is written and not typed, so that it says what was measured. Refuses to know: how things are measured. Called
by `python -m benchmarks`.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.measure import REPOSITORY, Kept, Table, percentile, shown

FOLDER = REPOSITORY / "docs" / "benchmarks"
PAGE = "figures.md"


def publish(kept: Sequence[Kept], draw: Callable[[Kept, Path], None], folder: Path = FOLDER) -> list[Path]:
    """The files that were written. Sections of the page about other benchmarks stay as they are."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for run in kept:
        path = folder / f"{run.name}.svg"
        draw(run, path)
        written.append(path)
    page = folder / PAGE
    page.write_text(merged(page.read_text() if page.exists() else "", kept))
    return [*written, page]


_HEAD = """# Figures

Written by `make bench`; [README.md](README.md) tells how they are measured and what they do not tell. Bars are medians,
lines go from the least sample to the 95th percentile.
"""


def merged(page: str, kept: Sequence[Kept]) -> str:
    """The page with the sections of these runs in place of older ones, in order of their names."""
    sections = {found[1]: found[0].strip() for found in re.finditer(r"(?ms)^## (\w+): .*?(?=^## |\Z)", page)}
    sections |= {run.name: section(run) for run in kept}
    return "\n\n".join([_HEAD.strip(), *(sections[name] for name in sorted(sections))]) + "\n"


def section(run: Kept) -> str:
    """Markdown about one run."""
    facts = run.machine
    load = " ".join(f"{value:.1f}" for value in facts["load_average"][:1])
    about = (
        f"{facts['at_utc'][:10]}, commit {facts['commit']}, {facts['cpus']} processors ({facts['processor']}), kernel "
        f"{facts['kernel']}, Python {facts['python']}, {facts['bubblewrap']}, load average {load} at the end"
    )
    about += f", all of it at niceness {facts['niceness']}." if facts.get("niceness") else "."
    parts = [f"## {run.name}: {run.title}", f"![{run.title}]({run.name}.svg)", about]
    parts += [_table(table) for table in run.tables]
    return "\n\n".join(parts)


def _table(table: Table) -> str:
    lines = [
        f"| {table.title} ({table.unit}) | n | least | median | p95 | p99 |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, values in table.samples.items():
        figures = (min(values), statistics.median(values), percentile(values, 0.95), percentile(values, 0.99))
        lines.append(f"| {name} | {len(values)} | {' | '.join(map(shown, figures))} |")
    notes = []
    for bound in table.bounds:
        verdict = _bound(bound.at_most, table.holds(bound), table.higher_is_better)
        notes.append(f"- {bound.name} / {bound.reference} = {table.ratio(bound):.2f}{verdict}")
    for claim in table.claims:
        notes.append(f"- {claim.text} = {shown(claim.value)}{_bound(claim.limit, claim.holds, claim.at_least)}")
    notes += [f"- {name}: {value}" for name, value in table.notes.items()]
    return "\n".join(lines) + ("\n\n" + "\n".join(notes) if notes else "")


def _bound(limit: float | None, holds: bool | None, at_least: bool) -> str:
    if limit is None:
        return ""
    return f" (bound: {'at least' if at_least else 'at most'} {limit:g}: {'held' if holds else '**not held**'})"
