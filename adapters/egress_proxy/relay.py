"""Copies bytes between two connections until both directions have ended, holding little and reading none of it.

Each direction has one buffer and waits for its receiver. Refuses to know what is copied. Used by the proxy's session.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

CHUNK_BYTES = 64 * 1024
IDLE_TIMEOUT_S = 15 * 60.0
"""Neither direction moved for this long: the connection is given up."""
CLOSE_TIMEOUT_S = 5.0


class Idle:
    """Puts a timeout off whenever something moved."""

    def __init__(self, timeout: asyncio.Timeout) -> None:
        self._timeout = timeout

    def moved(self) -> None:
        self._timeout.reschedule(asyncio.get_running_loop().time() + IDLE_TIMEOUT_S)


async def relay(
    client: tuple[asyncio.StreamReader, asyncio.StreamWriter], server: tuple[asyncio.StreamReader, asyncio.StreamWriter]
) -> None:
    """Until both have ended, one is lost, or nothing moves. An end in one direction is passed on as an end."""
    try:
        async with asyncio.timeout(IDLE_TIMEOUT_S) as timeout:
            idle = Idle(timeout)
            async with asyncio.TaskGroup() as both:
                both.create_task(copy(client[0], server[1], idle.moved))
                both.create_task(copy(server[0], client[1], idle.moved))
    except* OSError:
        pass  # one end is lost, or nothing moved (TimeoutError is an OSError)


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, moved: Callable[[], None]) -> None:
    """Raises OSError where either end is lost."""
    while data := await reader.read(CHUNK_BYTES):
        writer.write(data)
        await writer.drain()
        moved()
    if writer.can_write_eof():
        writer.write_eof()


async def shut(writer: asyncio.StreamWriter) -> None:
    """Closes; what is still buffered has a short time to leave. Never raises for a connection that is lost."""
    writer.close()
    try:
        async with asyncio.timeout(CLOSE_TIMEOUT_S):
            await writer.wait_closed()
    except (OSError, TimeoutError):
        writer.transport.abort()
