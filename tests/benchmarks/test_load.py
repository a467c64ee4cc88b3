"""The load driver: a short run finds nothing wrong, and what it compares with would notice."""

from __future__ import annotations

import base64
import subprocess
import sys
from collections import Counter
from typing import Any

import pytest

from adapters.v4a.engine import plan
from benchmarks.load_scenes import SCENES
from benchmarks.load_truth import Transcript, Wrong, check_pages, extra, note, numbers, patch, revision_of
from benchmarks.load_watch import Growth, Sample, Seen, left_over, slope
from tests.adapters.v4a.memory import MemoryView
from tests.fakes.worker_host import REPOSITORY

SECONDS = 15


@pytest.mark.kernel("namespaces")
@pytest.mark.timeout(180)
@pytest.mark.covers("PROC-4", "PROC-7", "PROC-12", "LEASE-1", "LEASE-2", "OP-2", "FS-1", "UDS-3")
def test_many_clients_get_no_wrong_answer_and_leave_nothing() -> None:
    command = [
        sys.executable,
        "-m",
        "benchmarks.load",
        "--seconds",
        str(SECONDS),
        "--workspaces",
        "4",
        "--clients",
        "8",
    ]
    run = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.endswith("0 wrong answers, 0 things left, 0 problems in all\n")
    (scenes,) = [line for line in run.stdout.splitlines() if line.startswith("  scenes: ")]
    assert [name for name in SCENES if f"'{name}': " not in scenes] == []


# --- what it compares with --------------------------------------------------------------------------------------------
def files_at(revision: int) -> dict[str, bytes]:
    files = {"c0/notes.txt": note("w0", "c0", revision).encode()}
    if (content := extra("c0", revision)) is not None:
        files["c0/extra.txt"] = content.encode()
    return files


def test_a_patch_leads_from_each_revision_to_the_next() -> None:
    for revision in range(90):
        view = MemoryView(files_at(revision))
        assert view.after(plan(patch("w0", "c0", revision), view)) == files_at(revision + 1)
        assert revision_of(note("w0", "c0", revision).partition("\n")[0], "w0", "c0") == revision


def output(chunk: bytes, cursor: int, *, lost: bool = False, retained: int = 0, eof: bool = False) -> dict[str, Any]:
    text = base64.b64encode(chunk).decode()
    return {
        "chunk": text,
        "encoding": "base64",
        "cursor": cursor,
        "output_lost": lost,
        "retained_from": retained,
        "eof": eof,
    }


def test_a_transcript_takes_what_is_true() -> None:
    transcript = Transcript(numbers(5))
    transcript.take(output(b"1\n", 2))
    transcript.take(output(b"4\n", 8, lost=True, retained=6))
    transcript.take(output(b"5\n", 10, retained=6, eof=True))
    assert (transcript.lost, transcript.passed, transcript.eof) == (4, 6, True)


@pytest.mark.parametrize(
    "answer",
    [
        output(b"2\n", 2),
        output(b"2\n", 4),
        output(b"2\n", 4, lost=True),
        output(b"2\n", 4, retained=2),
        output(b"3\n", 6, lost=True, retained=2),
        output(b"1\n", 2, eof=True),
        output(b"1\n2\n3\n4\n5\n6\n", 12),
    ],
    ids=["other bytes", "a gap", "loss without cause", "unmarked loss", "loss of too much", "early end", "too much"],
)
def test_a_transcript_refuses_what_is_false(answer: dict[str, Any]) -> None:
    with pytest.raises(Wrong):
        Transcript(numbers(5)).take(answer)


@pytest.mark.parametrize("line", ["", "revision 1 of w0/c1", "revision x of w0/c0", "revision 1 of w0/c0 and more"])
def test_a_line_that_nobody_wrote_has_no_revision(line: str) -> None:
    with pytest.raises(Wrong):
        revision_of(line, "w0", "c0")


def test_pages_that_contradict_themselves_are_refused() -> None:
    assert check_pages(
        [{"matches": [1], "truncated": True, "next_cursor": "c"}, {"matches": [2], "truncated": False}], 1
    )
    for page in ({"matches": [], "truncated": True}, {"matches": [1, 2], "truncated": False}):
        with pytest.raises(Wrong):
            check_pages([page], 1)


# --- what it watches --------------------------------------------------------------------------------------------------
def seen(pid: int, kind: str = "worker", **more: Any) -> Seen:
    facts = {"zombie": False, "resident_kib": 1000, "threads": 1, "descriptors": Counter({"socket": 2})}
    return Seen(pid, kind, **{**facts, **more})


BEFORE = Sample(0, (seen(1), seen(2, "sandbox helper")))


@pytest.mark.parametrize(
    ("after", "word"),
    [
        (Sample(1, (*BEFORE.processes, seen(3, "other", zombie=True))), "zombie"),
        (Sample(1, (*BEFORE.processes, seen(3, "sandboxed"))), "sandbox"),
        (Sample(1, (*BEFORE.processes, seen(3, "patch helper"))), "processes of kind"),
        (Sample(1, (*BEFORE.processes, seen(3, "other"))), "another process"),
        (Sample(1, (seen(1, descriptors=Counter({"socket": 3})), seen(2, "sandbox helper"))), "descriptors of socket"),
        (Sample(1, (seen(1, threads=30), seen(2, "sandbox helper"))), "threads"),
        (Sample(1, BEFORE.processes, frozenset({"/tmp/x"})), "file /tmp/x"),
    ],
)
def test_what_is_held_beyond_the_first_moment_is_found(after: Sample, word: str) -> None:
    assert any(word in line for line in left_over(BEFORE, after))
    assert left_over(BEFORE, BEFORE) == []


def test_memory_that_grows_for_long_is_too_much() -> None:
    points = [(float(second), 50 + second / 30) for second in range(200)]
    assert 60 * slope(points) == pytest.approx(2)
    assert Growth("worker", 1, 50, 56, 60 * slope(points), 200).too_much
    assert not Growth("worker", 1, 50, 50.5, 0.5, 200).too_much
    assert not Growth("worker", 1, 50, 51, 20, 10).too_much
