"""Who may come in, before any route: host, origin, token, body size (NETIF-2).

A plain ASGI wrapper, one object a listener. Refuses to know: tools, sessions, routes other than the two probes that
need no token and the console, which has a login. Joined by `gateway.http.app`.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Collection

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from structlog.typing import FilteringBoundLogger

from gateway.http.token import Gate
from gateway.metrics import Metrics

MAX_BODY_BYTES = 8 * 1024 * 1024
DISCARDED_BYTES = MAX_BODY_BYTES
"""Of a body over the limit, read and thrown away before the answer: a peer that is cut off while it writes sees a
broken connection and not the reason."""
OPEN_PATHS = frozenset({"/healthz", "/readyz"})
GATE = "codespace.gate"
"""Where in the scope the listener's `Gate` is."""
LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]")


_HOST = re.compile(r"(?P<name>[a-z0-9._-]+|\[[0-9a-f:.]+\])(?::(?P<port>[0-9]{1,5}))?")


class _BodyTooLarge(Exception):
    pass


class HostNames:
    """Names under which the server may be addressed, against DNS rebinding.

    An entry without a port allows any port; with one, that port alone. `*` allows all. Compared without case. What is
    no host with or without a port (RFC 9110, 7.2) is refused in any case: no user part, no path, no empty port.
    """

    def __init__(self, names: Collection[str]) -> None:
        self._names = frozenset(name.lower() for name in names)

    def allows(self, host: str) -> bool:
        host = host.lower()
        parts = _HOST.fullmatch(host)
        if parts is None or int(parts["port"] or 0) > 65535:
            return False
        return "*" in self._names or host in self._names or parts["name"] in self._names

    def allows_origin(self, origin: str) -> bool:
        """An origin is `scheme://host[:port]`; `null` is refused."""
        scheme, separator, host = origin.partition("://")
        return scheme.lower() in ("http", "https") and bool(separator) and self.allows(host)


class Door:
    """`token`: what callers of this listener must show, or None. `close()`: what is still open then gets 503."""

    def __init__(
        self, inside: ASGIApp, *, hosts: HostNames, token: str | None, metrics: Metrics, log: FilteringBoundLogger
    ) -> None:
        self._inside = inside
        self._hosts = hosts
        self._gate = Gate(token)
        self._metrics = metrics
        self._log = log
        self._closing = False

    def close(self) -> None:
        """From now on a cancelled request answers 503 in place of an error. Idempotent."""
        self._closing = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        refusal = self._refusal(scope)
        if refusal is not None:
            reason, status, text, headers = refusal
            self._note(scope, reason)
            await _answer(send, status, reason, text, headers)
            return
        scope[GATE] = self._gate
        await self._let_in(scope, receive, send)

    def _refusal(self, scope: Scope) -> tuple[str, int, str, list[tuple[bytes, bytes]]] | None:
        hosts: list[bytes] = []
        origins: list[bytes] = []
        authorizations: list[bytes] = []
        length = None
        for name, value in scope["headers"]:
            if name == b"host":
                hosts.append(value)
            elif name == b"origin":
                origins.append(value)
            elif name == b"authorization":
                authorizations.append(value)
            elif name == b"content-length":
                length = value
        if len(hosts) != 1 or not self._hosts.allows(hosts[0].decode("latin-1")):
            shown = ascii(hosts[0].decode("latin-1")[:100]) if hosts else "none"
            return "host", 421, f"Host {shown} is not served here; the operator may add it to CODESPACE_ALLOW_HOSTS", []
        for origin in origins:
            if self._hosts.allows_origin(origin.decode("latin-1")):
                continue
            shown = ascii(origin.decode("latin-1")[:100])
            return "origin", 403, f"Origin {shown} may not call; the operator may add it to CODESPACE_ALLOW_HOSTS", []
        if (
            self._gate.needed
            and not (scope["path"] in OPEN_PATHS or is_console(scope["path"]))
            and not self._shows_token(authorizations)
        ):
            challenge = b'Bearer realm="codespace"' + (b', error="invalid_token"' if authorizations else b"")
            text = "the bearer token is not the right one" if authorizations else "a bearer token is needed"
            if len(authorizations) > 1:  # which of them counts, a proxy before us may see otherwise
                text = "there is more than one Authorization header"
            return "token", 401, f"{text}; send Authorization: Bearer TOKEN", [(b"www-authenticate", challenge)]
        if length is not None and length.isdigit() and int(length) > MAX_BODY_BYTES:
            # On an open connection what is still on its way is taken and dropped, so that its sender sees the reason.
            close = [(b"connection", b"close")] if int(length) > MAX_BODY_BYTES + DISCARDED_BYTES else []
            return "size", 413, _TOO_LARGE, close
        return None

    def _note(self, scope: Scope, reason: str) -> None:
        self._metrics.request_refused(reason)
        client = scope.get("client")
        peer = "unknown" if client is None else f"{client[0]}:{client[1]}"
        self._log.warning("request_refused", reason=reason, path=scope["path"][:100], peer=peer)

    def _shows_token(self, authorizations: list[bytes]) -> bool:
        if len(authorizations) != 1:
            return False
        scheme, _, shown = authorizations[0].partition(b" ")
        return self._gate.admits(shown.strip()) and scheme.lower() == b"bearer"

    async def _let_in(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = finished = complete = False
        received = 0

        async def bounded_receive() -> Message:
            nonlocal received, complete
            message = await receive()
            if message["type"] == "http.request":
                received += len(message.get("body", b""))
                complete = not message.get("more_body", False)
                if received > MAX_BODY_BYTES:  # sent in chunks, without a length
                    raise _BodyTooLarge
            return message

        async def watched_send(message: Message) -> None:
            nonlocal started, finished
            started = True
            finished = message["type"] == "http.response.body" and not message.get("more_body", False)
            await send(message)

        try:
            await self._inside(scope, bounded_receive, watched_send)
        except _BodyTooLarge:
            self._note(scope, "size")
            if not started:
                if not complete:
                    await _discard(receive)
                await _answer(send, 413, "size", _TOO_LARGE, [(b"connection", b"close")])
        except asyncio.CancelledError:
            if not self._closing:
                raise
            # The server goes down: end the answer properly, so that the client knows that nothing more will come.
            if not started:
                self._metrics.request_refused("closing")
                await _answer(send, 503, "closing", _CLOSING, [(b"connection", b"close")])
            elif not finished:
                await send({"type": "http.response.body", "body": b"", "more_body": False})


_TOO_LARGE = f"the request body is over {MAX_BODY_BYTES} bytes; send less at once"
_CLOSING = "the server is shutting down; what was called may have had its effect: look before you repeat it"


def is_console(path: str) -> bool:
    """The console asks by itself, since a browser sends no Authorization header; what to ask for is in the scope."""
    return path in ("/", "/console") or path.startswith("/console/")


async def _discard(receive: Receive) -> None:
    """The rest of a body, as far as DISCARDED_BYTES. The connection's deadline bounds the time."""
    left = DISCARDED_BYTES
    while left > 0:
        message = await receive()
        if message["type"] != "http.request" or not message.get("more_body", False):
            return
        left -= len(message.get("body", b""))


async def _answer(send: Send, status: int, reason: str, text: str, headers: list[tuple[bytes, bytes]]) -> None:
    body = json.dumps({"error": {"reason": reason, "message": text}}).encode()
    plain = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": plain + headers})
    await send({"type": "http.response.body", "body": body})
