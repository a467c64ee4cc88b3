"""The short way for the common request: a plain tools/call of protocol 2026-07-28, answered without the SDK's layers.

Most of what a call costs is spent between the HTTP server and the tool. A request is taken here only if nothing about
it is unusual: exactly the known headers and members, each once, a known tool, an envelope that the SDK's own models
accept. Anything else goes to the SDK with its body replayed, which also words all refusals. A test holds both ways to
the same answers. The older era has a short way of its own, `session_calls`. Refuses to know: tools, hosts, tokens.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import mcp.types as types
from pydantic import BaseModel, ValidationError
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.http.connection import WHEN_LOST
from gateway.http.plain_answers import accepts_json, call_result, read_body, replayed, send_json
from gateway.mcp.server import ToolServer

VERSION = "2026-07-28"
_VERSION_KEY = "io.modelcontextprotocol/protocolVersion"
_CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
_ENVELOPE: Mapping[str, type[BaseModel]] = {
    _CAPABILITIES: types.ClientCapabilities,
    "io.modelcontextprotocol/clientInfo": types.Implementation,
}
_REQUIRED = frozenset({_VERSION_KEY, _CAPABILITIES})
_ONCE = frozenset({b"mcp-protocol-version", b"mcp-method", b"mcp-name", b"content-type", b"accept"})
_OF_THIS_ERA = (b"mcp-protocol-version", VERSION.encode())
_FIXED = {_OF_THIS_ERA[0]: _OF_THIS_ERA[1], b"mcp-method": b"tools/call", b"content-type": b"application/json"}


class DirectCalls:
    """ASGI in front of the SDK's application, for the path /mcp alone."""

    def __init__(self, server: ToolServer, sdk: ASGIApp) -> None:
        self._server = server
        self._sdk = sdk
        stamp = json.dumps({"io.modelcontextprotocol/serverInfo": server.sdk.server_info_stamp})
        self._head = b'{"jsonrpc":"2.0","id":%b,"result":{"_meta":' + stamp.encode().replace(b"%", b"%%") + b","
        self._accepted: dict[str, Any] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        when_lost = scope.get("state", {}).get(WHEN_LOST)
        if when_lost is None or _OF_THIS_ERA not in scope["headers"]:
            await self._serve(scope, receive, send)
            return
        # In this era closing the connection is the cancellation. What a call has begun goes on all the same.
        task, left = asyncio.current_task(), False
        assert task is not None

        def leave() -> None:
            nonlocal left
            left = True
            task.cancel()

        when_lost.add(leave)
        try:
            await self._serve(scope, receive, send)
        except asyncio.CancelledError:
            if not left:  # the server goes down
                raise
        finally:
            when_lost.discard(leave)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = _plain_headers(scope)
        if name is None:
            await self._sdk(scope, receive, send)
            return
        messages = await read_body(receive)
        call = self._plain_call(b"".join(message.get("body", b"") for message in messages), name)
        if call is None:
            await self._sdk(scope, replayed(messages, receive), send)
            return
        request_id, arguments = call
        client = scope.get("client")
        answer = await self._server.direct(name, arguments, None if client is None else f"{client[0]}:{client[1]}")
        head = self._head % json.dumps(request_id).encode()
        await send_json(send, 200, head + call_result(answer) + b',"resultType":"complete"}}')

    def _plain_call(self, body: bytes, name: str) -> tuple[int | str, dict[str, Any]] | None:
        """The request's id and arguments, or None where the SDK is to look at it."""
        try:
            request = json.loads(body)
        except (ValueError, RecursionError):
            return None
        if type(request) is not dict or request.keys() != {"jsonrpc", "id", "method", "params"}:
            return None
        request_id, params = request["id"], request["params"]
        if request["jsonrpc"] != "2.0" or request["method"] != "tools/call" or type(request_id) not in (int, str):
            return None
        if type(params) is not dict or not {"name", "_meta"} <= params.keys() <= {"name", "_meta", "arguments"}:
            return None
        arguments = params.get("arguments", {})
        if params["name"] != name or not self._server.has(name) or type(arguments) is not dict:
            return None
        if not self._accepts(params["_meta"]):
            return None
        if self._server.may_ask(name) and params["_meta"][_CAPABILITIES].get("elicitation") is not None:
            return None  # a hold may become a request to its user
        return request_id, arguments

    def _accepts(self, meta: object) -> bool:
        """A client says the same of itself in each request, so the last that was looked at is remembered."""
        if type(meta) is not dict:
            return False
        if meta == self._accepted:
            return True
        if not _REQUIRED <= meta.keys() <= {_VERSION_KEY, *_ENVELOPE} or meta[_VERSION_KEY] != VERSION:
            return False
        try:
            for key, model in _ENVELOPE.items():
                if key in meta:
                    model.model_validate(meta[key], by_name=False)
        except ValidationError:
            return False
        self._accepted = meta
        return True


def _plain_headers(scope: Scope) -> str | None:
    """The tool that the headers name, or None."""
    if scope["method"] != "POST":
        return None
    found: dict[bytes, bytes] = {}
    for name, value in scope["headers"]:
        if name in _ONCE:
            if name in found:
                return None
            found[name] = value
        elif name.startswith(b"mcp-param-"):
            return None
    if found.keys() != _ONCE or not accepts_json(found[b"accept"]):
        return None
    if any(found[name] != value for name, value in _FIXED.items()):
        return None
    return found[b"mcp-name"].decode("latin-1")
