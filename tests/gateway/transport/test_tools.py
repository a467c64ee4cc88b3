"""What the tools list and accept: schemas, arguments, errors, results that fit what was promised."""

from __future__ import annotations

import asyncio
import io
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
from mcp import Client, MCPError

from gateway import logging as gateway_logging
from gateway.errors import Code, ToolError
from gateway.mcp.catalogue import ALL_TOOLS as CATALOGUE
from gateway.mcp.catalogue import listed
from gateway.mcp.server import ToolServer
from gateway.mcp.tool import MAX_NAMED, Tool
from gateway.metrics import Metrics
from gateway.request_keys import check_key
from tests.fakes.application import ALL_TOOLS, FIRST_TOOLS, FakeApplication

BY_NAME: Mapping[str, Tool[Any]] = {tool.name: tool for tool in CATALOGUE}
GOLDEN = Path(__file__).parents[2] / "data" / "tools.json"
BANNED = {
    *("environment_id", "cwd", "env", "timeout", "timeout_s", "timeout_ms", "network", "proxy"),
    *("permission", "permissions", "approved", "user_id"),
}
GOOD: dict[str, dict[str, Any]] = {
    "workspace_info": {"workspace_id": "demo"},
    "read": {"workspace_id": "demo", "path": "hello.txt", "offset": 1, "limit": 2},
    "find": {"workspace_id": "demo", "pattern": "**", "limit": 1000, "cursor": "c"},
    "grep": {
        "workspace_id": "demo",
        "pattern": "h",
        "glob": "*",
        "ignore_case": True,
        "gitignore": True,
        "context": 20,
    },
    "apply_patch": {"workspace_id": "demo", "patch": "p", "expected_versions": {"a": "absent"}, "check_only": False},
    "operation_status": {"operation_key": "k", "workspace_id": "demo"},
    "exec_command": {"workspace_id": "demo", "command": ["true"], "tty": True, "request_key": "k"},
    "read_process": {"process_id": "p", "cursor": 0, "max_bytes": 1, "encoding": "base64"},
    "process_status": {"process_id": "p", "wait_ms": 60_000},
    "write_stdin": {"process_id": "p", "data": "", "eof": True},
    "process_resize": {"process_id": "p", "rows": 1, "cols": 1000},
    "terminate_process": {"process_id": "p"},
    "approval_create": {"tool": "exec_command", "arguments": {"workspace_id": "demo", "command": ["true"]}},
    "approval_resolve": {"approval_id": "apr_1", "decision": "grant"},
    "operation_resume": {"approval_id": "apr_1"},
    "work_open": {"workspace_id": "demo", "title": "t"},
    "steer_status": {"work_id": "work_1"},
    "steer_claim_next": {"work_id": "work_1"},
    "steer_complete": {"work_id": "work_1", "intent_id": "int_1", "outcome": "blocked"},
    "work_finish": {"work_id": "work_1"},
}
HINTED = sorted(n for n, tool in BY_NAME.items() if "coordination" in tool.output_schema()["properties"])


@pytest.fixture
def log() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
async def application() -> FakeApplication:
    return FakeApplication(tools=ALL_TOOLS)


@pytest.fixture
def server(application: FakeApplication, log: io.StringIO) -> ToolServer:
    logger = gateway_logging.configure("info", stream=log)
    return ToolServer(application, listed(ALL_TOOLS), version="0", metrics=Metrics(), log=logger, local_peer="here")


def lines(log: io.StringIO) -> Iterator[dict[str, Any]]:
    return (json.loads(line) for line in log.getvalue().splitlines())


# --- what is listed ---------------------------------------------------------------------------------------------------
@pytest.mark.covers("TOOL-1")
def test_the_listed_tools_are_those_that_work_in_a_fixed_order() -> None:
    assert {tool.name for tool in listed(FIRST_TOOLS)} == FIRST_TOOLS
    assert [tool.name for tool in listed(ALL_TOOLS)] == [tool.name for tool in CATALOGUE]
    with pytest.raises(ValueError, match="no_such_tool"):
        listed(frozenset({"no_such_tool"}))


