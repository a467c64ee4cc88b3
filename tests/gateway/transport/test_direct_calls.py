"""The short way of a tools/call gives the SDK's answers: the same requests go to both, and the answers are compared."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from typing import Any

import httpx2
import pytest
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

from gateway import logging as gateway_logging
from gateway.errors import Code, ToolError
from gateway.http.app import HttpApp
from gateway.mcp.catalogue import listed
from gateway.mcp.server import ToolServer
from gateway.metrics import Metrics
from tests.fakes.application import ALL_TOOLS, FakeApplication
from tests.gateway.transport.serving import modern_call
from tests.gateway.transport.test_tools import GOOD

Answer = tuple[int, str, Any]
META = "io.modelcontextprotocol/"


@dataclass
class Ways:
    application: FakeApplication
    ours: httpx2.AsyncClient
    sdk: httpx2.AsyncClient

    async def both(self, method: str, body: bytes, headers: dict[str, str]) -> tuple[Answer, Answer]:
        return await _ask(self.ours, method, body, headers), await _ask(self.sdk, method, body, headers)


async def _ask(
    client: httpx2.AsyncClient, method: str, body: bytes, headers: dict[str, str] | list[tuple[str, str]]
) -> Answer:
    reply = await client.request(method, "/mcp", content=body, headers=headers)
    kind = reply.headers.get("content-type", "")
    return reply.status_code, kind, reply.json() if kind == "application/json" else reply.text


@contextlib.asynccontextmanager
async def both_ways() -> AsyncIterator[Ways]:
    """No fixture: what the SDK's session manager runs must end in the task that began it."""
    application = FakeApplication({"hello.txt": "hällo 100% \u2028 \U0001f600\n"}, tools=ALL_TOOLS)
    metrics = Metrics()
    log = gateway_logging.configure("error", stream=io.StringIO())
    server = ToolServer(application, listed(ALL_TOOLS), version="9%b", metrics=metrics, log=log, local_peer="here")
    app = HttpApp(application, server, metrics, "0", log)
    plain = StreamableHTTPSessionManager(server.sdk, json_response=True)
    async with contextlib.AsyncExitStack() as stack:
        for running in (app.running(), plain.run()):
            await stack.enter_async_context(running)
        clients = [
            await stack.enter_async_context(
                httpx2.AsyncClient(transport=httpx2.ASGITransport(app=one), base_url="http://localhost")
            )
            for one in (app, plain.handle_request)
        ]
        yield Ways(application, *clients)


@pytest.mark.covers("NETIF-1", "TOOL-2")
@pytest.mark.parametrize("name", sorted(GOOD))
@pytest.mark.parametrize("request_id", [0, 7, "a %s \u00e4", "1"])
async def test_results_are_the_same(name: str, request_id: int | str) -> None:
    body, headers = modern_call(name, GOOD[name], request_id)
    async with both_ways() as ways:
        ours, sdk = await ways.both("POST", body, headers)
    assert ours == sdk
    assert ours[0] == 200
    assert ours[2]["id"] == request_id


@pytest.mark.covers("TOOL-2")
async def test_tool_errors_and_refused_arguments_are_the_same() -> None:
    find = modern_call("find", {"workspace_id": "demo", "pattern": "*"})
    busy = ToolError(Code.WORKSPACE_BUSY, "busy", retryable=True, details={"holder": {"id": "\u20ac"}})
    async with both_ways() as ways:
        for name, arguments in (
            ("read", {"workspace_id": "demo", "path": "n\u00f6pe %d"}),
            ("read", {"workspace_id": "demo"}),
            ("read", {"workspace_id": "demo", "path": "\ud800"}),
            ("exec_command", {"workspace_id": "demo", "command": ["true"], "approved": True}),
        ):
            ours, sdk = await ways.both("POST", *modern_call(name, arguments))
            assert ours == sdk
            assert ours[2]["result"]["isError"] is True
        ways.application.fault = busy
        ours, sdk = await ways.both("POST", *find)
        assert ours == sdk
        ways.application.fault = RuntimeError("inside")
        for answer in await ways.both("POST", *find):
            error = answer[2]["result"]["structuredContent"]["error"]
            assert error["code"] == "INTERNAL"
            assert "inside" not in json.dumps(answer[2])


@dataclass(frozen=True)
class Call:
    method: str
    headers: dict[str, str]
    message: Any
    raw: bytes | None = None


def _header(**changes: str | None) -> Callable[[Call], Call]:
    def change(call: Call) -> Call:
        named = {name.replace("_", "-"): value for name, value in changes.items()}
        kept = {k: v for k, v in call.headers.items() if k.lower() not in {n.lower() for n in named}}
        return replace(call, headers={**kept, **{k: v for k, v in named.items() if v is not None}})

    return change


def _message(**changes: Any) -> Callable[[Call], Call]:
    return lambda call: replace(call, message={**call.message, **changes})


