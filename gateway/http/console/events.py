"""What a page is told while it is open: that something changed, and the output of the one command that it shows.

Server-sent events (HTML, 9.2). Nothing is queued for a browser: it is told that something is different, or given what
a command's output has become, when it has taken what it was sent before. What a slow one missed of the output is gone
from the ring by then, and it is told how much. Refuses to know: pages, markup. Used by the console.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.application import Application
from gateway.errors import ToolError
from gateway.http.console.ansi import Renderer
from runner import api

MAX_STREAMS = 64
MAX_STREAMS_OF_ONE = 16
"""Of one session: as many pages may be open and seen."""
BEAT_S = 15.0
"""A browser that hears nothing for longer than two of these takes the connection for lost."""
RETRY_MS = 1_000
GAP_S = 0.2
"""Between two changes that are told: what happens at once is told once."""
OUTPUT_GAP_S = 0.2
OUTPUT_BYTES = 64 * 1024
TAIL_BYTES = 128 * 1024
"""Of what was written before the page was opened."""
OUTPUT_WAIT_MS = 10_000


class Streams:
    """Places for open streams."""

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()
        self._ended: dict[str, asyncio.Event] = {}

    def enter(self, owner: str) -> bool:
        """False where no place is left for this session. To be asked and taken at once: many may come together."""
        if self._open.total() >= MAX_STREAMS or self._open[owner] >= MAX_STREAMS_OF_ONE:
            return False
        self._open[owner] += 1
        return True

    def leave(self, owner: str) -> None:
        """Belongs to every `enter` that was granted."""
        self._open[owner] -= 1
        if not self._open[owner]:
            del self._open[owner]
            self._ended.pop(owner, None)

    def ended(self, owner: str) -> asyncio.Event:
        """What is set when this session is closed. For one that entered."""
        return self._ended.setdefault(owner, asyncio.Event())

    def end(self, owner: str) -> None:
        """Its session is closed, and nothing more is to be told to it."""
        if (event := self._ended.get(owner)) is not None:
            event.set()


class EventStream(Response):
    """A response whose body `write` sends piece by piece, each when the one before is taken. It is cancelled when the
    browser goes away, wherever it is then; Starlette's own response leaves an iterator open that waits for nothing.
    `over`: called at its end, however it ends."""

    media_type = "text/event-stream"

    def __init__(
        self,
        write: Callable[[Callable[[bytes], Awaitable[None]]], Awaitable[None]],
        headers: Mapping[str, str],
        over: Callable[[], None],
    ) -> None:
        self._write = write
        self._over = over
        # For proxies that would wait for more.
        super().__init__(None, 200, {**headers, "x-accel-buffering": "no"})
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._send_all(receive, send)
        finally:
            self._over()

    async def _send_all(self, receive: Receive, send: Send) -> None:
        async def piece(body: bytes) -> None:
            await send({"type": "http.response.body", "body": body, "more_body": True})

        async def gone() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass

        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        writing, leaving = _task(self._write(piece)), _task(gone())
        try:
            await asyncio.wait({writing, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (writing, leaving):
                task.cancel()
            await asyncio.wait({writing, leaving})
        if not writing.cancelled():
            writing.result()
            await send({"type": "http.response.body", "body": b"", "more_body": False})


async def events(
    application: Application,
    seen: str,
    process_id: str | None,
    is_open: Callable[[], Awaitable[bool]],
    ended: asyncio.Event,
) -> AsyncGenerator[bytes, None]:
    """Until the session is over, or whoever reads goes away. `seen`: the mark of what the page shows. `is_open`:
    whether the session still is; asked at every beat. `ended`: set where it was closed."""
    clock = asyncio.get_running_loop().time
    mark = application.changes.mark
    asked = clock()
    yield f"retry: {RETRY_MS}\n\n".encode()
    # Told at once where the page is behind, and in any case that the stream is there.
    yield event("change" if seen != mark else "beat", {}, mark)
    output = None if process_id is None else output_of(application, process_id)
    changed = _task(_after(application, mark, 0.0))
    written = None if output is None else _task(anext(output, None))
    closed = _task(ended.wait())
    try:
        while True:
            waited = {changed, closed} if written is None else {changed, closed, written}
            done, _ = await asyncio.wait(waited, timeout=BEAT_S, return_when=asyncio.FIRST_COMPLETED)
            if closed in done:
                yield event("ended", {}, mark)
                return
            if clock() - asked >= BEAT_S:
                asked = clock()
                if not await is_open():
                    yield event("ended", {}, mark)
                    return
                yield event("beat", {}, mark)
            if changed in done:
                mark = changed.result()
                changed = _task(_after(application, mark, GAP_S))
                yield event("change", {}, mark)
            if written is not None and written in done:
                piece = written.result()
                written = None
                if piece is not None and output is not None:
                    yield event("output", piece, mark)
                    written = _task(anext(output, None))
    finally:
        for task in (changed, written, closed):
            if task is not None:
                task.cancel()
                await asyncio.wait({task})
        if output is not None:
            await output.aclose()


def event(name: str, data: Mapping[str, Any], mark: str) -> bytes:
    """One event. JSON has no line ends of its own, so data cannot end it early."""
    return f"event: {name}\nid: {mark}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode()


async def output_of(application: Application, process_id: str) -> AsyncGenerator[dict[str, Any], None]:
    """Pieces of a command's output, from its tail on: `{runs: [[text, classes]], reset?, skipped?, eof?, failed?}`.
    `reset`: what was shown before is to go. `skipped`: bytes that are gone. The last one has `eof` or `failed`."""
    renderer = Renderer()
    cursor: int | None = None
    try:
        while True:
            first = cursor is None
            if cursor is None:
                status = await application.process_status(api.QueryProcess(process_id=process_id))
                cursor = max(status.output_retained_from, status.output_total - TAIL_BYTES)
            read = await application.read_process(
                api.ReadProcess(
                    process_id=process_id,
                    cursor=cursor,
                    wait_ms=0 if first else OUTPUT_WAIT_MS,
                    max_bytes=OUTPUT_BYTES,
                )
            )
            piece: dict[str, Any] = {}
            skipped = cursor if first else read.retained_from - cursor if read.output_lost else 0
            if first:
                piece["reset"] = True
            if skipped > 0:
                piece["skipped"] = skipped
            if read.eof:
                piece["eof"] = True
            piece["runs"] = [[run.text, run.classes] for run in renderer.feed(read.chunk, final=read.eof)]
            cursor = read.cursor
            if first or read.chunk or read.eof:
                yield piece
            if read.eof:
                return
            await asyncio.sleep(OUTPUT_GAP_S)
    except ToolError as error:
        yield {"runs": [], "failed": error.message}


async def _after(application: Application, mark: str, gap_s: float) -> str:
    await asyncio.sleep(gap_s)
    return await application.changes.after(mark)


def _task(awaitable: Any) -> asyncio.Task[Any]:
    async def wait() -> Any:
        return await awaitable

    return asyncio.get_running_loop().create_task(wait())
