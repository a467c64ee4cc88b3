"""A worker that follows a script: the other end of a real socket pair, for the runner client's tests."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from gateway.runner_client import UdsRunner
from runner.wire import CancelReceived, Connection, GoodbyeReceived, RequestReceived, Role, WireEvent

ANSWERS: dict[str, dict[str, Any]] = {
    "start_process": {"process_id": "proc_1", "started_at_utc": "2024-01-02T03:04:05Z"},
    "terminate_process": {"process_id": "proc_1", "state": "running"},
    "list_processes": {"processes": []},
    "recover_patches": {"recovered": []},
    "apply_patch": {"status": "applied", "files": [], "changes": []},
}
EXITED = {
    "event": "process_exited",
    "process_id": "proc_1",
    "workspace_id": "demo",
    "termination": "exited",
    "exited_at_utc": "2024-01-02T03:04:05Z",
}


class ScriptedWorker:
    """`heard`: requests, in order. Says nothing by itself."""

    def __init__(self, end: socket.socket) -> None:
        self.wire = Connection(Role.WORKER)
        self.heard: list[RequestReceived] = []
        self.cancelled: list[int] = []
        self.goodbye: str | None = None
        self._end = end
        self._loop = asyncio.get_running_loop()
        self._events: list[WireEvent] = []

    async def flush(self) -> None:
        await self._loop.sock_sendall(self._end, self.wire.data_to_send())

    async def raw(self, data: bytes) -> None:
        await self._loop.sock_sendall(self._end, data)

    async def greet(self) -> None:
        self.wire.send_hello("run-1")
        await self.flush()
        await self.next_event()

    async def next_event(self) -> WireEvent:
        while not self._events:
            data = await self._loop.sock_recv(self._end, 1 << 16)
            self._events += self.wire.receive_data(data) if data else self.wire.receive_eof()
        return self._events.pop(0)

    async def request(self) -> RequestReceived:
        """The next request; cancels that come before it are kept in `cancelled`."""
        while True:
            event = await self.next_event()
            if isinstance(event, RequestReceived):
                self.heard.append(event)
                return event
            assert isinstance(event, CancelReceived), event
            self.cancelled.append(event.request_id)

    async def cancel(self) -> int:
        event = await self.next_event()
        assert isinstance(event, CancelReceived), event
        return event.request_id

    async def farewell(self) -> str:
        event = await self.next_event()
        assert isinstance(event, GoodbyeReceived), event
        return event.reason

    async def answer(self, request: RequestReceived, result: dict[str, Any] | None = None) -> None:
        self.wire.send_result(request.request_id, ANSWERS[request.method] if result is None else result)
        await self.flush()

    def hang_up(self) -> None:
        self._end.close()


@asynccontextmanager
async def connected(*, greet: bool = True) -> AsyncIterator[tuple[UdsRunner, ScriptedWorker, list[str]]]:
    """The client, the worker at its other end, and the reasons it gave for its loss."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    losses: list[str] = []
    runner = UdsRunner(losses.append)
    loop = asyncio.get_running_loop()
    await loop.create_unix_connection(lambda: runner, sock=ours)
    worker = ScriptedWorker(theirs)
    try:
        if greet:
            await worker.greet()
            await runner.hello()
        yield runner, worker, losses
    finally:
        runner.abort("the test is over")
        await asyncio.wait_for(runner.close(), 5)
        worker.hang_up()
