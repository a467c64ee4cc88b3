"""One HTTP connection: uvicorn's protocol with a place to take and deadlines to keep.

uvicorn bounds the time between requests alone. Here a client also has a time for its head, for its body and for taking
what was sent to it; a request that is being answered waits as long as its call does. Refuses to know: who the peer is,
routes. Made by `gateway.http.server`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from typing import Literal, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from gateway.http.limits import Deadlines, Room

_FULL = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nretry-after: 5\r\nconnection: close\r\n\r\n"
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
"""As uvicorn writes it; it goes before any answer."""
_SLOW = b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
Phase = Literal["silent", "head", "body", "idle"]
WHEN_LOST = "codespace.when_lost"
"""Where in a scope's state a request finds a set of functions that are called if its connection is lost."""


class HeadWithBody:
    """What one request's answer is written to: a transport that keeps the first thing back until the next, or until the
    end of this turn of the loop.

    uvicorn writes an answer's head and its body one after the other, and uvloop hands each to the kernel at once: the
    client would wake twice, and the first time for nothing.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._first = True
        self._kept = b""

    def write(self, data: bytes) -> None:
        if self._transport.is_closing():
            return  # cut off meanwhile: uvloop's transport would raise, and nobody reads it
        if self._first and data != _CONTINUE:
            self._first = False
            self._kept = data
            self._loop.call_soon(self._flush)
            return
        if not self._kept:
            self._transport.write(data)
            return
        kept, self._kept = self._kept, b""
        self._transport.writelines((kept, data))

    def _flush(self) -> None:
        """A body that comes later, as in a stream of events, keeps no head waiting."""
        kept, self._kept = self._kept, b""
        if kept and not self._transport.is_closing():
            self._transport.write(kept)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def is_closing(self) -> bool:
        return self._transport.is_closing()


class BoundedHttpProtocol(HttpToolsProtocol):
    """`room`: where it takes a place, or is cut off at once. It is left when the connection is lost."""

    def __init__(self, room: Room, deadlines: Deadlines, config: uvicorn.Config, state: ServerState) -> None:
        self._when_lost: set[Callable[[], object]] = set()
        super().__init__(config, state, {WHEN_LOST: self._when_lost})
        self.room = room
        self.entered = False
        self._deadlines = deadlines
        self._phase: Phase = "silent"
        self._completed = 0
        self._read_timer: asyncio.TimerHandle | None = None
        self._timed: tuple[bool, int] | None = None
        """What `_read_timer` bounds: head or body of the message after so many complete ones."""
        self._write_timer: asyncio.TimerHandle | None = None
        self._unread_bytes = 0

    # --- the connection -----------------------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.entered = self.room.enter()
        if not self.entered:
            # Written past the transport, which would keep the descriptor until the peer has read it.
            with contextlib.suppress(OSError):
                os.write(transport.get_extra_info("socket").fileno(), _FULL)
            transport.abort()
            return
        self._bound(self._deadlines.head_s)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unbound()
        self._writable()
        # uvicorn leaves this one running where the connection was lost by an error.
        self._unset_keepalive_if_required()
        if self.entered:
            self.entered = False
            self.room.leave()
        for call in list(self._when_lost):
            call()

    # --- reading ------------------------------------------------------------------------------------------------------
    def data_received(self, data: bytes) -> None:
        if not self.entered:
            return
        completed = self._completed
        super().data_received(data)
        if self.transport.is_closing():
            self._unbound()
            self._bound_writing()
        elif self._phase == "head":
            self._bound(self._deadlines.head_s)
        elif self._phase == "body":
            self._bound(self._deadlines.body_s)
        elif self.cycle is not None and not self.cycle.response_complete:
            self._unbound()  # it is being answered
        elif self._completed > completed:
            # The answer was there before all of the request: what follows is a pause like any other.
            self._unbound()
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )
        else:
            self._bound(self._deadlines.head_s)  # empty lines before a request are no request

    def on_message_begin(self) -> None:
        self._phase = "head"
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._phase = "body"
        before = self.cycle
        super().on_headers_complete()
        if self.cycle is not before:
            self.cycle.transport = cast(asyncio.Transport, HeadWithBody(self.transport, self.loop))

    def on_message_complete(self) -> None:
        self._phase = "idle"
        self._completed += 1
        super().on_message_complete()

    def _bound(self, seconds: float) -> None:
        """Once for each phase: further bytes win no time."""
        timed = (self._phase == "body", self._completed)
        if self._timed != timed:
            self._unbound()
            self._timed = timed
            self._read_timer = self.loop.call_later(seconds, self._too_slow, seconds)

    def _unbound(self) -> None:
        self._timed = None
        if self._read_timer is not None:
            self._read_timer.cancel()
            self._read_timer = None

    def _too_slow(self, seconds: float) -> None:
        if self.flow.read_paused:  # it is us who do not read
            self._read_timer = self.loop.call_later(seconds, self._too_slow, seconds)
            return
        self._unbound()
        self.room.too_slow(self._phase)
        answering = self.cycle is not None and not self.cycle.response_complete
        if self._phase != "head" or answering:
            self.transport.abort()
            return
        self.transport.write(_SLOW)
        self.transport.close()
        self._bound_writing()

    # --- writing ------------------------------------------------------------------------------------------------------
    def pause_writing(self) -> None:
        super().pause_writing()
        self._bound_writing()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.transport.is_closing():
            self._writable()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            self._unbound()
            self._bound_writing()

    def timeout_keep_alive_handler(self) -> None:
        """A peer that has not taken the last answer by now never will, and closing would wait for it."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            super().timeout_keep_alive_handler()

    def _bound_writing(self) -> None:
        if self._write_timer is None:
            self._unread_bytes = self.transport.get_write_buffer_size()
            self._write_timer = self.loop.call_later(self._deadlines.unread_s, self._unread)

    def _writable(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _unread(self) -> None:
        self._write_timer = None
        if 0 < self.transport.get_write_buffer_size() < self._unread_bytes:
            self._bound_writing()
            return
        self.room.too_slow("answer")
        self.transport.abort()
