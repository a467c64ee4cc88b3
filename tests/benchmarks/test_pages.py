"""What a run measured is kept whole, judged by its bounds, and published without touching other sections."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks import measure
from benchmarks.measure import Bound, Claim, Kept, Options, Table, keep, read_kept, render
from benchmarks.page import merged, publish
from tests.fakes.worker_host import REPOSITORY

TABLE = Table(
    "how long",
    "ms",
    {"ours": [2.0, 1.0, 3.0], "theirs": [4.0, 4.0, 4.0]},
    [Bound("ours", "theirs", 0.5), Bound("theirs", "ours")],
    {"fact": "so"},
    claims=[Claim("the worst", 3.0, 2.5), Claim("the rate", 150.0, 150.0, at_least=True), Claim("told", 1234.5)],
)
MACHINE = {
    "at_utc": "2026-01-02T03:04:05+00:00", "commit": "abc", "cpus": 2, "processor": "P", "kernel": "6", "python": "3",
    "bubblewrap": "b", "load_average": [0.5, 1, 1],
}  # fmt: skip


def test_a_kept_run_is_read_back_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "RESULTS", tmp_path / "results")
    kept = read_kept(keep("one", "One question", [TABLE], Options(quick=True)))
    assert (kept.name, kept.title, kept.quick) == ("one", "One question", True)
    assert kept.tables == [TABLE]
    assert kept.machine["cpus"] >= 1


def test_bounds_and_claims_are_judged_both_ways() -> None:
    said = render(TABLE)
    assert "ours / theirs = 0.50 (bound: at most 0.5: held)" in said
    assert "theirs / ours = 2.00\n" in said
    assert "the worst = 3.00 (bound: at most 2.5: NOT HELD)" in said
    assert "the rate = 150.00 (bound: at least 150: held)" in said
    rate = replace(TABLE, higher_is_better=True)
    assert "ours / theirs = 0.50 (bound: at least 0.5: held)" in render(rate)
    assert "NOT HELD" in render(replace(rate, bounds=[Bound("ours", "theirs", 0.6)], claims=()))


def test_a_page_gets_the_sections_of_its_runs_and_keeps_the_others() -> None:
    first = merged("", [Kept("b", "B", False, MACHINE, [TABLE]), Kept("a", "A", False, MACHINE, [TABLE])])
    assert first.index("## a: A") < first.index("## b: B")
    assert "| ours | 3 | 1 | 2 | 3 | 3 |" in first
    assert "**not held**" in first
    second = merged(first, [Kept("a", "anew", False, MACHINE, [TABLE])])
    assert "## a: A" not in second
    assert second.count("## b: B") == 1
    assert merged(second, []) == second
    assert second.replace("anew", "A") == first


def test_pictures_go_beside_the_page(tmp_path: Path) -> None:
    drawn: list[str] = []

    def draw(run: Kept, path: Path) -> None:
        drawn.append(run.name)
        path.write_text("picture")

    written = publish([Kept("a", "A", False, MACHINE, [TABLE])], draw, tmp_path)
    assert drawn == ["a"]
    assert sorted(path.name for path in written) == ["a.svg", "figures.md"]
    assert "![A](a.svg)" in (tmp_path / "figures.md").read_text()


@pytest.mark.timeout(120)
@pytest.mark.skipif(find_spec("matplotlib") is None, reason="matplotlib is installed by `make bench` alone")
def test_equal_runs_make_equal_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "RESULTS", tmp_path)
    kept = keep("a", "A", [TABLE, TABLE], Options())
    # A program of its own: matplotlib keeps its fonts open.
    code = "import sys\nfrom pathlib import Path\nfrom benchmarks.measure import read_kept\n"
    code += "from benchmarks.pictures import draw\ndraw(read_kept(Path(sys.argv[1])), Path(sys.argv[2]))"
    for name in ("one.svg", "two.svg"):
        command = [sys.executable, "-c", code, str(kept), str(tmp_path / name)]
        subprocess.run(
            command, cwd=REPOSITORY, check=True, timeout=60, env={**os.environ, "MPLCONFIGDIR": str(tmp_path)}
        )
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
    assert "how long" in (tmp_path / "one.svg").read_text()