@pytest.mark.covers("TOOL-1", "ENV-2", "ENV-4")
@pytest.mark.parametrize("tool", CATALOGUE, ids=lambda tool: tool.name)
def test_every_tool_has_closed_schemas_without_environment_options(tool: Tool[Any]) -> None:
    given, answered = tool.input_schema(), tool.output_schema()
    for schema in (given, answered):
        jsonschema.Draft202012Validator.check_schema(schema)
        assert schema["type"] == "object"
        assert schema["additionalProperties"] is False
        assert '"null"' not in json.dumps(schema)
    assert not BANNED & set(given["properties"])
    assert len(tool.description) > 100
    assert all("description" in field or name in ("rows", "cols") for name, field in given["properties"].items())


@pytest.mark.covers("TOOL-1")
def test_the_hints_say_what_a_tool_may_do() -> None:
    read_only = {tool.name for tool in CATALOGUE if tool.hints.read_only}
    assert read_only == {
        *("workspace_info", "read", "find", "grep", "operation_status", "read_process", "process_status"),
        "steer_status",
    }
    assert not any(tool.hints.destructive for tool in CATALOGUE if tool.hints.read_only)
    assert BY_NAME["exec_command"].hints.destructive
    assert BY_NAME["apply_patch"].hints.destructive


@pytest.mark.covers("TOOL-3")
@pytest.mark.parametrize("name", ["exec_command", "apply_patch", "write_stdin"])
def test_a_tool_that_must_not_be_repeated_says_so(name: str) -> None:
    assert "never send it again as a new one" in BY_NAME[name].description


@pytest.mark.covers("TOOL-1")
async def test_the_list_over_mcp_is_the_recorded_one(server: ToolServer) -> None:
    """The schemas are an interface: a change here is a change for agents. CODESPACE_REGOLD=1 records a new one."""
    async with Client(server.sdk) as client:
        tools = [t.model_dump(by_alias=True, exclude_none=True, mode="json") for t in (await client.list_tools()).tools]
    text = json.dumps(tools, indent=1, ensure_ascii=False) + "\n"
    if os.environ.get("CODESPACE_REGOLD"):
        await asyncio.to_thread(GOLDEN.write_text, text)
    assert json.loads(await asyncio.to_thread(GOLDEN.read_text)) == tools


# --- results ----------------------------------------------------------------------------------------------------------
@pytest.mark.covers("TOOL-1")
@pytest.mark.parametrize("name", sorted(GOOD))
async def test_a_result_fits_its_schema_and_comes_as_compact_text_too(server: ToolServer, name: str) -> None:
    async with Client(server.sdk) as client:
        result = await client.call_tool(name, GOOD[name])
    assert not result.is_error
    jsonschema.validate(result.structured_content, BY_NAME[name].output_schema())
    jsonschema.validate(GOOD[name], BY_NAME[name].input_schema())
    assert "null" not in json.dumps(result.structured_content)
    (content,) = result.content
    assert content.type == "text"
    assert content.text == json.dumps(result.structured_content, separators=(",", ":"))


@pytest.mark.covers("TOOL-2")
@pytest.mark.parametrize("tool", CATALOGUE, ids=lambda tool: tool.name)
def test_an_error_fits_the_schema_of_every_result_and_half_a_result_does_not(tool: Tool[Any]) -> None:
    error = ToolError(Code.INTERNAL, "it failed", details={"error_id": "e"}, operation_id="op_1").to_structured()
    jsonschema.validate(error, tool.output_schema())
    half: list[dict[str, Any]] = [{}] if tool.output_schema()["anyOf"][0]["required"] else []
    for wrong in (*half, {"error": {"code": "INTERNAL"}}, {**error, "surplus": 1}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, tool.output_schema())


@pytest.mark.covers("PROC-3")
async def test_process_status_has_the_public_names_of_its_times(server: ToolServer) -> None:
    async with Client(server.sdk) as client:
        got = (await client.call_tool("process_status", {"process_id": "p"})).structured_content
    assert got is not None
    assert (got["started_at"], got["exited_at"]) == ("2026-01-02T00:00:00Z", "2026-01-03T00:00:00Z")
    assert got["command_exit"] == {"code": 0}
    assert "limit" not in got


@pytest.mark.covers("WORK-3")
@pytest.mark.parametrize(
    "name", sorted(n for n, t in BY_NAME.items() if "coordination" in t.output_schema()["properties"])
)
async def test_a_tool_that_is_told_of_a_work_answers_with_the_hint(
    name: str, server: ToolServer, application: FakeApplication
) -> None:
    async with Client(server.sdk) as client:
        plain = (await client.call_tool(name, GOOD[name])).structured_content
        hinted = (await client.call_tool(name, {**GOOD[name], "work_id": "work_1"})).structured_content
        before = len(application.calls)
        unknown = await client.call_tool(name, {**GOOD[name], "work_id": "work_2"})
    assert plain is not None
    hint = {"work_id": "work_1", "pending_user_items": 2, "queue_revision": 3}
    assert hinted == {**plain, "coordination": hint}
    jsonschema.validate(hinted, BY_NAME[name].output_schema())
    assert unknown.is_error
    assert len(application.calls) == before, "a call with an unknown work had an effect"


