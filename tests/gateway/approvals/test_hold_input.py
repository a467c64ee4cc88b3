"""Holds as input requests of protocol 2026-07-28, through the real program and the SDK's own client.

The user of a client is asked, and whoever decides does so elsewhere: what a client answers grants nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import httpx2
import mcp.types as types
import pytest
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client

from tests.gateway.transport.serving import WAIT_S, modern_call, request
from tests.program import Program, Refused, running_program

pytestmark = [pytest.mark.timeout(90), pytest.mark.covers("APPR-1", "APPR-4", "APPR-5", "NETIF-1", "TOOL-2")]
PATCH = "*** Begin Patch\n*** Add File: made\n+x\n*** End Patch\n"
CALLS: dict[str, dict[str, Any]] = {
    "exec_command": {"workspace_id": "demo", "command": ["sh", "-c", "echo ran >> ran"]},
    "apply_patch": {"workspace_id": "demo", "patch": PATCH},
}
Action = Literal["accept", "decline", "cancel"]
ACTIONS: tuple[Action, ...] = ("accept", "decline", "cancel")


@pytest.fixture
def program() -> Iterator[Program]:
    with running_program(approvals="confirm") as running:
        yield running


@dataclass
class User:
    """Answers `action`, after `decide` was done with the hold's id. `asked`: every request so far."""

    action: Action = "accept"
    decide: Callable[[str], Awaitable[object]] | None = None
    asked: list[types.ElicitRequestParams] = field(default_factory=list)

    async def __call__(self, context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        self.asked.append(params)
        assert isinstance(params, types.ElicitRequestFormParams)
        assert "grants nothing" in params.message
        assert params.requested_schema == {"type": "object", "properties": {}}
        if self.decide is not None:
            await self.decide(params.message.split("hold ")[1].split(".")[0])
        return types.ElicitResult(action=self.action, content={} if self.action == "accept" else None)


@contextlib.asynccontextmanager
async def client(program: Program, user: User | None, mode: str = "2026-07-28") -> AsyncIterator[Client]:
    transport = httpx2.AsyncHTTPTransport(uds=str(program.folder / "mcp.sock"))
    async with (
        httpx2.AsyncClient(transport=transport, timeout=WAIT_S) as web,
        Client(
            streamable_http_client("http://localhost/mcp", http_client=web), mode=mode, elicitation_callback=user
        ) as made,
    ):
        yield made


def decision(program: Program, verdict: str) -> Callable[[str], Awaitable[object]]:
    """Of somebody else, over a connection of their own."""
    return lambda hold: asyncio.to_thread(program.call, "approval_resolve", approval_id=hold, decision=verdict)


def error_of(result: types.CallToolResult) -> dict[str, Any]:
    assert result.is_error
    error: dict[str, Any] = result.structured_content["error"]
    return error


async def traces(program: Program) -> dict[str, str]:
    """What the calls left in the workspace."""
    return await asyncio.to_thread(lambda: {path.name: path.read_text() for path in program.workspace.iterdir()})


async def test_a_call_goes_on_once_its_hold_was_granted_by_whoever_decides(program: Program) -> None:
    user = User(decide=decision(program, "grant"))
    work_id = (await asyncio.to_thread(program.call, "work_open", workspace_id="demo"))["work_id"]
    async with client(program, user) as agent:
        ran = await agent.call_tool("exec_command", {**CALLS["exec_command"], "work_id": work_id})
        assert not ran.is_error
        assert ran.structured_content.keys() == {"process_id", "dispatch_status", "coordination"}
        await asyncio.to_thread(program.ended, ran.structured_content["process_id"])
        patched = await agent.call_tool("apply_patch", CALLS["apply_patch"])
        assert not patched.is_error
        assert (patched.structured_content["status"], patched.structured_content["files"]) == ("applied", ["made"])
    assert len(user.asked) == 2
    assert await traces(program) == {"made": "x\n", "ran": "ran\n"}


async def test_no_answer_of_a_client_grants_anything(program: Program) -> None:
    user = User()
    async with client(program, user) as agent:
        for name, arguments in CALLS.items():
            holds = set()
            for user.action in ACTIONS:
                error = error_of(await agent.call_tool(name, arguments))
                assert (error["code"], error["details"]["state"]) == ("APPROVAL_REQUIRED", "pending")
                holds.add(error["approval_id"])
            (hold,) = holds  # the same one, and as pending as before
            with pytest.raises(Refused) as refused:
                await asyncio.to_thread(program.call, "operation_resume", approval_id=hold)
            assert refused.value.code == "APPROVAL_CONFLICT"
    assert len(user.asked) == len(CALLS) * len(ACTIONS)
    assert await traces(program) == {}


async def test_a_denied_hold_ends_the_call(program: Program) -> None:
    user = User(decide=decision(program, "deny"))
    async with client(program, user) as agent:
        error = error_of(await agent.call_tool("exec_command", CALLS["exec_command"]))
    assert (error["code"], error["details"]["state"]) == ("APPROVAL_CONFLICT", "denied")
    assert await traces(program) == {}


async def test_who_cannot_be_asked_gets_the_error(program: Program) -> None:
    user = User()
    for one, mode in ((user, "legacy"), (None, "2026-07-28")):  # of the older protocol, or without the capability
        async with client(program, one, mode) as agent:
            for name, arguments in CALLS.items():
                assert error_of(await agent.call_tool(name, arguments))["code"] == "APPROVAL_REQUIRED"
    assert user.asked == []
    async with client(program, user) as agent:
        preview = await agent.call_tool("apply_patch", {**CALLS["apply_patch"], "check_only": True})
        assert preview.structured_content["status"] == "checked"
    assert user.asked == [], "a preview is not held"


def repeated(program: Program, name: str, arguments: dict[str, Any], capability: Any = None, **more: Any) -> Any:
    """The result of a raw call with more parameters than arguments."""
    body, headers = modern_call(name, arguments)
    message = json.loads(body)
    message["params"] |= more
    capabilities = {} if capability is None else {"elicitation": capability}
    message["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"] = capabilities
    return request(program.folder / "mcp.sock", "POST", "/mcp", json.dumps(message).encode(), headers).json()


ACCEPTED = {"approval": {"action": "accept", "content": {}}}


def test_a_repeated_call_goes_on_with_no_hold_but_its_own(program: Program) -> None:
    name, arguments = "exec_command", CALLS["exec_command"]
    asked = repeated(program, name, arguments, {})["result"]
    assert asked["resultType"] == "input_required"
    hold = asked["requestState"]
    program.call("approval_resolve", approval_id=hold, decision="grant")

    def code(arguments: dict[str, Any], **more: Any) -> str:
        result = repeated(program, name, arguments, {}, **more)["result"]
        found: str = result["structuredContent"]["error"]["code"]
        return found

    other = {**arguments, "command": ["sh", "-c", "echo other >> ran"]}
    assert code(other, inputResponses=ACCEPTED, requestState=hold) == "INVALID_ARGUMENT"
    assert code(arguments, inputResponses=ACCEPTED, requestState="apr_none") == "APPROVAL_NOT_FOUND"
    # Neither an answer without the state nor one that is no `accept` goes on, and nobody is asked for ever.
    assert code(arguments, inputResponses=ACCEPTED) == "APPROVAL_REQUIRED"
    declined = {"approval": {"action": "decline"}}
    assert code(arguments, inputResponses=declined, requestState=hold) == "APPROVAL_REQUIRED"
    assert code(arguments, inputResponses={"else": ACCEPTED["approval"]}, requestState=hold) == "APPROVAL_REQUIRED"
    assert not (program.workspace / "ran").exists()
    # The control: with its own hold it does, and the same once more has the same result.
    results = [
        repeated(program, name, arguments, {}, inputResponses=ACCEPTED, requestState=hold)["result"] for _ in range(2)
    ]
    assert results[0]["structuredContent"] == results[1]["structuredContent"]
    program.ended(results[0]["structuredContent"]["process_id"])
    assert (program.workspace / "ran").read_text() == "ran\n"


def test_only_a_client_that_declares_forms_is_asked(program: Program) -> None:
    for capability, kind in (
        ({}, "input_required"),
        ({"form": {}}, "input_required"),
        ({"form": {}, "url": {}}, "input_required"),
        ({"url": {}}, "complete"),
        (None, "complete"),
    ):
        for name, arguments in CALLS.items():
            assert repeated(program, name, arguments, capability)["result"]["resultType"] == kind, capability
