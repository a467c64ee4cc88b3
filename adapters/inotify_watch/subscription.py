"""One listener's bounded view of the events of a workspace. Called by `backend`."""

from __future__ import annotations

import asyncio
from collections import deque

from runner.ports import WatchEvent

QUEUE_EVENTS = 1024


class Subscription:
    """An asynchronous iterator of events; ends after `close`. A listener that lags by more than QUEUE_EVENTS loses what
    waited and gets one `resync_required` of the same epoch instead (WATCH-2)."""

    def __init__(self, queue_events: int = QUEUE_EVENTS) -> None:
        self._waiting: deque[WatchEvent] = deque()
        self._queue_events = queue_events
        self._wake = asyncio.Event()
        self._closed = False

    def put(self, event: WatchEvent) -> None:
        if self._closed:
            return
        if len(self._waiting) >= self._queue_events:
            self._waiting.clear()
            event = WatchEvent("resync_required", event.epoch, event.seq)
        self._waiting.append(event)
        self._wake.set()

    def close(self) -> None:
        """What waits is still given. Idempotent."""
        self._closed = True
        self._wake.set()

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> WatchEvent:
        while not self._waiting:
            if self._closed:
                raise StopAsyncIteration
            self._wake.clear()
            await self._wake.wait()
        return self._waiting.popleft()
