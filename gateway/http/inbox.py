"""The inbox: where a user follows works, writes instructions, stops what runs, and decides on holds. JSON in and out.

One table of endpoints makes the routes and their OpenAPI description. Refuses to know: the rules, which are the
application's; tokens and hosts, which are the door's. Joined in `gateway.http.app`.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import structlog
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import from_json
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from structlog.typing import FilteringBoundLogger

from gateway.application import Application
from gateway.errors import Code, ToolError, internal, new_error_id
from gateway.http.inbox_api import ENDPOINTS, Call, Endpoint
from gateway.http.openapi import describe

STATUS: Mapping[Code, int] = {
    Code.INVALID_ARGUMENT: 400,
    Code.UNAUTHORIZED: 403,
    Code.WORKSPACE_NOT_FOUND: 404,
    Code.WORK_NOT_FOUND: 404,
    Code.INTENT_NOT_FOUND: 404,
    Code.APPROVAL_NOT_FOUND: 404,
    Code.WORK_CLOSED: 409,
    Code.INTENT_ALREADY_CLAIMED: 409,
    Code.INTENT_NOT_EDITABLE: 409,
    Code.INTENT_REVISION_CONFLICT: 409,
    Code.APPROVAL_CONFLICT: 409,
    Code.FILE_OPERATION_FAILED: 503,
    Code.RUNNER_UNAVAILABLE: 503,
}
"""Error code to HTTP status; any other is a fault of ours, 500."""


class Inbox:
    """ASGI, for the paths below /inbox."""

    def __init__(self, application: Application, version: str, log: FilteringBoundLogger) -> None:
        self._application = application
        self._log = log

        @functools.cache
        def description() -> bytes:
            return json.dumps(describe(ENDPOINTS, version)).encode()

        async def openapi(request: Request) -> Response:
            return Response(description(), media_type="application/json")

        routes = [Route("/inbox/openapi.json", openapi, methods=["GET"])]
        routes += [Route(endpoint.path, self._handler(endpoint), methods=[endpoint.method]) for endpoint in ENDPOINTS]
        self.asgi = Starlette(routes=routes, exception_handlers={HTTPException: _no_route})

    def _handler(self, endpoint: Endpoint) -> Callable[[Request], Awaitable[Response]]:
        answer_of = TypeAdapter(endpoint.answer)

        async def handle(request: Request) -> Response:
            client = request.client
            peer = "unknown" if client is None else f"{client.host}:{client.port}"
            with structlog.contextvars.bound_contextvars(peer=peer):
                try:
                    call = await _call_of(endpoint, request)
                    answer = await endpoint.perform(self._application, call)
                except ToolError as error:
                    return _failure(error)
                except Exception:  # noqa: BLE001 - the outermost handler: the caller learns an id, the log has the rest
                    wrapped = internal(new_error_id())
                    self._log.exception("inbox_failed", error_id=wrapped.details["error_id"], path=endpoint.path)
                    return _failure(wrapped)
            body = answer_of.dump_json(answer, exclude_none=True)
            return Response(body, endpoint.status, media_type="application/json")

        return handle


async def _call_of(endpoint: Endpoint, request: Request) -> Call:
    """Raises `ToolError` INVALID_ARGUMENT."""
    unknown = sorted(set(request.query_params) - set(endpoint.query))
    if unknown:
        raise _malformed(unknown[0], f'query parameter "{unknown[0][:80]}" is not known here')
    body = None
    if endpoint.body is not None:
        # A page of another port of this host may send text without being asked whether it may; JSON it may not.
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if "origin" in request.headers and kind != "application/json":
            raise _malformed("content-type", "a browser has to send application/json here")
        body = _parse(endpoint.body, await request.body() or b"{}")
    return Call(dict(request.path_params), dict(request.query_params), body)


def _parse(model: type[BaseModel], raw: bytes) -> BaseModel:
    known = model.model_fields
    # Before the model, which would complain of each of a million unknown names and keep all that it says.
    unknown = next((name for name in _names(raw) if name not in known), None)
    if unknown is not None:
        raise _malformed(unknown, f'"{unknown[:80]}" is not known here; known: {", ".join(known)}')
    try:
        return model.model_validate_json(raw, strict=True)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        name = ".".join(str(part) for part in first["loc"])
        raise _malformed(name or "body", f"{name or 'body'}: {first['msg']}") from None


def _names(raw: bytes) -> Iterable[str]:
    try:
        found = from_json(raw)
    except ValueError:
        return ()  # the model says so
    return found if isinstance(found, dict) else ()


def _malformed(argument: str, message: str) -> ToolError:
    return ToolError(Code.INVALID_ARGUMENT, message, details={"argument": argument[:80]})


def _failure(error: ToolError) -> Response:
    return _json(error.to_structured(), STATUS.get(error.code, 500))


async def _no_route(request: Request, error: Exception) -> Response:
    """No such path (404) or method (405)."""
    assert isinstance(error, HTTPException)
    text = f"{request.method} {request.url.path[:200]} is not served: see /inbox/openapi.json"
    return _json({"error": {"reason": "route", "message": text}}, error.status_code, error.headers)


def _json(content: Any, status: int, headers: Mapping[str, str] | None = None) -> Response:
    return Response(json.dumps(content), status, headers, media_type="application/json")
