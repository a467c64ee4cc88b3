"""The short way for sessions of protocol 2025-11-25: a plain tools/call, answered without the SDK's streams.

A session is the SDK's: it opens, ends and times out there. A call is taken here once the SDK has itself served a call
of that session, which proves that it was initialized and in which version, and if nothing about the request is
unusual. All else goes to the SDK with its body replayed. What the SDK does for a call that is under way is done here
too: a cancelled one is answered at once, one of a session that ends gets an error, and a call keeps its session alive.
Refuses to know: tools, hosts, tokens.
"""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any
from weakref import WeakKeyDictionary

import anyio
import mcp.types as types
from mcp.server.streamable_http import REQUEST_CANCELLED, StreamableHTTPServerTransport
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from pydantic_core import from_json
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.http.plain_answers import accepts_json, call_result, read_body, replayed, send_json
from gateway.mcp.server import ToolServer

VERSION = "2025-11-25"
_SESSION = b"mcp-session-id"
_ONCE = frozenset({_SESSION, b"mcp-protocol-version", b"content-type", b"accept"})
_FIXED = {b"mcp-protocol-version": VERSION.encode(), b"content-type": b"application/json"}
_CANCELLED = json.dumps({"code": REQUEST_CANCELLED, "message": "Request cancelled"}).encode()
_ENDED = json.dumps(
    {"code": types.INTERNAL_ERROR, "message": "Session terminated before the request completed"}
).encode()

RequestId = int | str


class _Calls:
    """Those of one session that are under way here."""

    def __init__(self) -> None:
        self._tasks: dict[RequestId, asyncio.Task[Any]] = {}
        self._stopped: dict[RequestId, str] = {}

    def __contains__(self, request_id: RequestId) -> bool:
        return request_id in self._tasks

    def begin(self, request_id: RequestId) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks[request_id] = task

    def end(self, request_id: RequestId) -> str | None:
        """Why it was stopped, if it was."""
        self._tasks.pop(request_id, None)
        return self._stopped.pop(request_id, None)

    def stop(self, request_id: object, why: str) -> None:
        """Does nothing where no such call is under way."""
        if isinstance(request_id, int | str) and not isinstance(request_id, bool) and request_id not in self._stopped:
            task = self._tasks.get(request_id)
            if task is not None:
                self._stopped[request_id] = why
                task.cancel()

    def stop_all(self, why: str) -> None:
        for request_id in list(self._tasks):
            self.stop(request_id, why)


