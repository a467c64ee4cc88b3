"""Bad input to the tools on a running command, over MCP with the real program: the code of each, and no harm done."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.program import Program, Refused, running_program

pytestmark = [pytest.mark.kernel("namespaces"), pytest.mark.timeout(60)]

A_WEEK_MS = 7 * 24 * 3600 * 1000
MIB = 1024 * 1024
HUGE = 10**30


@pytest.fixture(scope="module")
def program() -> Iterator[Program]:
    with running_program() as one:
        yield one


@pytest.fixture
def terminal(program: Program) -> Iterator[str]:
    """A command with a terminal that runs until the test is over."""
    started = program.call("exec_command", workspace_id="demo", command=["/bin/cat"], tty=True)["process_id"]
    yield started
    program.call("terminate_process", process_id=started)
    program.ended(started)


def refusal(program: Program, tool: str, **arguments: Any) -> Refused:
    with pytest.raises(Refused) as refused:
        program.call(tool, **arguments)
    return refused.value


OUT_OF_BOUNDS: list[tuple[str, dict[str, Any], str]] = [
    *[("process_status", {"wait_ms": wait}, "wait_ms") for wait in (-1, 60_001, A_WEEK_MS, HUGE, 1.5, "1", True)],
    *[("read_process", {"wait_ms": wait}, "wait_ms") for wait in (-1, 60_001, A_WEEK_MS)],
    *[("read_process", {"cursor": cursor}, "cursor") for cursor in (-1, -HUGE, "0", 0.5)],
    *[("read_process", {"max_bytes": most}, "max_bytes") for most in (0, -1, MIB + 1)],
    ("read_process", {"encoding": "latin-1"}, "encoding"),
    *[("process_resize", {"rows": n, "cols": 80}, "rows") for n in (0, -1, 1_001, 100_000, HUGE, None)],
    *[("process_resize", {"rows": 24, "cols": n}, "cols") for n in (0, -1, 1_001, 100_000, HUGE)],
    ("process_resize", {"rows": 24}, "cols"),
    ("write_stdin", {"data": "x" * (MIB + 1)}, "data"),
    ("write_stdin", {"data": "\u00e4" * (MIB // 2 + 1)}, "data"),
    ("write_stdin", {"data": 7}, "data"),
    ("write_stdin", {"data": "", "eof": "yes"}, "eof"),
    ("write_stdin", {}, "data"),
    ("terminate_process", {"signal": "SIGKILL"}, "signal"),
]


@pytest.mark.covers("PROC-4", "PROC-9", "PROC-10", "TOOL-2", "ENV-4")
def test_what_is_out_of_bounds_is_refused_by_name_and_changes_nothing(program: Program, terminal: str) -> None:
    for tool, arguments, argument in OUT_OF_BOUNDS:
        refused = refusal(program, tool, process_id=terminal, **arguments)
        shown = (tool, str(arguments)[:80], str(refused)[:300])
        assert refused.code == "INVALID_ARGUMENT", shown
        assert refused.details["argument"] == argument, shown
    status = program.call("process_status", process_id=terminal)
    assert (status["state"], status["output_total"]) == ("running", 0)


@pytest.mark.covers("PROC-2", "PROC-4", "PROC-9", "PROC-10")
def test_the_bounds_themselves_are_accepted(program: Program, terminal: str) -> None:
    for rows, cols in ((1, 1000), (1000, 1)):
        answer = program.call("process_resize", process_id=terminal, rows=rows, cols=cols)
        assert answer == {"process_id": terminal, "rows": rows, "cols": cols}
    program.call("write_stdin", process_id=terminal, data="x\n")
    assert program.call("read_process", process_id=terminal, wait_ms=60_000, max_bytes=MIB)["chunk"].startswith("x")


@pytest.mark.covers("PROC-4")
def test_a_cursor_beyond_the_end_names_the_end(program: Program) -> None:
    process_id = program.call("exec_command", workspace_id="demo", command=["/bin/echo", "four"])["process_id"]
    program.ended(process_id)
    for cursor in (6, HUGE):
        refused = refusal(program, "read_process", process_id=process_id, cursor=cursor)
        assert (refused.code, refused.details["argument"]) == ("INVALID_ARGUMENT", "cursor")
    answer = program.call("read_process", process_id=process_id, cursor=5)
    assert (answer["chunk"], answer["cursor"], answer["eof"]) == ("", 5, True)


@pytest.mark.covers("PROC-5", "PROC-9")
def test_an_exited_command_takes_no_input_and_a_terminate_twice(program: Program) -> None:
    for tty in (False, True):
        process_id = program.run("/bin/true", tty=tty)["process_id"]
        assert refusal(program, "write_stdin", process_id=process_id, data="x").code == "PROCESS_NOT_RUNNING"
        resize = refusal(program, "process_resize", process_id=process_id, rows=2, cols=2)
        assert resize.code == ("PROCESS_NOT_RUNNING" if tty else "PROCESS_NOT_TTY")
        for _ in range(2):
            assert program.call("terminate_process", process_id=process_id)["state"] == "exited"
        assert program.call("process_status", process_id=process_id)["termination"] == "exited"


@pytest.mark.covers("PROC-7", "PROC-5")
def test_ids_of_another_runner_s_life_are_not_found() -> None:
    with running_program() as program:
        running = program.call("exec_command", workspace_id="demo", command=["/bin/cat"])["process_id"]
        (worker,) = [pid for pid, line in program.family().items() if " -m runner " in line]
        os.kill(worker, signal.SIGKILL)
        later = None
        while later is None:
            try:
                later = program.run("/bin/true")["process_id"]
            except Refused as not_yet:
                if not_yet.code not in ("RUNNER_UNAVAILABLE", "WORKSPACE_BUSY"):
                    raise
        for old in (running, "proc_00000000000000000000000000", "../x", "", "x" * 100_000, later.upper()):
            for tool, more in (
                ("process_status", {}),
                ("read_process", {"cursor": 3}),
                ("write_stdin", {"data": "x"}),
                ("process_resize", {"rows": 2, "cols": 2}),
                ("terminate_process", {}),
            ):
                refused = refusal(program, tool, process_id=old, **more)
                assert refused.code == "PROCESS_NOT_FOUND", (tool, old[:40], str(refused)[:200])
        assert program.call("process_status", process_id=later)["state"] == "exited"
