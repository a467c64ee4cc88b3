"""The short way of a call in a session of protocol 2025-11-25 gives the SDK's answers, and ends as the SDK's do."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import math
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import anyio
import httpx2
import pytest
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.types import Receive, Scope, Send

from gateway import logging as gateway_logging
from gateway.errors import Code, ToolError
from gateway.http.app import SESSION_IDLE_S, HttpApp
from gateway.http.session_calls import VERSION
from gateway.mcp.catalogue import listed
from gateway.mcp.server import ToolServer
from gateway.metrics import Metrics
from tests.fakes.application import ALL_TOOLS, FakeApplication
from tests.gateway.transport.test_tools import GOOD

WAIT_S = 30.0
Headers = dict[str, str]
ACCEPT = "application/json, text/event-stream"
POLL = {"process_id": "p", "wait_ms": 60_000}
READ = {"workspace_id": "demo", "path": "hello.txt"}


@dataclass
class Session:
    """One session over an ASGI application, initialized."""

    client: httpx2.AsyncClient
    headers: Headers = field(default_factory=lambda: {"accept": ACCEPT, "content-type": "application/json"})
    next_id: int = 100

    async def post(self, message: Any, headers: Headers | None = None) -> httpx2.Response:
        return await self.client.post("/mcp", content=json.dumps(message).encode(), headers=headers or self.headers)

    async def open(self, version: str = VERSION) -> None:
        about = {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "t", "version": "0"}}
        opened = await self.post({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": about})
        assert opened.status_code == 200
        self.headers |= {"mcp-session-id": opened.headers["mcp-session-id"], "mcp-protocol-version": version}
        told = await self.post({"jsonrpc": "2.0", "method": "notifications/initialized"})
        assert told.status_code == 202

    def message(self, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        self.next_id += 1
        return {
            "jsonrpc": "2.0",
            "id": self.next_id,
            "method": "tools/call",
            "params": {"name": tool, "arguments": arguments},
        }

    async def call(self, tool: str, arguments: dict[str, Any]) -> httpx2.Response:
        return await self.post(self.message(tool, arguments))


@dataclass
class Ways:
    """`passed`: the methods of what went on to the SDK on our way."""

    application: FakeApplication
    app: HttpApp
    passed: list[str]
    ours: Session
    sdk: Session


@contextlib.asynccontextmanager
async def both_ways(version: str = VERSION) -> AsyncIterator[Ways]:
    """Two sessions, each after its first call. No fixture: what the session managers run must end in its own task."""
    application = FakeApplication({"hello.txt": "hällo 100% \u2028 \U0001f600\n"}, tools=ALL_TOOLS)
    metrics = Metrics()
    log = gateway_logging.configure("error", stream=io.StringIO())
    server = ToolServer(application, listed(ALL_TOOLS), version="9%b", metrics=metrics, log=log, local_peer="here")
    app = HttpApp(application, server, metrics, "0", log)
    plain = StreamableHTTPSessionManager(server.sdk, json_response=True)
    passed: list[str] = []
    inner = app._sessions.handle_request

    async def watched(scope: Scope, receive: Receive, send: Send) -> None:
        passed.append(scope["method"])
        await inner(scope, receive, send)

    app._sessions.handle_request = watched  # type: ignore[method-assign]
    async with contextlib.AsyncExitStack() as stack:
        for running in (app.running(), plain.run()):
            await stack.enter_async_context(running)
        ours, sdk = [
            Session(
                await stack.enter_async_context(
                    httpx2.AsyncClient(transport=httpx2.ASGITransport(app=one), base_url="http://localhost")
                )
            )
            for one in (app, plain.handle_request)
        ]
        for session in (ours, sdk):
            await session.open(version)
            assert (await session.call("workspace_info", {})).status_code == 200
        passed.clear()
        yield Ways(application, app, passed, ours, sdk)


def seen(answer: httpx2.Response, session: Session) -> tuple[int, str, str | None, Any]:
    """What is to be equal; an answer names its own session."""
    named = answer.headers.get("mcp-session-id")
    kind = answer.headers.get("content-type", "")
    where = named and ("its own" if named == session.headers["mcp-session-id"] else "another")
    body = answer.json() if answer.content and kind == "application/json" else answer.text
    return answer.status_code, kind, where, body


@pytest.mark.covers("NETIF-1", "TOOL-2")
@pytest.mark.parametrize("name", sorted(GOOD))
async def test_results_of_a_session_are_the_same(name: str) -> None:
    async with both_ways() as ways:
        answers = [seen(await one.call(name, GOOD[name]), one) for one in (ways.ours, ways.sdk)]
        assert answers[0] == answers[1]
        assert answers[0][0] == 200
        assert ways.passed == []


@pytest.mark.covers("TOOL-2")
async def test_tool_errors_of_a_session_are_the_same() -> None:
    busy = ToolError(Code.WORKSPACE_BUSY, "busy", retryable=True, details={"holder": {"id": "\u20ac"}})
    async with both_ways() as ways:
        for name, arguments in (
            ("read", {"workspace_id": "demo", "path": "n\u00f6pe %d"}),
            ("read", {"workspace_id": "demo"}),
            ("exec_command", {"workspace_id": "demo", "command": ["true"], "approved": True}),
        ):
            answers = [seen(await one.call(name, arguments), one) for one in (ways.ours, ways.sdk)]
            assert answers[0] == answers[1]
            assert answers[0][3]["result"]["isError"] is True
        ways.application.fault = busy
        answers = [seen(await one.call("read", READ), one) for one in (ways.ours, ways.sdk)]
        assert answers[0] == answers[1]
        assert ways.passed == []


Change = Callable[[dict[str, Any], Headers], tuple[Any, Headers]]


def _message(**changes: Any) -> Change:
    return lambda message, headers: ({**message, **changes}, headers)


def _params(**changes: Any) -> Change:
    return lambda message, headers: ({**message, "params": {**message["params"], **changes}}, headers)


def _header(name: str, value: str | None) -> Change:
    def change(message: dict[str, Any], headers: Headers) -> tuple[Any, Headers]:
        rest = {k: v for k, v in headers.items() if k != name}
        return message, rest if value is None else {**rest, name: value}

    return change


UNUSUAL: dict[str, Change] = {
    "another method": _message(method="tools/list"),
    "an unknown method": _message(method="tools/frob"),
    "a batch": lambda message, headers: ([message], headers),
    "no object": lambda message, headers: (7, headers),
    "jsonrpc 1.0": _message(jsonrpc="1.0"),
    "a null id": _message(id=None),
    "a boolean id": _message(id=True),
    "a fractional id": _message(id=1.5),
    "an additional member": _message(more=1),
    "an unknown tool": _params(name="frob"),
    "a name that is no text": _params(name=1),
    "arguments null": _params(arguments=None),
    "arguments as a list": _params(arguments=[]),
    "an additional parameter": _params(task={}),
    "meta that is none": _params(_meta=[]),
    "meta of a client's own": _params(_meta={"example/trace": "t"}),
    "a progress token that is none": _params(_meta={"progressToken": True}),
    "no protocol version": _header("mcp-protocol-version", None),
    "an older protocol version": _header("mcp-protocol-version", "2025-06-18"),
    "an unknown protocol version": _header("mcp-protocol-version", "2020-01-01"),
    "no session": _header("mcp-session-id", None),
    "an unknown session": _header("mcp-session-id", "0" * 32),
    "another content type": _header("content-type", "text/plain"),
    "a content type with a charset": _header("content-type", "application/json; charset=utf-8"),
    "accepts only html": _header("accept", "text/html"),
    "accepts anything": _header("accept", "*/*"),
}


@pytest.mark.covers("TOOL-2", "NETIF-1")
@pytest.mark.parametrize("unusual", sorted(UNUSUAL))
async def test_an_unusual_request_of_a_session_gets_the_sdk_s_own_answer(unusual: str) -> None:
    async with both_ways() as ways:
        answers = []
        for one in (ways.ours, ways.sdk):
            message, headers = UNUSUAL[unusual](one.message("read", READ), one.headers)
            answers.append(seen(await one.post(message, headers), one))
        assert answers[0] == answers[1]
        assert ways.passed == ["POST"]


@pytest.mark.parametrize("meta", [{}, {"progressToken": "t"}, {"progressToken": 7}])
async def test_a_progress_token_is_nothing_unusual(meta: dict[str, Any]) -> None:
    async with both_ways() as ways:
        answers = []
        for one in (ways.ours, ways.sdk):
            message = one.message("read", READ)
            message["params"]["_meta"] = meta
            answers.append(seen(await one.post(message), one))
        assert answers[0] == answers[1]
        assert ways.passed == []


@pytest.mark.parametrize("version", ["2024-11-05", "2025-06-18"])
async def test_a_session_of_another_version_stays_with_the_sdk(version: str) -> None:
    async with both_ways(version) as ways:
        answers = []
        for one in (ways.ours, ways.sdk):
            answers.append(seen(await one.call("read", READ), one))
            # What a client says of its version later changes nothing: the session's own counts.
            answers.append(
                seen(await one.post(one.message("read", READ), {**one.headers, "mcp-protocol-version": VERSION}), one)
            )
        assert answers[:2] == answers[2:]
        assert ways.passed == ["POST", "POST"]


async def test_a_session_that_is_not_initialized_stays_with_the_sdk() -> None:
    async with both_ways() as ways:
        answers = []
        for one in (ways.ours, ways.sdk):
            fresh = Session(one.client)
            about = {"protocolVersion": VERSION, "capabilities": {}, "clientInfo": {"name": "t", "version": "0"}}
            opened = await fresh.post({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": about})
            fresh.headers |= {"mcp-session-id": opened.headers["mcp-session-id"], "mcp-protocol-version": VERSION}
            answers.append([seen(await fresh.call("read", READ), fresh) for _ in range(2)])
        assert answers[0] == answers[1]


async def waiting(ways: Ways, session: Session) -> tuple[asyncio.Task[httpx2.Response], int]:
    """A call that is under way and does not end by itself, and its id."""
    ways.application.waiting.clear()
    message = session.message("read_process", POLL)
    task = asyncio.create_task(session.post(message))
    await asyncio.wait_for(ways.application.waiting.wait(), WAIT_S)
    return task, message["id"]


@pytest.mark.covers("NETIF-1")
async def test_a_cancelled_call_is_answered_as_the_sdk_answers_it() -> None:
    async with both_ways() as ways:
        answers = []
        for one in (ways.ours, ways.sdk):
            task, request_id = await waiting(ways, one)
            other = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": request_id + 7}}
            assert (await one.post(other)).status_code == 202
            assert not task.done()
            mine = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": request_id}}
            assert (await one.post(mine)).status_code == 202
            answer = await asyncio.wait_for(task, WAIT_S)
            assert answer.json()["id"] == request_id
            answers.append((answer.status_code, answer.json()["error"]))
            assert (await one.call("read", READ)).status_code == 200
        assert answers[0] == answers[1]
        assert ways.passed == ["POST", "POST"]


@pytest.mark.covers("NETIF-1")
async def test_a_call_of_a_session_that_is_deleted_is_answered_as_the_sdk_answers_it() -> None:
    async with both_ways() as ways:
        answers = []
        for one in (ways.ours, ways.sdk):
            task, _ = await waiting(ways, one)
            assert (await one.client.delete("/mcp", headers=one.headers)).status_code == 200
            answers.append(seen(await asyncio.wait_for(task, WAIT_S), one))
            answers.append(seen(await one.call("read", READ), one))
        assert answers[:2] == answers[2:]
        assert ways.passed == ["DELETE", "POST"]


async def test_a_second_call_under_an_id_in_use_is_the_sdk_s() -> None:
    async with both_ways() as ways:
        task, request_id = await waiting(ways, ways.ours)
        again = ways.ours.message("read", READ) | {"id": request_id}
        assert (await ways.ours.post(again)).json()["id"] == request_id
        assert ways.passed == ["POST"]
        ways.application.gate.set()
        assert "result" in (await asyncio.wait_for(task, WAIT_S)).json()


async def test_a_call_puts_off_the_end_of_its_idle_session() -> None:
    async with both_ways() as ways:
        transport = ways.app._sessions._server_instances[ways.ours.headers["mcp-session-id"]]
        assert transport.idle_scope is not None
        transport.idle_scope.deadline = soon = anyio.current_time() + WAIT_S
        await ways.ours.call("read", READ)
        assert transport.idle_scope.deadline > soon
        assert transport.idle_scope.deadline <= anyio.current_time() + SESSION_IDLE_S
        # Without a deadline a request of the SDK's is under way, such as the client's open stream.
        transport.idle_scope.deadline = math.inf
        await ways.ours.call("read", READ)
        assert transport.idle_scope.deadline == math.inf
        assert ways.passed == []


async def test_a_session_whose_time_is_over_is_the_sdk_s_to_refuse() -> None:
    async with both_ways() as ways:
        transport = ways.app._sessions._server_instances[ways.ours.headers["mcp-session-id"]]
        assert transport.idle_scope is not None
        transport.idle_scope.cancel()
        assert (await ways.ours.call("read", READ)).status_code == 404
