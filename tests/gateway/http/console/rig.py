"""A console over a real application, behind a real door, called without sockets; a browser's manners included."""

from __future__ import annotations

import asyncio
import contextlib
import io
import re
from collections.abc import AsyncIterator, Awaitable, Mapping
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import httpx2
from starlette.types import ASGIApp

from gateway import logging as gateway_logging
from gateway.http.console.console import Console
from gateway.http.console.sessions import Sessions
from gateway.http.console.throttle import Throttle
from gateway.http.door import Door, HostNames
from gateway.metrics import Metrics
from tests.gateway.core.application_rig import WRITE, Core, core

HOST = "localhost:8000"
TOKEN = "the-token"
HOSTILE = "<script>window.ran=1</script><img src=x onerror=window.ran=1> \x1b[31mred\x1b[0m \u202e ' \" \\ &amp;"


async def soon(awaitable: Awaitable[Any]) -> Any:
    return await asyncio.wait_for(awaitable, 30)


class Clock:
    """Seconds since some start; moved by the test."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds

    def now(self) -> datetime:
        return datetime.fromtimestamp(1_700_000_000 + self.seconds, UTC)


class Markup(HTMLParser):
    """Elements and text of a page. `elements`: name and attributes of each."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def of(self, tag: str, **having: str) -> list[dict[str, str | None]]:
        return [a for name, a in self.elements if name == tag and all(a.get(k) == v for k, v in having.items())]


class Browser:
    """Keeps cookies, follows no redirect, and sends what a browser would with a form."""

    def __init__(self, c: Core, app: ASGIApp, client: httpx2.AsyncClient, log: io.StringIO, clock: Clock) -> None:
        self.core, self.client, self.log, self.clock = c, client, log, clock
        self.form_key = ""
        self.app = app

    async def get(self, path: str, want: int = 200, **headers: str) -> httpx2.Response:
        reply = await soon(self.client.get(path, headers=headers))
        assert reply.status_code == want, (path, reply.status_code, reply.text[:2000])
        found = re.search(r'name="form_key" value="([0-9a-f]+)"', reply.text)
        if found:
            self.form_key = found[1]
        return reply  # type: ignore[no-any-return]

    async def page(self, path: str, want: int = 200) -> Markup:
        return Markup((await self.get(path, want)).text)

    async def post(self, path: str, want: int = 303, headers: Any = None, **fields: Any) -> httpx2.Response:
        sent = {"form_key": self.form_key, **fields}
        own = {"origin": f"http://{HOST}"} if headers is None else headers
        reply = await soon(self.client.post(path, data={k: v for k, v in sent.items() if v != "-"}, headers=own))
        assert reply.status_code == want, (path, reply.status_code, reply.text[:2000])
        return reply  # type: ignore[no-any-return]

    async def login(self, token: str = TOKEN, want: int = 303) -> httpx2.Response:
        reply = await self.post("/console/login", want, token=token, form_key="-")
        if want == 303:
            await self.get("/")
        return reply


@contextlib.asynccontextmanager
async def browser(
    base: Path, *, token: str | None = TOKEN, clock: Clock | None = None, **workspaces: Any
) -> AsyncIterator[Browser]:
    registered = {"demo": {**WRITE, "approvals": "confirm"}, "free": WRITE, **workspaces}
    async with core(base, registered) as c, visiting(c, token=token, clock=clock) as b:
        yield b


@contextlib.asynccontextmanager
async def visiting(
    c: Core, *, token: str | None = TOKEN, clock: Clock | None = None, scheme: str = "http"
) -> AsyncIterator[Browser]:
    """Another console on the same application, with a browser of its own."""
    log, clock = io.StringIO(), clock or Clock()
    logger = gateway_logging.configure("info", stream=log)
    metrics = Metrics()
    sessions = Sessions(lambda: c.application.console_sessions, clock.now)
    console = Console(c.application, "1", metrics, logger, sessions, Throttle(clock))
    door = Door(console.asgi, hosts=HostNames(["localhost"]), token=token, metrics=metrics, log=logger)
    transport = httpx2.ASGITransport(app=door)
    async with httpx2.AsyncClient(transport=transport, base_url=f"{scheme}://{HOST}") as client:
        yield Browser(c, door, client, log, clock)


async def held(b: Browser, **call: Any) -> str:
    """A new hold's id."""
    answer = await soon(b.core.application.hold_exec("demo", tuple(call.get("command", ("make", "test")))))
    return str(answer.approval_id)


async def opened(b: Browser, title: str = "A work", workspace_id: str = "demo") -> str:
    return str((await soon(b.core.application.work_open(workspace_id, title))).work_id)


class Stream:
    """An open event stream, driven as a server would. `sent`: what went out; `closed` ends it as a browser that goes
    away does."""

    def __init__(self, b: Browser, path: str, query: str = "", headers: Mapping[str, str] | None = None) -> None:
        self.arrived = asyncio.Event()
        self.gone = asyncio.Event()
        self.room = asyncio.Event()
        self.room.set()
        self.status = 0
        self.text = ""
        cookie = "; ".join(f"{k}={v}" for k, v in b.client.cookies.items())
        plain = {"host": HOST, "cookie": cookie, **(headers or {})}
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "GET",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(k.encode(), v.encode()) for k, v in plain.items()],
            "client": ("127.0.0.1", 1),
            "server": ("localhost", 8000),
        }
        app = b.app
        self.task = asyncio.ensure_future(app(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        await self.room.wait()
        if message["type"] == "http.response.start":
            self.status = message["status"]
        else:
            self.text += message.get("body", b"").decode()
        self.arrived.set()

    def names(self) -> list[str]:
        return re.findall(r"^event: (\w+)$", self.text, re.MULTILINE)

    async def until(self, words: str) -> str:
        async def seen() -> None:
            while words not in self.text:
                self.arrived.clear()
                await self.arrived.wait()

        await asyncio.wait_for(seen(), 30)
        return self.text

    async def close(self) -> None:
        self.room.set()
        self.gone.set()
        await asyncio.wait_for(self.task, 30)