@pytest.mark.covers("WORK-3")
def test_the_tools_that_take_a_work_are_those_that_work_in_a_workspace() -> None:
    taking = {n for n, tool in BY_NAME.items() if "work_id" in tool.input_schema()["properties"]}
    own = {"steer_status", "steer_claim_next", "steer_complete", "work_finish"}
    assert taking - own == {*("read", "find", "grep", "apply_patch", "exec_command", "read_process", "process_status")}
    assert set(HINTED) == taking - own


# --- refusals ---------------------------------------------------------------------------------------------------------
def refusal(name: str, arguments: Mapping[str, Any] | None) -> ToolError:
    with pytest.raises(ToolError) as refused:
        BY_NAME[name].parse(arguments)
    assert refused.value.code is Code.INVALID_ARGUMENT
    assert not refused.value.retryable
    return refused.value


@pytest.mark.covers("ENV-2", "ENV-4")
@pytest.mark.parametrize("tool", CATALOGUE, ids=lambda tool: tool.name)
@pytest.mark.parametrize("extra", sorted(BANNED | {"work_idd", "__class__"}))
def test_an_unknown_argument_is_refused_by_name_and_grants_nothing(tool: Tool[Any], extra: str) -> None:
    error = refusal(tool.name, {**GOOD[tool.name], extra: True})
    assert f'"{extra}" is refused and grants nothing' in error.message
    assert error.details["argument"] == extra


@pytest.mark.covers("TOOL-2")
@pytest.mark.parametrize(
    ("name", "arguments", "argument"),
    [
        ("read", None, "workspace_id"),
        ("read", {"workspace_id": "demo"}, "path"),
        ("read", {"workspace_id": "demo", "path": 1}, "path"),
        ("read", {"workspace_id": "demo", "path": None}, "path"),
        ("read", {"workspace_id": "demo", "path": "\ud800"}, "path"),
        ("read", {"workspace_id": "demo", "path": "a", "offset": "1"}, "offset"),
        ("read", {"workspace_id": "demo", "path": "a", "offset": 1.0}, "offset"),
        ("read", {"workspace_id": "demo", "path": "a", "offset": True}, "offset"),
        ("read", {"workspace_id": "demo", "path": "a", "offset": 0}, "offset"),
        ("read", {"workspace_id": "demo", "path": "a", "limit": None}, "limit"),
        ("find", {"workspace_id": "demo", "pattern": "*", "limit": 1001}, "limit"),
        ("find", {"workspace_id": "demo", "pattern": ["*"]}, "pattern"),
        ("exec_command", {"workspace_id": "demo", "command": "true"}, "command"),
        ("exec_command", {"workspace_id": "demo", "command": ["echo", "\udfff"]}, "command"),
        (
            "apply_patch",
            {"workspace_id": "demo", "patch": "p", "expected_versions": {"\ud800": "absent"}},
            "expected_versions",
        ),
        ("exec_command", {"workspace_id": "demo", "command": ["true", 1]}, "command.1"),
        ("exec_command", {"workspace_id": "demo", "command": ["true"], "tty": "yes"}, "tty"),
        ("exec_command", {"workspace_id": "demo", "command": ["true"], "tty": 1}, "tty"),
        ("exec_command", {"workspace_id": "demo", "command": ["true"], "request_key": ""}, "request_key"),
        ("read_process", {"process_id": "p", "cursor": -1}, "cursor"),
        ("read_process", {"process_id": "p", "wait_ms": 60_001}, "wait_ms"),
        ("read_process", {"process_id": "p", "encoding": "latin-1"}, "encoding"),
        ("read_process", {"process_id": "p", "max_bytes": 0}, "max_bytes"),
        ("process_status", {"process_id": "p", "wait_ms": -1}, "wait_ms"),
        ("process_resize", {"process_id": "p", "rows": 0, "cols": 80}, "rows"),
        ("process_resize", {"process_id": "p", "rows": 24, "cols": 1001}, "cols"),
        ("write_stdin", {"process_id": "p"}, "data"),
        ("apply_patch", {"workspace_id": "demo", "patch": "p", "expected_versions": {"a": 1}}, "expected_versions.a"),
        ("grep", {"workspace_id": "demo", "pattern": "p", "context": 21}, "context"),
        ("approval_create", {"tool": "read", "arguments": {}}, "tool"),
        ("approval_create", {"tool": "exec_command", "arguments": []}, "arguments"),
        ("approval_resolve", {"approval_id": "a", "decision": "yes"}, "decision"),
        ("steer_complete", {"work_id": "w", "intent_id": "i", "outcome": "cancelled"}, "outcome"),
    ],
)
def test_an_argument_that_does_not_fit_is_named(name: str, arguments: Mapping[str, Any] | None, argument: str) -> None:
    error = refusal(name, arguments)
    assert f'argument "{argument}"' in error.message
    assert error.details["argument"] == argument


