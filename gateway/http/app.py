"""The HTTP routes: /mcp, and beside it /inbox, /healthz, /readyz, /metrics and the console at /.

Refuses to know: sockets, tokens, tools. `gateway.http.door` stands before it, `gateway.http.server` runs it.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send
from structlog.typing import FilteringBoundLogger

from gateway.application import Application
from gateway.http.console.console import Console
from gateway.http.direct_calls import DirectCalls
from gateway.http.door import MAX_BODY_BYTES, is_console
from gateway.http.inbox import Inbox
from gateway.http.session_calls import SessionCalls
from gateway.logging import SESSION_ENDED
from gateway.mcp.server import ToolServer
from gateway.metrics import Metrics

MAX_SESSIONS = 1024
SESSION_IDLE_S = 30 * 60


class HttpApp:
    """ASGI. `running()` must be entered while requests are served: it owns the sessions of the older protocol era."""

    def __init__(
        self, application: Application, server: ToolServer, metrics: Metrics, version: str, log: FilteringBoundLogger
    ) -> None:
        self._application = application
        self._metrics = metrics
        # Host, origin and size are checked by the door for every route, so the SDK's own checks of them are off here.
        self._sessions = StreamableHTTPSessionManager(
            server.sdk,
            json_response=True,
            max_request_body_size=MAX_BODY_BYTES,
            max_sessions=MAX_SESSIONS,
            session_idle_timeout=SESSION_IDLE_S,
        )
        older = SessionCalls(server, self._sessions, self._by_the_sdk, idle_s=SESSION_IDLE_S)
        self._mcp = DirectCalls(server, older)
        self._inbox = Inbox(application, version, log)
        self._console = Console(application, version, metrics, log)
        self._rest = Starlette(
            routes=[
                Route("/healthz", self._healthz),
                Route("/readyz", self._readyz),
                Route("/metrics", self._metrics_text),
            ]
        )

    def running(self) -> AbstractAsyncContextManager[None]:
        return self._sessions.run()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/mcp":
            await self._mcp(scope, receive, send)
        elif scope["path"].startswith("/inbox/"):
            await self._inbox.asgi(scope, receive, send)
        elif is_console(scope["path"]):
            await self._console.asgi(scope, receive, send)
        else:
            await self._rest(scope, receive, send)

    async def _by_the_sdk(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A message that meets the end of its own session: its client has gone, which is no fault of ours. The SDK has
        acknowledged it by then, and would answer once more."""
        over = False

        async def send_once(message: Message) -> None:
            nonlocal over
            if not over:
                over = message["type"] == "http.response.body" and not message.get("more_body", False)
                await send(message)

        try:
            await self._sessions.handle_request(scope, receive, send_once)
        except SESSION_ENDED:
            if not over:
                raise

    async def _healthz(self, request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def _readyz(self, request: Request) -> Response:
        """503 with the reasons while the runner, the store or the sandbox is not there (NETIF-3)."""
        readiness = await self._application.readiness()
        return JSONResponse(
            {"ready": readiness.ready, "reasons": list(readiness.reasons)}, status_code=200 if readiness.ready else 503
        )

    async def _metrics_text(self, request: Request) -> Response:
        readiness = await self._application.readiness()
        self._metrics.state(running_processes=self._application.running_processes(), ready=readiness.ready)
        self._metrics.ended(self._application.ended_processes())
        decisions = await self._application.network_decisions()
        self._metrics.stored(await self._application.stored_counts())
        self._metrics.network({(made.via, made.decision): made.count for made in decisions})
        return Response(self._metrics.render(), media_type=self._metrics.content_type)
