"""The console: pages for a person to see what runs and to steer it, at / and below /console/.

Order of every request: session, then for what changes something the origin and the form's key, then the one call.
The pages work without scripts; with them they stay up to date. Refuses to know: the rules, which are the
application's; hosts and sizes, which are the door's. Joined in `gateway.http.app`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from urllib.parse import quote

import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from structlog.typing import FilteringBoundLogger

from gateway.application import Application
from gateway.errors import Code, ToolError, internal, new_error_id
from gateway.http.console import views
from gateway.http.console.actions import ACTIONS, Action, Form, malformed, parse_form
from gateway.http.console.events import EventStream, Streams, events
from gateway.http.console.pages import HEADERS, PAGES, Answers, Page, section_of
from gateway.http.console.sessions import (
    Sessions,
    Visitor,
    drop_cookie,
    nameless,
    same_origin,
    set_cookie,
)
from gateway.http.console.templating import BUILD, STATIC
from gateway.http.console.throttle import Throttle, network_of
from gateway.http.console.views import Asked
from gateway.http.door import GATE
from gateway.http.inbox import STATUS
from gateway.http.token import Gate
from gateway.metrics import Metrics
from gateway.store.database import StoreFailed

LOGIN = "/console/login"
MAX_LOGIN_BYTES = 16 * 1024
PARSED_AT_ONCE = 64 * 1024
"""A larger form is parsed on a thread."""
KEPT_S = 365 * 24 * 3600
"""By browsers, of a static file, whose address changes with its content."""
_MORE_STATUS: Mapping[Code, int] = {Code.PROCESS_NOT_FOUND: 404, Code.OPERATION_NOT_FOUND: 404}
Handler = Callable[[Request, Visitor], Awaitable[Response]]


class Console:
    """ASGI, for / and the paths below /console/. The door has put its `Gate` into the scope."""

    def __init__(
        self,
        application: Application,
        version: str,
        metrics: Metrics,
        log: FilteringBoundLogger,
        sessions: Sessions | None = None,
        throttle: Throttle | None = None,
    ) -> None:
        self._application = application
        self._metrics = metrics
        self._log = log
        self._sessions = sessions or Sessions(lambda: application.console_sessions)
        self._throttle = throttle or Throttle(time.monotonic)
        self._answers = Answers(application, version)
        self._streams = Streams()
        routes = [
            Route("/console", self._guarded(self._root), methods=["GET"]),
            Route("/console/static/{build}/{name}", self._static, methods=["GET"]),
            Route(LOGIN, self._login_page, methods=["GET"]),
            Route(LOGIN, self._login, methods=["POST"]),
            Route("/console/logout", self._guarded(self._logout, changes=True), methods=["POST"]),
            Route("/console/events", self._guarded(self._events), methods=["GET"]),
            Route("/console/holds/{approval_id}/request.txt", self._guarded(self._hold_text), methods=["GET"]),
        ]
        routes += [Route(page.path, self._guarded(partial(self._page, page)), methods=["GET"]) for page in PAGES]
        routes += [
            Route(action.path, self._guarded(partial(self._act, action), changes=True), methods=["POST"])
            for action in ACTIONS
        ]
        self.asgi = Starlette(routes=routes, exception_handlers={HTTPException: self._no_route})
        # Nobody is led on before he is known, and not to an address that a proxy in front of us would name otherwise.
        self.asgi.router.redirect_slashes = False

    # --- who ----------------------------------------------------------------------------------------------------------
    def _guarded(self, handler: Handler, *, changes: bool = False) -> Callable[[Request], Awaitable[Response]]:
        """`changes`: what it does is asked for by a form of ours."""

        async def handle(request: Request) -> Response:
            with structlog.contextvars.bound_contextvars(peer=_peer(request)):
                try:
                    visitor = await self._sessions.visitor(request, _gate(request))
                    if not visitor.known:
                        return self._ask_for_login(request, changes)
                    if changes and (refusal := await self._not_ours(request, visitor)) is not None:
                        return refusal
                    if visitor.name:
                        return await handler(request, visitor)
                    visitor = nameless()
                    response = await handler(request, visitor)
                    set_cookie(request, response, visitor)
                    return response
                except ToolError as error:
                    return self._problem(error)
                except StoreFailed as error:
                    return self._away(str(error))
                except ClientDisconnect:
                    raise
                except Exception:  # noqa: BLE001 - the outermost handler: the person learns an id, the log has the rest
                    wrapped = internal(new_error_id())
                    self._log.exception("console_failed", error_id=wrapped.details["error_id"], path=request.url.path)
                    return self._problem(wrapped)

        return handle

    def _ask_for_login(self, request: Request, changes: bool) -> Response:
        wants_page = not changes and request.url.path != "/console/events"
        if not wants_page:
            return self._answers.plain("refused.html", 401, why="You are not logged in, or the session has ended.")
        where = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        to = LOGIN if where == "/" else f"{LOGIN}?next={quote(where, safe='')}"
        return RedirectResponse(to, 303, HEADERS)

    async def _not_ours(self, request: Request, visitor: Visitor) -> Response | None:
        """None where one of our own pages sent it."""
        if not same_origin(request):
            self._refuse(request, "origin")
            return self._answers.plain("refused.html", 403, why="This did not come from a page of this console.")
        body = await request.body()
        form = parse_form(body) if len(body) <= PARSED_AT_ONCE else await asyncio.to_thread(parse_form, body)
        if not visitor.owns(form.get("form_key", "")):
            self._refuse(request, "form")
            return self._answers.plain("refused.html", 403, why="The page is from another session: load it again.")
        request.state.form = form
        return None

    def _refuse(self, request: Request, reason: str) -> None:
        self._metrics.request_refused(reason)
        self._log.warning("console_refused", reason=reason, path=request.url.path[:100], peer=_peer(request))

    # --- login --------------------------------------------------------------------------------------------------------
    async def _login_page(self, request: Request) -> Response:
        try:
            visitor = await self._sessions.visitor(request, _gate(request))
        except StoreFailed as error:
            return self._away(str(error))
        where = _inside(request.query_params.get("next", "/"))
        if visitor.known:
            return RedirectResponse(where, 303, HEADERS)
        return self._answers.plain("login.html", 200, problem=None, where=where)

    async def _login(self, request: Request) -> Response:
        """No form key: there is no session yet, and whoever logs somebody else in has given him his own token."""
        gate, peer = _gate(request), _peer(request)
        if not same_origin(request):
            self._refuse(request, "origin")
            return self._answers.plain("refused.html", 403, why="This did not come from a page of this console.")
        try:
            form = parse_form(await _small_body(request))
        except ToolError as error:
            return self._problem(error)
        where = _inside(form.get("next", "/"))
        host = network_of(request.client.host) if request.client else "unknown"
        wait_s = self._throttle.attempt(host)
        if wait_s:
            self._refuse(request, "throttle")
            problem = f"Too many attempts. Try again in {int(wait_s) + 1} seconds."
            refused = self._answers.plain("login.html", 429, problem=problem, where=where)
            refused.headers["retry-after"] = str(int(wait_s) + 1)
            return refused
        if not gate.admits(form.get("token", "").strip().encode()):
            self._refuse(request, "token")
            return self._answers.plain("login.html", 403, problem="That is not the token.", where=where)
        self._throttle.give_back(host)
        try:
            before = await self._sessions.visitor(request, gate)
            await self._sessions.close(before)
            self._streams.end(before.name)
            visitor = await self._sessions.open(gate)
        except StoreFailed as error:
            return self._away(str(error))
        self._log.info("console_login", peer=peer)
        response = RedirectResponse(where, 303, HEADERS)
        set_cookie(request, response, visitor)
        return response

    async def _logout(self, request: Request, visitor: Visitor) -> Response:
        await self._sessions.close(visitor)
        self._streams.end(visitor.name)
        self._log.info("console_logout")
        response = RedirectResponse(LOGIN, 303, HEADERS)
        drop_cookie(request, response)
        return response

    # --- pages --------------------------------------------------------------------------------------------------------
    async def _root(self, request: Request, visitor: Visitor) -> Response:
        return RedirectResponse("/", 303, HEADERS)

    async def _page(self, page: Page, request: Request, visitor: Visitor) -> Response:
        return await self._answers.page(visitor, page, _asked(request))

    async def _act(self, action: Action, request: Request, visitor: Visitor) -> Response:
        fields: Mapping[str, str] = request.state.form
        try:
            done = await action.perform(self._application, Form(request.path_params, fields))
        except ToolError as error:
            self._log.info("console_action_refused", code=error.code.value, path=action.path)
            status, page = _status(error), section_of(action.template)
            if status in (404, 500):
                raise
            # The reason, with the state as it is now, and what was typed.
            return await self._answers.page(
                visitor,
                Page(page.path, action.view, action.template, page.section, page.live),
                _asked(request),
                status=status,
                problem=error.message,
                typed={**fields, "action": action.path.rpartition("/")[2]},
            )
        return RedirectResponse(f"{done.to}?said={done.said}", 303, HEADERS)

    async def _hold_text(self, request: Request, visitor: Visitor) -> Response:
        text = await views.hold_text(self._application, _asked(request))
        return PlainTextResponse(text, headers={**HEADERS, "content-disposition": "attachment; filename=request.txt"})

    async def _static(self, request: Request) -> Response:
        found = STATIC.get(request.path_params["name"])
        if found is None:
            raise HTTPException(404)
        kept = f"public, max-age={KEPT_S}, immutable" if request.path_params["build"] == BUILD else "no-store"
        return Response(found.body, 200, {**HEADERS, "cache-control": kept}, found.media_type)

    # --- events -------------------------------------------------------------------------------------------------------
    async def _events(self, request: Request, visitor: Visitor) -> Response:
        if request.method == "HEAD":
            return Response(None, 200, HEADERS, "text/event-stream")
        gate = _gate(request)
        seen = request.headers.get("last-event-id") or request.query_params.get("seen", "")
        process_id = request.query_params.get("process")

        async def is_open() -> bool:
            return (await self._sessions.visitor(request, gate)).known

        if not self._streams.enter(visitor.name):
            self._refuse(request, "streams")
            why = "Too many pages are open at once: close some."
            full = self._answers.plain("refused.html", 503, why=why)
            full.headers["retry-after"] = "10"
            return full

        ended = self._streams.ended(visitor.name)

        async def body(send: Callable[[bytes], Awaitable[None]]) -> None:
            telling = events(self._application, seen, process_id, is_open, ended)
            async with contextlib.aclosing(telling) as pieces:
                try:
                    async for piece in pieces:
                        await send(piece)
                except StoreFailed:
                    return  # the browser comes back, and finds out what is wrong

        return EventStream(body, HEADERS, partial(self._streams.leave, visitor.name))

    # --- what went wrong ----------------------------------------------------------------------------------------------
    def _problem(self, error: ToolError) -> Response:
        return self._answers.plain("refused.html", _status(error), why=error.message)

    def _away(self, why: str) -> Response:
        return self._answers.plain("refused.html", 503, why=f"The store cannot be used now: {why}")

    async def _no_route(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        why = "There is no such page." if error.status_code == 404 else "This address is not asked that way."
        return self._answers.plain("refused.html", error.status_code, why=why)


async def _small_body(request: Request) -> bytes:
    """Of somebody who is not known yet. Raises `ToolError` INVALID_ARGUMENT."""
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > MAX_LOGIN_BYTES:
            raise malformed("form", "this is no login: load the page again")
    return body


def _gate(request: Request) -> Gate:
    gate = request.scope[GATE]
    assert isinstance(gate, Gate)
    return gate


def _asked(request: Request) -> Asked:
    return Asked(request.path_params, dict(request.query_params))


def _status(error: ToolError) -> int:
    return STATUS.get(error.code) or _MORE_STATUS.get(error.code, 500)


def _inside(where: str) -> str:
    """An address of our own; anything else is the first page. Browsers read a backslash as a slash."""
    if where == "/" or (where.startswith("/console/") and "\\" not in where and where.isprintable()):
        return where
    return "/"


def _peer(request: Request) -> str:
    client = request.client
    return "unknown" if client is None else f"{client.host}:{client.port}"
