"""Draws kept runs, one SVG a benchmark, and writes their figures as a page: into `docs/benchmarks/`.

Equal runs give equal bytes: no date and no random id in a picture. Needs matplotlib, which the program itself never
does (`requirements/bench.txt`). Called by `python -m benchmarks`.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.measure import REPOSITORY, Kept, Table, percentile

FOLDER = REPOSITORY / "docs" / "benchmarks"
PAGE = "figures.md"
_OURS, _OTHER, _SPREAD = "#2f6f9f", "#b9c2c9", "#39434a"
_ROW_INCHES, _HEAD_INCHES, _WIDTH_INCHES = 0.34, 0.75, 8.2
_STYLE = {
    "svg.hashsalt": "codespace",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
}


def publish(kept: Sequence[Kept], folder: Path = FOLDER) -> list[Path]:
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


# --- pictures ---------------------------------------------------------------------------------------------------------
def draw(run: Kept, path: Path) -> None:
    """One row of bars a contender: the median, with a line from the least sample to the 95th percentile."""
    heights = [_HEAD_INCHES + _ROW_INCHES * len(table.samples) for table in run.tables]
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH_INCHES, sum(heights)), layout="constrained")
        places = figure.subplots(len(heights), 1, squeeze=False, gridspec_kw={"height_ratios": heights})
        for table, place in zip(run.tables, places[:, 0], strict=True):
            _bars(place, table)
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
    # matplotlib ends lines with spaces.
    path.write_text("\n".join(line.rstrip() for line in path.read_text().splitlines()) + "\n")


def _bars(place: Axes, table: Table) -> None:
    names = list(table.samples)
    medians = [statistics.median(table.samples[name]) for name in names]
    rows = range(len(names))
    colours = [_OURS if "ours" in name else _OTHER for name in names]
    place.barh(rows, medians, color=colours, height=0.62)
    for row, name in zip(rows, names, strict=True):
        values = table.samples[name]
        low, high = min(values), percentile(values, 0.95)
        if high > low:
            place.hlines(row, low, high, color=_SPREAD, linewidth=1)
        place.annotate(
            f" {medians[row]:.3g}",
            (max(high, medians[row]), row),
            va="center",
            xytext=(3, 0),
            textcoords="offset points",
        )
    place.set_yticks(rows, [_wrapped(name) for name in names])
    place.invert_yaxis()
    place.tick_params(axis="y", length=0)
    place.set_xlim(left=0)
    place.margins(x=0.12)
    place.set_title(f"{table.title} ({table.unit}, n = {_count(table)})", loc="left", fontsize=9.5, fontweight="bold")


def _wrapped(name: str) -> str:
    return name if len(name) < 34 else re.sub(r", (?=[^,]*$)", ",\n", name)


def _count(table: Table) -> str:
    counts = sorted({len(values) for values in table.samples.values()})
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"


# --- the page ---------------------------------------------------------------------------------------------------------
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
        f"{facts['kernel']}, Python {facts['python']}, {facts['bubblewrap']}, load average {load} at the end."
    )
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
        lines.append(f"| {name} | {len(values)} | {' | '.join(f'{figure:.3g}' for figure in figures)} |")
    notes = []
    for bound in table.bounds:
        verdict = _bound(bound.at_most, table.holds(bound), table.higher_is_better)
        notes.append(f"- {bound.name} / {bound.reference} = {table.ratio(bound):.2f}{verdict}")
    for claim in table.claims:
        notes.append(f"- {claim.text} = {claim.value:.3g}{_bound(claim.limit, claim.holds, claim.at_least)}")
    notes += [f"- {name}: {value}" for name, value in table.notes.items()]
    return "\n".join(lines) + ("\n\n" + "\n".join(notes) if notes else "")


def _bound(limit: float | None, holds: bool | None, at_least: bool) -> str:
    if limit is None:
        return ""
    return f" (bound: {'at least' if at_least else 'at most'} {limit:g}: {'held' if holds else '**not held**'})"
