"""Empties a command's output into its ring: always, whoever reads or does not (PROC-4).

One callback on the event loop a command, one bounded read a wake-up, so that a flood from one command delays the others
by no more than that read. Knows a descriptor and a ring; it refuses to know processes, readers and encodings. Called by
`runner.processes.process`.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
from collections.abc import Callable

from runner.processes.ring import OutputRing

READ_BYTES = 1024 * 1024
PIPE_BYTES = 1024 * 1024
"""What an unprivileged process may ask of a pipe by default (pipe(7), /proc/sys/fs/pipe-max-size)."""
_LAST_READS = 64
"""After the bound on draining: how many reads more at most. A pipe holds at most PIPE_BYTES, so one or two do."""


class OutputPump:
    """Reads `fd`, which is non-blocking and stays the caller's, from `start()` until the output has ended or `stop()`.

    `scratch` is shared by all pumps of one loop: its content matters only within one callback. `on_change` is called
    after bytes were added and once when the output has ended. `failure`: the error that ended it, if one did.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        fd: int,
        ring: OutputRing,
        scratch: memoryview,
        on_change: Callable[[], None],
    ) -> None:
        self._loop, self._fd, self._ring, self._scratch, self._on_change = loop, fd, ring, scratch, on_change
        self._reading = False
        self.ended = False
        self.failure: OSError | None = None

    def start(self) -> None:
        os.set_blocking(self._fd, False)
        _widen(self._fd)
        self._loop.add_reader(self._fd, self._on_readable)
        self._reading = True

    def stop(self) -> None:
        """No more reads. Idempotent."""
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._fd)

    def finish(self) -> None:
        """Takes what is there now, without waiting, and calls the output ended. For a command whose writers are dead.

        Idempotent.
        """
        for _ in range(_LAST_READS):
            if self.ended or not self._read_once():
                break
        self._end()

    def _on_readable(self) -> None:
        self._read_once()

    def _read_once(self) -> bool:
        """One read. False when nothing came."""
        try:
            count = os.readv(self._fd, [self._scratch])
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            # A terminal whose last slave closed: EIO, after what was buffered (pty(7), n_tty.c). Anything else on
            # our own descriptor ends the output too: there will be no more.
            if error.errno != errno.EIO:
                self.failure = error
            count = 0
        if count == 0:
            self._end()
            return False
        self._ring.append(self._scratch[:count])
        self._on_change()
        return True

    def _end(self) -> None:
        self.stop()
        if not self.ended:
            self.ended = True
            self._on_change()


def _widen(fd: int) -> None:
    """Fewer wake-ups for chatty commands. A terminal has no such size, and a user's share of pipe pages may be used up:
    the default works too."""
    try:
        fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    except OSError:
        pass