def _params(**changes: Any) -> Callable[[Call], Call]:
    return lambda call: replace(call, message={**call.message, "params": {**call.message["params"], **changes}})


def _meta(**changes: Any) -> Callable[[Call], Call]:
    def change(call: Call) -> Call:
        params = call.message["params"]
        meta = {**params["_meta"], **{META + key: value for key, value in changes.items()}}
        return replace(call, message={**call.message, "params": {**params, "_meta": meta}})

    return change


def _without(name: str) -> Callable[[Call], Call]:
    return lambda call: replace(call, message={k: v for k, v in call.message.items() if k != name})


UNUSUAL: dict[str, Callable[[Call], Call]] = {
    "a get": lambda call: replace(call, method="GET"),
    "a delete": lambda call: replace(call, method="DELETE"),
    "no version header": _header(MCP_Protocol_Version=None),
    "an unknown version": _header(MCP_Protocol_Version="2099-01-01"),
    "the older era": _header(MCP_Protocol_Version="2025-11-25"),
    "no method header": _header(Mcp_Method=None),
    "another method header": _header(Mcp_Method="tools/list"),
    "no name header": _header(Mcp_Name=None),
    "another name header": _header(Mcp_Name="find"),
    "an encoded name header": _header(Mcp_Name="=?base64?cmVhZA==?="),
    "a parameter header": _header(Mcp_Param_Path="elsewhere"),
    "another content type": _header(Content_Type="text/plain"),
    "a content type with a charset": _header(Content_Type="application/json; charset=utf-8"),
    "accepts only html": _header(Accept="text/html"),
    "accepts what only begins like json": _header(Accept="application/jsonx"),
    "accepts what only ends like json": _header(Accept="text/application/json"),
    "accepts anything": _header(Accept="*/*"),
    "not json": lambda call: replace(call, raw=b"{not json"),
    "nothing": lambda call: replace(call, raw=b""),
    "deeply nested": lambda call: replace(call, raw=b"[" * 100_000),
    "a batch": lambda call: replace(call, message=[call.message]),
    "a notification": _without("id"),
    "no params": _without("params"),
    "no jsonrpc": _without("jsonrpc"),
    "jsonrpc 1.0": _message(jsonrpc="1.0"),
    "a null id": _message(id=None),
    "a boolean id": _message(id=True),
    "a fractional id": _message(id=1.5),
    "an additional member": _message(more=1),
    "another method": _message(method="tools/list"),
    "params as a list": _message(params=[]),
    "an unknown tool": lambda call: _header(Mcp_Name="frob")(_params(name="frob")(call)),
    "a name that is no text": _params(name=1),
    "arguments null": _params(arguments=None),
    "arguments as a list": _params(arguments=[]),
    "an additional parameter": _params(inputResponses={}),
    "no envelope": _params(_meta={}),
    "an envelope that is none": _params(_meta=[]),
    "another version in the envelope": _meta(protocolVersion="2025-11-25"),
    "capabilities that are none": _meta(clientCapabilities=1),
    "capabilities of a wrong shape": _meta(clientCapabilities={"roots": 1}),
    "a client without a version": _meta(clientInfo={"name": "x"}),
    "a client with all": _meta(clientInfo={"name": "x", "version": "1", "title": "X"}),
    "a log level": _meta(logLevel="debug"),
    "a progress token": lambda call: _params(_meta={**call.message["params"]["_meta"], "progressToken": 1})(call),
}


@pytest.mark.covers("TOOL-2", "NETIF-1")
@pytest.mark.parametrize("unusual", sorted(UNUSUAL))
async def test_an_unusual_request_gets_the_sdk_s_own_answer(unusual: str) -> None:
    body, headers = modern_call("read", {"workspace_id": "demo", "path": "hello.txt"})
    call = UNUSUAL[unusual](Call("POST", headers, json.loads(body)))
    raw = call.raw if call.raw is not None else json.dumps(call.message).encode()
    async with both_ways() as ways:
        usual_ours, usual_sdk = await ways.both("POST", body, headers)
        assert usual_ours == usual_sdk
        ours, sdk = await ways.both(call.method, raw, call.headers)
        assert ours == sdk


async def test_the_usual_request_does_not_pass_the_sdk() -> None:
    """Else the comparisons above would compare the SDK with itself."""
    application = FakeApplication()
    metrics = Metrics()
    log = gateway_logging.configure("error", stream=io.StringIO())
    server = ToolServer(application, listed(application.tools), version="0", metrics=metrics, log=log, local_peer="h")
    app = HttpApp(application, server, metrics, "0", log)  # its sessions do not run, so the SDK would fail
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://localhost") as client:
        body, headers = modern_call("read", {"workspace_id": "demo", "path": "hello.txt"})
        assert (await client.post("/mcp", content=body, headers=headers)).status_code == 200
        with pytest.raises(RuntimeError, match="Task group is not initialized"):
            await client.post("/mcp", content=body, headers={**headers, "Accept": "*/*"})
