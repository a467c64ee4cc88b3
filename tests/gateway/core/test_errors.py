"""What errors look like to a caller and to an operator."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.errors import AlreadyServed, Code, RegistryRefused, ToolError
from runner.api import ErrorCode, RunnerError

INTERFACE = Path(__file__).resolve().parents[4] / "shared" / "INTERFACE.md"


@pytest.mark.covers("TOOL-2")
def test_a_tool_error_has_the_public_shape_and_omits_ids_it_has_not() -> None:
    error = ToolError(Code.WORKSPACE_BUSY, "held", retryable=True, details={"a": 1})
    assert error.to_structured() == {
        "error": {"code": "WORKSPACE_BUSY", "message": "held", "retryable": True, "details": {"a": 1}}
    }
    with_ids = ToolError(Code.INTERNAL, "m", operation_id="op_1", approval_id="apr_1").to_structured()["error"]
    assert (with_ids["operation_id"], with_ids["approval_id"]) == ("op_1", "apr_1")


def test_every_code_of_the_runner_is_public() -> None:
    for code in ErrorCode:
        error = ToolError.from_runner(RunnerError(code, "m", retryable=True, details={"x": 1}))
        assert error.code.value == code.value
        assert error.retryable or code is ErrorCode.INTERNAL


def test_an_internal_error_of_the_runner_keeps_its_id_and_nothing_else() -> None:
    raw = RunnerError(ErrorCode.INTERNAL, "KeyError in /srv/x.py", details={"error_id": "err_7", "path": "/srv"})
    error = ToolError.from_runner(raw)
    assert error.details == {"error_id": "err_7"}
    assert "err_7" in error.message
    assert "/srv" not in error.message
    assert ToolError.from_runner(RunnerError(ErrorCode.INTERNAL, "m")).details["error_id"].startswith("err_")


def test_the_set_of_codes_is_that_of_the_interface() -> None:
    if not INTERFACE.exists():
        pytest.skip(f"{INTERFACE} is not there to compare with")
    section = INTERFACE.read_text().split("## Error codes")[1].split("`CHECK_ONLY_CONFLICT` is reserved")[0]
    assert {code.value for code in Code} == {word.strip("`") for word in section.split()}


def test_an_operator_error_says_what_on_what_and_what_to_do() -> None:
    assert str(AlreadyServed("it is taken", "/ws", "stop the other")) == "it is taken: /ws: stop the other"
    assert AlreadyServed("a", "b", "c").exit_status == 1
    refused = RegistryRefused("r.json", "workspaces.a.root", "is /", "name another")
    assert str(refused) == "registry refused: is /: r.json: workspaces.a.root: name another"
