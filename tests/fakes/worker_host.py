"""The gateway's half of starting a worker, as little of it as a test needs: listen, spawn, accept.

The connection comes back raw, so that a test may speak through `gateway.runner_client.UdsRunner` or byte by byte.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from runner.wire import Connection, Role, WireEvent

REPOSITORY = Path(__file__).resolve().parents[2]
FAKE_WORKER = ("tests.fakes.worker_program",)
REAL_WORKER = ("runner",)


@dataclass
class HostedWorker:
    """`connection`: our end, non-blocking. `liveness`: read end of the pipe whose end of file proves all dead."""

    child: subprocess.Popen[bytes]
    connection: socket.socket
    liveness: int
    log: str

    async def exited(self) -> int:
        """Its exit status, once it has one."""
        return await asyncio.to_thread(self.child.wait)

    async def all_dead(self) -> None:
        """Returns once nothing that holds the liveness pipe is alive."""
        assert await asyncio.to_thread(os.read, self.liveness, 1) == b""


@asynccontextmanager
async def hosted_worker(module: Sequence[str], *, max_processes: int = 8) -> AsyncIterator[HostedWorker]:
    """A worker that has connected and waits for nothing but the hello. Killed at the end if it still lives."""
    directory = tempfile.mkdtemp(prefix="codespace-test-")
    path, log = f"{directory}/runner.sock", f"{directory}/log"
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    child = None
    try:
        with socket.socket(socket.AF_UNIX) as listener, open(log, "wb") as log_file:  # noqa: ASYNC230
            listener.setblocking(False)
            listener.bind(path)
            listener.listen(1)
            child = await asyncio.to_thread(
                subprocess.Popen[bytes],
                [
                    *(sys.executable, "-m", *module),
                    *("--socket", path, "--liveness-fd", str(write_end), "--max-processes", str(max_processes)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log_file,
                pass_fds=(write_end,),
                start_new_session=True,
                cwd=REPOSITORY,
                env={"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"},
            )
            os.close(write_end)
            connection, _ = await asyncio.get_running_loop().sock_accept(listener)
        try:
            yield HostedWorker(child, connection, read_end, log)
        finally:
            connection.close()
    finally:
        if child is not None:
            child.kill()
            await asyncio.to_thread(child.wait)
        os.close(read_end)
        shutil.rmtree(directory)


class RawGateway:
    """The gateway's end by hand: what a test sends is what the worker gets, broken or not."""

    def __init__(self, connection: socket.socket) -> None:
        self.wire = Connection(Role.GATEWAY)
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._events: list[WireEvent] = []

    async def send(self, data: bytes) -> None:
        await self._loop.sock_sendall(self._connection, data)

    async def flush(self) -> None:
        await self.send(self.wire.data_to_send())

    async def next_event(self) -> WireEvent:
        """The next thing the worker says, its end of the stream included."""
        while not self._events:
            data = await self._loop.sock_recv(self._connection, 1 << 16)
            self._events += self.wire.receive_data(data) if data else self.wire.receive_eof()
            if not data and not self._events:
                raise EOFError("the worker closed a connection that had ended already")
        return self._events.pop(0)

    async def greet(self) -> None:
        """Both hellos."""
        await self.next_event()
        self.wire.send_hello()
        await self.flush()
