"""Who looks at the console: a session in a cookie, opened with the token, and what its forms must carry.

The cookie holds a random name; the store holds its digest, and a seal that only this name and the present token give,
so another token ends every session. Where the listener asks for no token, the name alone is enough: it is there for
the forms. Refuses to know: pages, the token itself. Used by the console.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from starlette.requests import Request
from starlette.responses import Response

from gateway.http.token import Gate
from gateway.store.sessions import SessionStore, StoredSession

LIFETIME_S = 12 * 3600
"""Of a session, from its login; using it does not make it longer."""
_NAME = re.compile(r"[A-Za-z0-9_-]{43}")


@dataclass(frozen=True)
class Visitor:
    """`name`: of the cookie, empty where there is none. `known`: may use the console. `gated`: had to show a token."""

    name: str
    known: bool
    gated: bool

    @property
    def form_key(self) -> str:
        """What a form of this visitor carries. Another origin can neither read it nor make it up."""
        return hmac.new(self.name.encode(), b"codespace console form", "sha256").hexdigest()

    def owns(self, form_key: str) -> bool:
        return bool(self.name) and hmac.compare_digest(form_key.encode(), self.form_key.encode())


class Sessions:
    """`store`: where they are kept. `now`: UTC. Methods may raise `StoreFailed`."""

    def __init__(self, store: Callable[[], SessionStore], now: Callable[[], datetime] = lambda: datetime.now(UTC)):
        self._store = store
        self._now = now

    async def visitor(self, request: Request, gate: Gate) -> Visitor:
        name = request.cookies.get(cookie_name(request), "")
        if not _NAME.fullmatch(name):
            return Visitor("", not gate.needed, gate.needed)
        return Visitor(name, not gate.needed or await self._is_open(name, gate), gate.needed)

    async def open(self, gate: Gate) -> Visitor:
        """A new session; the token was shown."""
        name = secrets.token_urlsafe(32)
        now = self._now()
        expires_at = _text(now + timedelta(seconds=LIFETIME_S))
        await self._store().add(StoredSession(_digest(name), gate.seal(name), expires_at), _text(now))
        return Visitor(name, True, gate.needed)

    async def close(self, visitor: Visitor) -> None:
        """Idempotent."""
        if visitor.name:
            await self._store().remove(_digest(visitor.name))

    async def _is_open(self, name: str, gate: Gate) -> bool:
        found = await self._store().find(_digest(name))
        if found is None or datetime.fromisoformat(found.expires_at) <= self._now():
            return False
        return hmac.compare_digest(found.seal, gate.seal(name))


def nameless() -> Visitor:
    """For a listener that asks for no token: a name for the forms, which no store knows."""
    return Visitor(secrets.token_urlsafe(32), True, False)


def is_encrypted(request: Request) -> bool:
    """Whether the browser came over TLS, as we see it or as a proxy in front of us says. Who lies about it gets a
    cookie that his own browser does not send."""
    said = request.headers.get("x-forwarded-proto", "").rpartition(",")[2].strip()
    return request.url.scheme == "https" or said == "https"


def cookie_name(request: Request) -> str:
    """Cookies do not tell ports apart, and two appliances of one machine must not end each other's sessions."""
    port = request.headers.get("host", "").rpartition(":")[2]
    name = f"codespace_{port}" if port.isdigit() else "codespace"
    return f"__Host-{name}" if is_encrypted(request) else name


def set_cookie(request: Request, response: Response, visitor: Visitor) -> None:
    response.set_cookie(
        cookie_name(request),
        visitor.name,
        max_age=LIFETIME_S,
        path="/",
        secure=is_encrypted(request),
        httponly=True,
        samesite="strict",
    )


def drop_cookie(request: Request, response: Response) -> None:
    response.delete_cookie(
        cookie_name(request), path="/", secure=is_encrypted(request), httponly=True, samesite="strict"
    )


def same_origin(request: Request) -> bool:
    """Whether a browser sent this from one of our own pages: exactly this host and port, which is more than the door
    asks for. Every browser sends Origin with a POST (Fetch, 3.2)."""
    origins, hosts = request.headers.getlist("origin"), request.headers.getlist("host")
    if len(origins) != 1 or len(hosts) != 1 or request.headers.get("sec-fetch-site", "same-origin") != "same-origin":
        return False
    scheme, separator, host = origins[0].partition("://")
    return scheme in ("http", "https") and bool(separator) and host.lower() == hosts[0].lower()


def _text(moment: datetime) -> str:
    """As every table has it: sorts as text."""
    return moment.isoformat(timespec="milliseconds")


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()