class SessionCalls:
    """ASGI in front of the SDK's application, for the path /mcp alone. `idle_s`: as given to `sessions`."""

    def __init__(
        self, server: ToolServer, sessions: StreamableHTTPSessionManager, sdk: ASGIApp, *, idle_s: float
    ) -> None:
        self._server = server
        self._sessions = sessions
        self._sdk = sdk
        self._idle_s = idle_s
        self._proved: WeakKeyDictionary[StreamableHTTPServerTransport, _Calls] = WeakKeyDictionary()
        server.on_sdk_call = self._served

    def _served(self, request: Request, version: str) -> None:
        """The SDK serves a call of this session, so that it would serve another."""
        session = self._sessions._server_instances.get(request.headers.get("mcp-session-id", ""))
        if session is not None and version == VERSION and session not in self._proved:
            self._proved[session] = _Calls()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        session_id = next((value for name, value in scope["headers"] if name == _SESSION), None)
        session = None if session_id is None else self._sessions._server_instances.get(session_id.decode("latin-1"))
        calls = None if session is None else self._proved.get(session)
        if session is None or calls is None:
            await self._sdk(scope, receive, send)
            return
        if scope["method"] != "POST" or not _plain_headers(scope):
            await self._sdk(scope, receive, send)
            if session.is_terminated:
                calls.stop_all("ended")
            return
        messages = await read_body(receive)
        request = _parse(b"".join(message.get("body", b"") for message in messages))
        call = self._plain_call(request, calls)
        if call is None or session.is_terminated or (session.idle_scope and session.idle_scope.cancel_called):
            if request.get("method") == "notifications/cancelled" and type(request.get("params")) is dict:
                calls.stop(request["params"].get("requestId"), "cancelled")
            await self._sdk(scope, replayed(messages, receive), send)
            return
        await self._answer(call, session, calls, scope, send)

    async def _answer(
        self,
        call: tuple[RequestId, str, dict[str, Any]],
        session: StreamableHTTPServerTransport,
        calls: _Calls,
        scope: Scope,
        send: Send,
    ) -> None:
        request_id, name, arguments = call
        client = scope.get("client")
        stopped: str | None = None
        calls.begin(request_id)
        self._keep_alive(session)
        try:
            answer = await self._server.direct(name, arguments, None if client is None else f"{client[0]}:{client[1]}")
        except asyncio.CancelledError:
            stopped = calls.end(request_id)
            task = asyncio.current_task()
            # Not by us, or not by us alone: the server goes down.
            if stopped is None or task is None or task.uncancel():
                raise
        finally:
            # One that was stopped as it ended has its answer.
            calls.end(request_id)
            self._keep_alive(session)
        headers = [] if session.mcp_session_id is None else [(_SESSION, session.mcp_session_id.encode())]
        number = json.dumps(request_id).encode()
        if stopped == "cancelled":
            await send_json(send, 200, b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (number, _CANCELLED), headers)
        elif stopped is not None:
            await send_json(send, 500, b'{"jsonrpc":"2.0","id":null,"error":%b}' % _ENDED, headers)
        else:
            result = b'{"jsonrpc":"2.0","id":%b,"result":{%b}}' % (number, call_result(answer))
            await send_json(send, 200, result, headers)

    def _keep_alive(self, session: StreamableHTTPServerTransport) -> None:
        """The SDK counts its own requests alone; without a deadline one of those is under way."""
        scope = session.idle_scope
        if scope is not None and scope.deadline != math.inf:
            scope.deadline = anyio.current_time() + self._idle_s

    def _plain_call(self, request: dict[str, Any], calls: _Calls) -> tuple[RequestId, str, dict[str, Any]] | None:
        """The request's id, tool and arguments, or None where the SDK is to look at it."""
        if request.keys() != {"jsonrpc", "id", "method", "params"}:
            return None
        request_id, params = request["id"], request["params"]
        if request["jsonrpc"] != "2.0" or request["method"] != "tools/call" or type(request_id) not in (int, str):
            return None
        if type(params) is not dict or not {"name"} <= params.keys() <= {"name", "arguments", "_meta"}:
            return None
        name, arguments = params["name"], params.get("arguments", {})
        if type(name) is not str or not self._server.has(name) or type(arguments) is not dict:
            return None
        if request_id in calls or not _plain_meta(params.get("_meta", {})):
            return None
        return request_id, name, arguments


def _plain_meta(meta: object) -> bool:
    """Nothing, or a token for progress, of which no tool tells any."""
    if type(meta) is not dict or not meta.keys() <= {"progressToken"}:
        return False
    return not meta or type(meta["progressToken"]) in (int, str)


def _plain_headers(scope: Scope) -> bool:
    found: dict[bytes, bytes] = {}
    for name, value in scope["headers"]:
        if name in _ONCE:
            if name in found:
                return False
            found[name] = value
    if found.keys() != _ONCE or not accepts_json(found[b"accept"]):
        return False
    return all(found[name] == value for name, value in _FIXED.items())


def _parse(body: bytes) -> dict[str, Any]:
    """Empty for what is no object. Read as the SDK reads it in this era: UTF-8 alone, no half of a surrogate pair, and
    not nested more deeply than it takes."""
    try:
        request = from_json(body)
    except ValueError:
        return {}
    return request if type(request) is dict else {}