def _nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


WRONG_A_LOT: dict[str, tuple[str, dict[str, Any]]] = {
    "elements": ("exec_command", {"workspace_id": "demo", "command": [1] * 100_000}),
    "entries": (
        "apply_patch",
        {"workspace_id": "demo", "patch": "p", "expected_versions": {f"{n}": n for n in range(100_000)}},
    ),
    "one long entry": (
        "apply_patch",
        {"workspace_id": "demo", "patch": "p", "expected_versions": {"x" * 1_000_000: 1}},
    ),
    "names": ("read", {"workspace_id": "demo", "path": "a", **{f"{n}": n for n in range(100_000)}}),
    "one long name": ("read", {"workspace_id": "demo", "path": "a", "x" * 1_000_000: 1}),
    "a name that is no text": ("read", {"workspace_id": "demo", "path": "a", "\ud800": 1}),
    "depth in an unknown one": ("read", {"workspace_id": "demo", "path": "a", "x": _nested(100_000)}),
    "depth in a known one": ("exec_command", {"workspace_id": "demo", "command": _nested(100_000)}),
}


@pytest.mark.covers("TOOL-2", "ENV-4")
@pytest.mark.parametrize("wrong", sorted(WRONG_A_LOT))
def test_an_error_stays_small_however_much_is_wrong(wrong: str) -> None:
    """What is complained of is in memory at once, several hundred bytes each: bounded, or one request fills it."""
    name, arguments = WRONG_A_LOT[wrong]
    error = refusal(name, arguments)
    assert len(error.details.get("arguments", [])) <= MAX_NAMED + len(BY_NAME[name].arguments.model_fields)
    assert len(json.dumps(error.to_structured())) < 10_000


@pytest.mark.covers("TOOL-2")
@pytest.mark.parametrize(("name", "key"), [("exec_command", "request_key"), ("apply_patch", "operation_key")])
def test_the_longest_key_of_the_schema_is_one_that_is_taken(name: str, key: str) -> None:
    most = BY_NAME[name].input_schema()["properties"][key]["maxLength"]
    check_key(key, "x" * most)
    refusal(name, {**GOOD[name], key: "x" * (most + 1)})


@pytest.mark.covers("APPR-2", "ENV-4")
@pytest.mark.parametrize(
    ("tool", "arguments", "argument"),
    [
        ("exec_command", {}, "workspace_id"),
        ("exec_command", {"workspace_id": "demo", "command": "true"}, "command"),
        ("exec_command", {"workspace_id": "demo", "command": ["true"], "tty": 1}, "tty"),
        ("exec_command", {"workspace_id": "demo", "command": ["true"], "tty": None}, "tty"),
        ("exec_command", {"workspace_id": "demo", "command": ["true"], "network": True}, "network"),
        ("exec_command", {"workspace_id": "demo", "patch": "p"}, "command"),
        ("apply_patch", {"workspace_id": "demo", "patch": "p", "approved": True}, "approved"),
        ("apply_patch", {"workspace_id": "demo", "patch": "p", "expected_versions": {"a": 1}}, "expected_versions.a"),
        ("apply_patch", {"workspace_id": "demo", "patch": "p", "check_only": True}, "check_only"),
    ],
)
async def test_the_arguments_of_a_call_to_hold_are_checked_as_the_calls_own(
    tool: str, arguments: dict[str, Any], argument: str, server: ToolServer, application: FakeApplication
) -> None:
    async with Client(server.sdk) as client:
        result = await client.call_tool("approval_create", {"tool": tool, "arguments": arguments})
    assert result.is_error
    assert result.structured_content is not None
    error = result.structured_content["error"]
    assert (error["code"], error["details"]["argument"]) == ("INVALID_ARGUMENT", argument)
    assert application.calls == []


