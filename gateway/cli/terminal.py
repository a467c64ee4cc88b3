"""Runs one program for a person at a terminal: streams copied, signals passed on, the terminal put back.

Without a terminal of its own the program gets pipes where we have a terminal: a command must not hold the person's.
With one it runs on a pseudo-terminal (ptyprocess), which also follows our size. The program dies with us. Refuses to
know: what the program is. Called through `gateway.__main__` for `codespace exec`.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import termios
import tty
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType

import ptyprocess

PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
_CHUNK_BYTES = 64 * 1024
_LAST_BYTES = 16 * 1024
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


@dataclass(frozen=True)
class Ended:
    """`status`: the exit status, 128 + n where signal n ended the program. `last_words`: the end of what it wrote to
    standard error, or to its terminal."""

    status: int
    last_words: bytes


def run_on_pipes(argv: Sequence[str], pass_fds: Sequence[int], silent_status: int) -> Ended:
    """Standard error is shown unless the program ends with `silent_status`: then it is about us, not of the command."""
    own_input = os.isatty(0)
    program = subprocess.Popen(
        argv,
        stdin=subprocess.PIPE if own_input else None,
        stdout=subprocess.PIPE if os.isatty(1) else None,
        stderr=subprocess.PIPE,
        env={},
        pass_fds=pass_fds,
        start_new_session=True,  # a ^C reaches it through us alone, once
        preexec_fn=_die_with_parent,
    )
    held = _Held(2)
    with program, _passing_on(program.send_signal):
        routes: dict[int, Callable[[bytes], object]] = {}
        if program.stdout is not None:
            routes[program.stdout.fileno()] = lambda data: _write_all(1, data)
        assert program.stderr is not None
        routes[program.stderr.fileno()] = held.take
        sink = None if program.stdin is None else program.stdin.fileno()
        _copy(routes, 0 if own_input else None, sink, program.stdin.close if program.stdin is not None else None)
        code = program.wait()
    status = code if code >= 0 else 128 - code
    if status != silent_status:
        held.release()
    return Ended(status, held.last)


def run_on_terminal(argv: Sequence[str], pass_fds: Sequence[int], size: tuple[int, int], silent_status: int) -> Ended:
    """`size`: rows, columns to begin with. Ours is raw meanwhile, so that every key goes to the program."""
    program = ptyprocess.PtyProcess.spawn(
        list(argv), env={}, dimensions=size, pass_fds=tuple(pass_fds), preexec_fn=_raw_and_die_with_parent
    )
    held = _Held(1)

    def resized(_number: int, _frame: FrameType | None) -> None:
        with contextlib.suppress(OSError):
            columns, rows = os.get_terminal_size(0)
            program.setwinsize(rows, columns)

    before = signal.signal(signal.SIGWINCH, resized)
    try:
        with _raw(), _passing_on(lambda number: os.kill(program.pid, number)):
            _copy({program.fd: held.take}, 0, program.fd, lambda: _write_all(program.fd, b"\x04"))
            program.wait()
    finally:
        signal.signal(signal.SIGWINCH, before)
        program.close(force=True)
    status = 128 + program.signalstatus if program.signalstatus is not None else program.exitstatus
    if status != silent_status:
        held.release()
    return Ended(status, held.last)


class _Held:
    """Passes bytes on, except that a beginning that looks like the program's own report is held back until the end."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._holding = True
        self.last = b""

    def take(self, data: bytes) -> None:
        self.last = (self.last + data)[-_LAST_BYTES:]
        if self._holding and self.last.startswith(b'{"failed"'[: len(self.last)]):
            return
        if self._holding:
            self._holding = False
            data = self.last
        _write_all(self._fd, data)

    def release(self) -> None:
        if self._holding:
            self._holding = False
            _write_all(self._fd, self.last)


def _copy(
    routes: dict[int, Callable[[bytes], object]],
    source: int | None,
    sink: int | None,
    at_end: Callable[[], object] | None,
) -> None:
    """Until every output has ended. `source` goes to `sink`, and `at_end` is called when it ends."""
    poll = select.poll()
    for fd in routes:
        poll.register(fd, select.POLLIN)
    if source is not None:
        poll.register(source, select.POLLIN)
    open_outputs = set(routes)
    while open_outputs:
        for fd, _ in poll.poll():
            data = _read(fd)
            if fd in open_outputs:
                if data:
                    routes[fd](data)
                else:
                    open_outputs.discard(fd)
                    poll.unregister(fd)
            elif data and sink is not None:
                if not _write_all(sink, data):
                    poll.unregister(fd)  # it reads no more
            else:
                poll.unregister(fd)
                if at_end is not None:
                    at_end()


def _read(fd: int) -> bytes:
    try:
        return os.read(fd, _CHUNK_BYTES)
    except OSError:  # a terminal whose other side is gone says EIO
        return b""


def _write_all(fd: int, data: bytes) -> bool:
    """False where nobody reads any more."""
    while data:
        try:
            data = data[os.write(fd, data) :]
        except BrokenPipeError:
            if fd == 1:
                raise
            return False
        except OSError:
            return False
    return True


@contextlib.contextmanager
def _raw() -> Iterator[None]:
    if not os.isatty(0):
        yield
        return
    before = termios.tcgetattr(0)
    tty.setraw(0)
    try:
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)


@contextlib.contextmanager
def _passing_on(send: Callable[[int], None]) -> Iterator[None]:
    def pass_on(number: int, _frame: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            send(number)

    before = {number: signal.signal(number, pass_on) for number in PASSED_ON}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _raw_and_die_with_parent() -> None:
    # The program makes its terminal raw itself, but what we send before that would be echoed and cooked.
    tty.setraw(0, termios.TCSANOW)
    _die_with_parent()


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
