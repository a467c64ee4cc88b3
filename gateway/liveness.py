"""Proof of death: a FIFO a runner, whose write end every process of that runner inherits (LEASE-2, PROC-7).

No writer left means that nothing which the runner started is alive. The FIFOs have names in the data directory, so the
proof outlives the gateway: a new one finds those of a gateway that was killed, and waits for the end of what that one
left before it serves the same roots. Refuses to know: processes, leases. Used by the runner links and at start.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from gateway.errors import StartFailed

_SUFFIX = ".liveness"


class Liveness:
    """The read end: its end of file proves the death of all writers. Bytes that someone writes mean nothing."""

    def __init__(self, descriptor: int, path: Path) -> None:
        loop = asyncio.get_running_loop()
        self._dead: asyncio.Future[None] = loop.create_future()
        self._loop = loop
        self._descriptor = descriptor
        self._path = path
        loop.add_reader(descriptor, self._ready)

    async def dead(self) -> None:
        """Returns once the death is proved; the FIFO is removed then. Safe to cancel and repeat. Raises
        `asyncio.CancelledError` after `give_up`."""
        await asyncio.shield(self._dead)
        await asyncio.to_thread(self._path.unlink, missing_ok=True)

    def give_up(self) -> None:
        """Stops watching without claiming a death; the FIFO stays for the next start. Idempotent."""
        if not self._dead.done():
            self._dead.cancel()
            self._stop()

    def _ready(self) -> None:
        try:
            if os.read(self._descriptor, 4096):
                return
        except BlockingIOError:
            return
        self._stop()
        self._dead.set_result(None)

    def _stop(self) -> None:
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)


class LivenessDirectory:
    """`path`: made when needed, mode 0700, inside the locked data directory."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._next = 0

    async def create(self) -> tuple[Liveness, int]:
        """A watched read end, and the write end to hand down: close-on-exec, to be closed here once a child has it.

        The watch begins with a writer, so there is no end of file before the first child. Raises `OSError`.
        """
        self._next += 1
        path = self._path / f"{os.getpid()}-{self._next}{_SUFFIX}"
        read_end, write_end = await asyncio.to_thread(_make, path)
        return Liveness(read_end, path), write_end

    async def await_the_dead(self, within_s: float) -> None:
        """Returns once nothing that an earlier run left behind is alive. Raises `StartFailed` after `within_s`."""
        left = await asyncio.to_thread(_left_behind, self._path)
        watched = [Liveness(descriptor, path) for path, descriptor in left]
        if not watched:
            return
        deaths = [asyncio.ensure_future(one.dead()) for one in watched]
        try:
            _, alive = await asyncio.wait(deaths, timeout=within_s)
            if alive:
                raise StartFailed(
                    "commands of an earlier run are still ending",
                    str(self._path),
                    "try again; if it stays so, look for processes in uninterruptible sleep (state D)",
                )
        finally:
            for one in watched:
                one.give_up()
            for death in deaths:
                death.cancel()
            await asyncio.wait(deaths)


def _make(path: Path) -> tuple[int, int]:
    path.parent.mkdir(mode=0o700, exist_ok=True)
    path.unlink(missing_ok=True)  # of an earlier process with our pid, proved dead at start
    os.mkfifo(path, 0o600)
    # Reader first, without waiting; then the writer finds one and does not wait either (fifo(7)).
    read_end = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return read_end, os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    except BaseException:
        os.close(read_end)
        raise


def _left_behind(directory: Path) -> list[tuple[Path, int]]:
    """FIFOs that have a writer, with a read end each; those without are removed."""
    found: list[tuple[Path, int]] = []
    for path in sorted(directory.glob(f"*{_SUFFIX}")):
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        if _has_writer(descriptor):
            found.append((path, descriptor))
        else:
            os.close(descriptor)
            path.unlink()
    return found


def _has_writer(descriptor: int) -> bool:
    """A FIFO without writers reads as ended at once; with writers it has nothing yet, or bytes (fifo(7), read(2))."""
    while True:
        try:
            if not os.read(descriptor, 4096):
                return False
        except BlockingIOError:
            return True
