"""Proof of death: a FIFO a runner, whose write end every process of that runner inherits (LEASE-2, PROC-7).

No writer left means that nothing which the runner started is alive. The FIFOs have names in the data directory, so the
proof outlives the gateway: a new one finds those of a gateway that was killed, and waits for the end of what that one
left before it serves the same roots. Refuses to know: processes, leases. Used by the runner links and at start.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path

from gateway.errors import StartFailed

_SUFFIX = ".liveness"


class Liveness:
    """The read end: `dead` completes at its end of file. Bytes that someone writes are read and mean nothing."""

    def __init__(self, descriptor: int, path: Path) -> None:
        loop = asyncio.get_running_loop()
        self.dead: asyncio.Future[None] = loop.create_future()
        self._loop = loop
        self._descriptor = descriptor
        self._path = path
        loop.add_reader(descriptor, self._ready)

    def _ready(self) -> None:
        try:
            if os.read(self._descriptor, 4096):
                return
        except BlockingIOError:
            return
        self._stop()
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()
        if not self.dead.done():
            self.dead.set_result(None)

    def give_up(self) -> None:
        """Stops watching without claiming a death; the FIFO stays for the next start. Idempotent."""
        if not self.dead.done():
            self.dead.cancel()
            self._stop()

    def _stop(self) -> None:
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)


class LivenessDirectory:
    """`path`: made when needed, mode 0700, inside the locked data directory."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._next = 0

    def create(self) -> tuple[Liveness, int]:
        """A watched read end, and the write end to hand down: close-on-exec, to be closed here once a child has it.

        The watch begins with a writer, so there is no end of file before the first child. Raises `OSError`.
        """
        self._path.mkdir(mode=0o700, exist_ok=True)
        self._next += 1
        path = self._path / f"{os.getpid()}-{self._next}{_SUFFIX}"
        with contextlib.suppress(FileNotFoundError):
            path.unlink()  # of an earlier process with our pid, proved dead at start
        os.mkfifo(path, 0o600)
        # Reader first, without waiting; then the writer finds one and does not wait either (fifo(7)).
        read_end = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            write_end = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        except BaseException:
            os.close(read_end)
            raise
        return Liveness(read_end, path), write_end

    async def await_the_dead(self, within_s: float) -> None:
        """Returns once nothing that an earlier run left behind is alive. Raises `StartFailed` after `within_s`."""
        if not self._path.is_dir():
            return
        watched: list[Liveness] = []
        try:
            for path in sorted(self._path.glob(f"*{_SUFFIX}")):
                descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                if _has_writer(descriptor):
                    watched.append(Liveness(descriptor, path))
                else:
                    os.close(descriptor)
                    path.unlink()
            if not watched:
                return
            _, alive = await asyncio.wait({one.dead for one in watched}, timeout=within_s)
            if alive:
                raise StartFailed(
                    "commands of an earlier run are still ending",
                    str(self._path),
                    "try again; if it stays so, look for processes in uninterruptible sleep (state D)",
                )
        finally:
            for one in watched:
                one.give_up()


def _has_writer(descriptor: int) -> bool:
    """A FIFO without writers reads as ended at once; with writers it has nothing yet, or bytes (fifo(7), read(2))."""
    while True:
        try:
            if not os.read(descriptor, 4096):
                return False
        except BlockingIOError:
            return True
