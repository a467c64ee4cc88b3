"""The judgement of probes: what is no proof never counts as protection. Pure, and the probe program outside."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from adapters.linux_sandbox.selftest import run
from adapters.linux_sandbox.selftest.bait import copy_probes, lay_out, starter
from adapters.linux_sandbox.selftest.probes.__main__ import PROBES
from runner.ports import ManagedExit

TARGET = {"kind": "kernel", "errnos": ["EPERM"]}
BLOCKED, OPEN, UNTRIED = (run._Outcome(state, None, "") for state in ("blocked", "open", "untried"))
EPERM = run._Outcome("blocked", "EPERM", "")


def test_the_table_of_targets_is_the_table_of_probes() -> None:
    assert {name: target["kind"] for name, target in run.targets().items()} == {
        name: probe.kind for name, probe in PROBES.items()
    }


@pytest.mark.parametrize(
    ("inside", "outside", "around", "holds"),
    [
        ({"p": EPERM}, {"p": OPEN}, None, True),
        ({"p": OPEN}, {"p": OPEN}, None, False),
        ({"p": UNTRIED}, {"p": OPEN}, None, False),
        ({}, {"p": OPEN}, None, False),
        ({"p": EPERM}, {"p": EPERM}, None, False),
        ({"p": EPERM}, {"p": EPERM}, "a filter", True),
        ({"p": EPERM}, {"p": UNTRIED}, None, True),
        ({"p": EPERM}, {}, None, False),
        ({"p": EPERM}, {}, "a filter", False),
    ],
)
def test_a_probe_holds_only_with_its_control_or_a_reason(
    inside: dict[str, run._Outcome], outside: dict[str, run._Outcome], around: str | None, holds: bool
) -> None:
    assert run._judge("p", TARGET, inside, outside, around).holds is holds


def test_a_refusal_with_another_errno_is_not_the_one_meant() -> None:
    assert run._judge("p", TARGET, {"p": EPERM}, {"p": OPEN}, None).expected
    assert not run._judge("p", TARGET, {"p": BLOCKED}, {"p": OPEN}, None).expected


def test_only_the_kernel_s_word_makes_a_killed_probe_a_blocked_one() -> None:
    killed = ManagedExit(None, 9)
    assert run._by_its_end("p", killed) == {}
    named = ManagedExit(None, 9, limit="memory_mb")
    assert run._by_its_end("p", named) == {"p": run._Outcome("blocked", None, "ended by the limit memory_mb")}


def test_lines_that_are_no_record_give_no_outcome() -> None:
    record = {"id": "p", "kind": "kernel", "state": "refused", "errno": "EPERM", "detail": ""}
    lines = [json.dumps(record | {"id": "q", "state": "fine"}), "noise", "[]", json.dumps(record), "{}"]
    assert run._parse("\n".join(lines).encode()) == {"p": EPERM}


def test_the_probe_program_needs_nothing_but_an_interpreter(tmp_path: Path) -> None:
    copy_probes(str(tmp_path))
    bait = json.dumps({"word": "x"})
    argv = [*starter("/usr/bin/python3", str(tmp_path)), str(tmp_path), bait, "--only", "set-the-clock"]
    done = subprocess.run(argv, cwd="/", env={}, capture_output=True, text=True, timeout=15, check=True)
    assert json.loads(done.stdout)["state"] == "open"
    assert done.stderr == ""


def test_bait_leaves_nothing() -> None:
    with lay_out(None) as bait:
        base = Path(bait.workspace).parent
        assert (base / "outside" / "secret").exists()
    assert not base.exists()


def test_a_program_under_no_filter_is_not_taken_for_confined() -> None:
    script = "from adapters.linux_sandbox.selftest.run import confined_from_outside as c; print(c())"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=15, check=True)
    status = Path("/proc/self/status").read_text()
    assert (done.stdout == "None\n") is ("Seccomp:\t0" in status)
