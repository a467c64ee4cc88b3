"""Draws kept runs, one SVG a benchmark.

Equal runs give equal bytes: no date and no random id in a picture. Needs matplotlib, which the program itself never
does (`requirements/bench.txt`). Called by `benchmarks.page`.
"""

from __future__ import annotations

import re
import statistics
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.measure import Kept, Table, percentile, shown

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
            f" {shown(medians[row])}",
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