def test_all_bad_arguments_are_listed_when_there_are_several() -> None:
    error = refusal("read", {"path": 1, "cwd": "/"})
    assert error.details == {"argument": "workspace_id", "arguments": ["workspace_id", "path", "cwd"]}


@pytest.mark.covers("TOOL-2", "TOOL-4")
async def test_a_tool_error_carries_code_message_retryable_and_details(
    server: ToolServer, application: FakeApplication
) -> None:
    application.fault = ToolError(
        Code.WORKSPACE_BUSY,
        "busy: wait",
        retryable=True,
        details={"holder": {"kind": "process", "id": "proc_9"}},
        operation_id="op_1",
    )
    async with Client(server.sdk) as client:
        result = await client.call_tool("find", {"workspace_id": "demo", "pattern": "*"})
        with pytest.raises(MCPError) as unknown:
            await client.call_tool("environment_select", {})
    assert result.is_error
    assert result.structured_content == {
        "error": {
            "code": "WORKSPACE_BUSY",
            "message": "busy: wait",
            "retryable": True,
            "details": {"holder": {"kind": "process", "id": "proc_9"}},
            "operation_id": "op_1",
        }
    }
    (content,) = result.content
    assert content.type == "text"
    assert content.text == "busy: wait"
    assert unknown.value.error.code == -32602


@pytest.mark.covers("TOOL-2")
async def test_an_unexpected_fault_shows_an_id_and_the_log_has_the_rest(
    server: ToolServer, application: FakeApplication, log: io.StringIO
) -> None:
    application.fault = OSError(5, "Input/output error", "/srv/secret/place")
    async with Client(server.sdk) as client:
        result = await client.call_tool("find", {"workspace_id": "demo", "pattern": "*"})
    assert result.structured_content is not None
    error = result.structured_content["error"]
    assert (error["code"], set(error["details"])) == ("INTERNAL", {"error_id"})
    assert "/srv" not in json.dumps(result.structured_content)
    (logged,) = [line for line in lines(log) if line["event"] == "tool_failed"]
    assert logged["error_id"] == error["details"]["error_id"]
    assert "/srv/secret/place" in logged["exception"]
    assert (logged["peer"], logged["tool"]) == ("here", "find")


# --- callers that go away ---------------------------------------------------------------------------------------------
CHANGING = sorted(tool.name for tool in CATALOGUE if not tool.hints.read_only)


@pytest.mark.covers("NETIF-3", "APPR-6")
@pytest.mark.parametrize("name", CHANGING)
async def test_a_change_is_seen_to_its_end_whoever_stops_waiting(
    name: str, server: ToolServer, application: FakeApplication, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes after the change itself, such as the audit line and the erasure of a denied request, is part of it."""
    begun, go_on, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()
    tool = BY_NAME[name]

    async def slow(app: Any, arguments: Any) -> Any:
        begun.set()
        await go_on.wait()
        answer = await tool.call(app, arguments)
        ended.set()
        return answer

    monkeypatch.setitem(server._tools, name, replace(tool, call=slow))
    calling = asyncio.ensure_future(server.direct(name, GOOD[name], None))
    await asyncio.wait_for(begun.wait(), 30)
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    assert not application.calls
    go_on.set()
    await asyncio.wait_for(ended.wait(), 30)
    assert len(application.calls) == 1


async def test_a_fault_of_a_call_that_nobody_waits_for_is_logged(
    server: ToolServer, application: FakeApplication, log: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def broken(app: Any, arguments: Any) -> Any:
        begun.set()
        await go_on.wait()
        raise RuntimeError("inside")

    monkeypatch.setitem(server._tools, "work_open", replace(BY_NAME["work_open"], call=broken))
    calling = asyncio.ensure_future(server.direct("work_open", GOOD["work_open"], None))
    await asyncio.wait_for(begun.wait(), 30)
    calling.cancel()
    await asyncio.wait({calling})
    go_on.set()
    async with asyncio.timeout(30):
        while not (faults := [line for line in lines(log) if line["event"] == "tool_failed"]):
            await asyncio.to_thread(os.sched_yield)
    assert faults[0]["tool"] == "work_open"
    assert "inside" in faults[0]["exception"]
