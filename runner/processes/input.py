"""Writes to a command's input with back-pressure and a bound (write_stdin).

Knows a descriptor; it refuses to know processes and requests. Called by `runner.processes.process`.
"""

from __future__ import annotations

import asyncio
import os
import termios
from collections.abc import Callable
from typing import NoReturn

from runner.api import ErrorCode, RunnerError

WRITE_BOUND_S = 2.0
"""A full pipe that nobody reads is waited for this long; then the answer is how much was written."""

_CONTINUATION_MASK = 0b1100_0000
_CONTINUATION = 0b1000_0000
_VDISABLE = b"\0"


class InputWriter:
    """One writer at a time on `fd`, non-blocking, which stays the caller's.

    A write that stops half-way stops after a whole character: callers resend text, not bytes. Up to three bytes of such
    a character count as written at once and follow by themselves as soon as there is room.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, fd: int, *, bound_s: float = WRITE_BOUND_S) -> None:
        self._loop, self._fd, self._bound_s = loop, fd, bound_s
        self._lock = asyncio.Lock()
        self._rest = b""
        self._room: asyncio.Future[None] | None = None
        self._watching = False
        self._at_line_start = True
        self._closed = False
        self._then: Callable[[], None] | None = None
        os.set_blocking(fd, False)

    def close_after_rest(self, then: Callable[[], None]) -> None:
        """Refuses later writes, and calls `then` once what was counted as written is written. Idempotent."""
        if self._closed or self._then is not None:
            return
        self._then = then
        self._settle()

    def close(self) -> None:
        """Wakes who waits; later writes are refused. The caller closes the descriptor after this. Idempotent."""
        self._closed = True
        self._unwatch()
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    def _settle(self) -> None:
        if self._then is not None and not self._rest and not self._closed:
            self.close()
            self._then()

    async def write(self, data: bytes) -> int:
        """Bytes of `data` written within the bound, cut after a whole character.

        Raises `RunnerError` INVALID_ARGUMENT, reason `stdin_closed`, where the command no longer reads its input and
        nothing was written.
        """
        until = self._loop.time() + self._bound_s
        try:
            async with asyncio.timeout_at(until):
                await self._lock.acquire()
        except TimeoutError:
            return 0
        try:
            return await self._write(data, until)
        finally:
            self._lock.release()

    async def write_end_of_file(self) -> None:
        """On a terminal: its end-of-file character.

        Raises `RunnerError` INVALID_ARGUMENT, reason `no_eof_character`, if the command has disabled it (termios(3)),
        and reason `eof_not_written` if there was no room for it within the bound; what was written before stays so.
        """
        character = self._end_of_file_character()
        if await self.write(character) < len(character):
            raise RunnerError(
                ErrorCode.INVALID_ARGUMENT,
                "the data is written, but the terminal took no end-of-file character within "
                f"{self._bound_s:g} s, since nobody reads; send eof again with empty data",
                retryable=True,
                details={"argument": "eof", "reason": "eof_not_written"},
            )

    def _end_of_file_character(self) -> bytes:
        """VEOF, twice where it would only flush a line begun."""
        attributes = termios.tcgetattr(self._fd)
        character = attributes[6][termios.VEOF]
        if not isinstance(character, bytes) or character == _VDISABLE:
            raise RunnerError(
                ErrorCode.INVALID_ARGUMENT,
                "the command's terminal has no end-of-file character now; send what the program takes for its end",
                details={"argument": "eof", "reason": "no_eof_character"},
            )
        canonical = bool(attributes[3] & termios.ICANON)
        return character * 2 if canonical and not self._at_line_start else character

    async def _write(self, data: bytes, until: float) -> int:
        written = 0
        if self._then is not None and data:
            _refuse_closed()
        while self._rest or written < len(data):
            if self._closed:
                break
            try:
                count = os.write(self._fd, self._rest or data[written : written + 65536])
            except (BlockingIOError, InterruptedError):
                if not await self._wait_for_room(until):
                    break
                continue
            except OSError:  # EPIPE: no reader; EIO: no terminal
                self._closed = True
                break
            if self._rest:
                self._rest = self._rest[count:]
            else:
                written += count
        self._settle()
        if self._closed and data and not written:
            _refuse_closed()
        written = self._whole_character(data, written)
        if written:
            self._at_line_start = data[written - 1 : written] in (b"\n", b"\r", b"\x04")
        return written

    def _whole_character(self, data: bytes, written: int) -> int:
        end = written
        while 0 < end < len(data) and data[end] & _CONTINUATION_MASK == _CONTINUATION:
            end += 1
        if end > written and not self._closed:
            self._rest = data[written:end]
            self._watch()
        return end

    async def _wait_for_room(self, until: float) -> bool:
        self._room = self._loop.create_future()
        self._watch()
        try:
            async with asyncio.timeout_at(until):
                await self._room
        except TimeoutError:
            return False
        finally:
            self._room = None
            if not self._rest:
                self._unwatch()
        return True

    def _watch(self) -> None:
        if not self._watching and not self._closed:
            self._watching = True
            self._loop.add_writer(self._fd, self._on_writable)

    def _unwatch(self) -> None:
        if self._watching:
            self._watching = False
            self._loop.remove_writer(self._fd)

    def _on_writable(self) -> None:
        self._unwatch()
        if self._room is not None:
            if not self._room.done():
                self._room.set_result(None)
            return
        if self._rest:
            try:
                self._rest = self._rest[os.write(self._fd, self._rest) :]
            except (BlockingIOError, InterruptedError):
                pass
            except OSError:
                self._closed, self._rest = True, b""
        if self._rest:
            self._watch()
        else:
            self._settle()


def _refuse_closed() -> NoReturn:
    raise RunnerError(
        ErrorCode.INVALID_ARGUMENT,
        "the command's input is closed: by an earlier eof, or by the command itself; nothing was written",
        details={"argument": "data", "reason": "stdin_closed"},
    )
