"""The life of a command as a table, and the name of its end (PROC-3, PROC-6)."""

from __future__ import annotations

import pytest

from runner.api import CommandExit
from runner.ports import ManagedExit
from runner.processes.lifecycle import STEPS, Cause, State, Step, Verdict, judge

pytestmark = pytest.mark.covers("PROC-3", "PROC-6")


def test_every_state_is_reached_and_all_but_the_last_are_left() -> None:
    assert {State.STARTING} | set(STEPS.values()) == set(State)
    assert {state for state, _ in STEPS} == set(State) - {State.ENDED}


def test_nothing_leads_back_to_life() -> None:
    for (state, _), after in STEPS.items():
        assert not (state.is_over and not after.is_over)


def test_only_a_reaped_or_vanished_command_is_over() -> None:
    into_over = {step for (state, step), after in STEPS.items() if after.is_over and not state.is_over}
    assert into_over == {Step.REAPED, Step.GONE}


@pytest.mark.parametrize(
    ("cause", "exit", "verdict"),
    [
        (None, ManagedExit(0, None, 0), Verdict("exited", 0, CommandExit(code=0))),
        (None, ManagedExit(137, None, 137), Verdict("exited", 137, CommandExit(code=137))),
        (None, ManagedExit(137, None, None, "SIGKILL"), Verdict("exited", 137, CommandExit(signal="SIGKILL"))),
        (
            None,
            ManagedExit(0, None, None, "SIGXCPU", "cpu_s"),
            Verdict("exited", 0, CommandExit(signal="SIGXCPU"), "cpu_s"),
        ),
        (None, ManagedExit(None, 9), Verdict("unknown")),
        (None, ManagedExit(None, 9, limit="memory_mb"), Verdict("unknown", limit="memory_mb")),
        (Cause.TERMINATED, ManagedExit(0, None, 0), Verdict("terminated", None, CommandExit(code=0))),
        (Cause.TERMINATED, ManagedExit(None, 9), Verdict("terminated")),
        (
            Cause.TIMEOUT,
            ManagedExit(0, None, None, "SIGTERM"),
            Verdict("timeout", None, CommandExit(signal="SIGTERM"), "timeout_s"),
        ),
        (Cause.TIMEOUT, ManagedExit(None, 9), Verdict("timeout", limit="timeout_s")),
    ],
)
def test_the_cause_decides_and_never_the_code(cause: Cause | None, exit: ManagedExit, verdict: Verdict) -> None:
    assert judge(cause, exit) == verdict
