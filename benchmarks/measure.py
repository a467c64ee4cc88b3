"""How the benchmarks measure: interleaved samples, medians, ratios to a reference of the same run, raw data kept.

A machine's speed drifts over seconds, so contenders take turns, sample by sample, in a new order each round; a ratio is
then of two medians that saw the same machine. It refuses to judge: a bound is printed beside its ratio, and nothing
here fails because of time. Each benchmark module defines `TITLE` and `async def measure(options) -> list[Table]`;
`python -m benchmarks` runs them all.
"""

from __future__ import annotations

import json
import os
import platform
import random
import statistics
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
REPOSITORY = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Options:
    """`quick`: a tenth of the samples, for a look. `samples(n)`: how many of `n` to take. `programs`: others' sandboxes
    that were given, by name."""

    quick: bool = False
    programs: Mapping[str, str] = field(default_factory=dict)

    def samples(self, full: int) -> int:
        return max(5, full // 10) if self.quick else full


@dataclass(frozen=True)
class Contender:
    """`sample` does the thing once and returns the measured value, in the unit of its table."""

    name: str
    sample: Callable[[], Awaitable[float]]


@dataclass(frozen=True)
class Bound:
    """A ratio to hold: median of `name` over median of `reference`, at most `at_most` (None: printed only)."""

    name: str
    reference: str
    at_most: float | None = None


@dataclass(frozen=True)
class Claim:
    """A figure that stands alone, without a reference: `limit` is what it may be at most, or at least."""

    text: str
    value: float
    limit: float | None = None
    at_least: bool = False

    @property
    def holds(self) -> bool | None:
        if self.limit is None:
            return None
        return self.value >= self.limit if self.at_least else self.value <= self.limit


@dataclass(frozen=True)
class Table:
    """`samples`: contender to its raw values, in `unit`. `higher_is_better`: a rate, so a bound is a lower one.
    `notes`: facts about this run, such as sizes."""

    title: str
    unit: str
    samples: Mapping[str, Sequence[float]]
    bounds: Sequence[Bound] = ()
    notes: Mapping[str, Any] = field(default_factory=dict)
    higher_is_better: bool = False
    claims: Sequence[Claim] = ()

    def ratio(self, bound: Bound) -> float:
        return statistics.median(self.samples[bound.name]) / statistics.median(self.samples[bound.reference])

    def holds(self, bound: Bound) -> bool | None:
        if bound.at_most is None:
            return None
        ratio = self.ratio(bound)
        return ratio >= bound.at_most if self.higher_is_better else ratio <= bound.at_most


async def interleave(contenders: Sequence[Contender], count: int, *, warm_up: int = 3) -> dict[str, list[float]]:
    """`count` samples of each, taking turns in a shuffled order (seeded: equal runs, equal orders)."""
    order = random.Random(0)
    values: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    for round_number in range(-warm_up, count):
        for contender in order.sample(list(contenders), len(contenders)):
            value = await contender.sample()
            if round_number >= 0:
                values[contender.name].append(value)
    return values


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` (0 to 1) of the sorted values lie."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(share * len(ranked)))]


def shown(value: float) -> str:
    """Three figures, or all before the point."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def render(table: Table) -> str:
    """For a terminal: one line a contender, then one a bound."""
    width = max(len(name) for name in table.samples)
    lines = [table.title, f"  {'':{width}}  {'n':>5} {'min':>9} {'median':>9} {'p95':>9}  {table.unit}"]
    for name, values in table.samples.items():
        figures = [min(values), statistics.median(values), percentile(values, 0.95)]
        lines.append(f"  {name:{width}}  {len(values):5} " + " ".join(f"{figure:9.3f}" for figure in figures))
    for bound in table.bounds:
        verdict = ""
        if bound.at_most is not None:
            limit = f"{'at least' if table.higher_is_better else 'at most'} {bound.at_most:g}"
            verdict = f" (bound: {limit}: {'held' if table.holds(bound) else 'NOT HELD'})"
        lines.append(f"  {bound.name} / {bound.reference} = {table.ratio(bound):.2f}{verdict}")
    for claim in table.claims:
        verdict = ""
        if claim.limit is not None:
            limit = f"{'at least' if claim.at_least else 'at most'} {claim.limit:g}"
            verdict = f" (bound: {limit}: {'held' if claim.holds else 'NOT HELD'})"
        lines.append(f"  {claim.text} = {claim.value:.2f}{verdict}")
    lines += [f"  {name}: {value}" for name, value in table.notes.items()]
    return "\n".join(lines)


def _first_line(*argv: str) -> str | None:
    try:
        run = subprocess.run(argv, capture_output=True, text=True, timeout=10, check=False, cwd=REPOSITORY)
    except OSError:
        return None
    return (run.stdout or run.stderr).strip().partition("\n")[0] or None


def machine() -> dict[str, Any]:
    """What a figure depends on: kernel, processor, load, versions."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.machine(),
    )
    return {
        "at_utc": datetime.now(UTC).isoformat(timespec="seconds"),
        "kernel": platform.release(),
        "processor": model,
        "cpus": len(os.sched_getaffinity(0)),
        "load_average": os.getloadavg(),
        "uid": os.geteuid(),
        "niceness": os.nice(0),
        "python": sys.version.split()[0],
        "bubblewrap": _first_line("bwrap", "--version"),
        "ripgrep": _first_line("rg", "--version"),
        "commit": _first_line("git", "rev-parse", "--short", "HEAD"),
    }


def keep(name: str, title: str, tables: Sequence[Table], options: Options) -> Path:
    """Writes every sample to `results/`, and returns the file."""
    RESULTS.mkdir(exist_ok=True)
    facts = machine()
    path = RESULTS / f"{facts['at_utc'].replace(':', '').replace('+0000', 'Z')}-{name}.json"
    content = {
        "benchmark": name,
        "title": title,
        "quick": options.quick,
        "machine": facts,
        "tables": [
            {
                **asdict(table),
                "ratios": {f"{b.name} / {b.reference}": table.ratio(b) for b in table.bounds},
            }
            for table in tables
        ],
    }
    path.write_text(json.dumps(content, indent=1) + "\n")
    return path


@dataclass(frozen=True)
class Kept:
    """One run of one benchmark, as `keep` wrote it."""

    name: str
    title: str
    quick: bool
    machine: Mapping[str, Any]
    tables: Sequence[Table]


def read_kept(path: Path) -> Kept:
    """Raises `KeyError`, `ValueError` for a file that `keep` did not write."""
    content = json.loads(path.read_text())
    tables = [
        Table(
            title=one["title"],
            unit=one["unit"],
            samples=one["samples"],
            bounds=[Bound(**bound) for bound in one["bounds"]],
            notes=one["notes"],
            higher_is_better=one["higher_is_better"],
            claims=[Claim(**claim) for claim in one["claims"]],
        )
        for one in content["tables"]
    ]
    return Kept(content["benchmark"], content["title"], content["quick"], content["machine"], tables)
