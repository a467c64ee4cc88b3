"""The real program, ended between any two steps of a hold: the next one answers as the last would have."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from tests.program import Program, Refused, running_program

PATCH = "*** Begin Patch\n*** Add File: made\n+marker-of-the-patch\n*** End Patch\n"


def held(program: Program, tool: str, **arguments: Any) -> str:
    with pytest.raises(Refused) as refused:
        program.call(tool, workspace_id="demo", **arguments)
    assert refused.value.code == "APPROVAL_REQUIRED"
    assert refused.value.approval_id is not None
    return refused.value.approval_id


def code_of(program: Program, tool: str, **arguments: Any) -> str:
    with pytest.raises(Refused) as refused:
        program.call(tool, **arguments)
    return refused.value.code


@pytest.mark.timeout(120)
@pytest.mark.covers("APPR-4", "APPR-5", "APPR-6")
def test_a_program_that_ends_between_steps_goes_on_where_it_was() -> None:
    ends = iter((signal.SIGKILL, signal.SIGTERM, signal.SIGKILL))
    command = {"command": ["sh", "-c", "echo ran >> ran"]}
    with running_program(approvals="confirm") as program:
        patch, exec_, denied = (
            held(program, "apply_patch", patch=PATCH),
            held(program, "exec_command", **command),
            held(program, "exec_command", command=["false"]),
        )
        program.restart(next(ends))
        assert held(program, "apply_patch", patch=PATCH) == patch
        assert held(program, "exec_command", **command) == exec_
        for approval_id, decision in ((patch, "grant"), (exec_, "grant"), (denied, "deny")):
            program.call("approval_resolve", approval_id=approval_id, decision=decision)
        program.restart(next(ends))
        assert code_of(program, "approval_resolve", approval_id=patch, decision="grant") == "APPROVAL_CONFLICT"
        assert code_of(program, "operation_resume", approval_id=denied) == "APPROVAL_CONFLICT"
        results = {patch: program.call("operation_resume", approval_id=patch)}
        results[exec_] = program.call("operation_resume", approval_id=exec_)
        program.ended(results[exec_]["exec_command"]["process_id"])
        program.restart(next(ends))
        for approval_id, result in results.items():
            assert program.call("operation_resume", approval_id=approval_id) == result
        assert held(program, "apply_patch", patch=PATCH) != patch
        assert (program.workspace / "made").read_text() == "marker-of-the-patch\n"
        assert (program.workspace / "ran").read_text() == "ran\n"
