"""PID 1 of a sandbox while the command runs: reaps, passes signals on, says how the command ended, and ends with it.

Its end kills everything left in the namespace (PROC-11). It keeps three descriptors: the status pipe, the control pipe
and the liveness pipe. On the control pipe each byte is a signal number for every process but itself; its end means that
the runner is gone. Refuses to know what the command is. Called by the child.
"""

from __future__ import annotations

import os
import signal
import time
from types import FrameType

from sandbox_helper import syscalls as sc
from sandbox_helper.protocol import end_record

STATUS_FD, CONTROL_FD, LIVENESS_FD = 0, 1, 2
RUNNER_GONE = 255


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    """SIGCHLD needs a handler, so that it interrupts the wait."""


def _hold_child_signal() -> None:
    """SIGCHLD stays pending except during the wait, so that none is lost in between.

    After the command was started, which would inherit the mask, and before the first look for an end.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGCHLD,))
    signal.signal(signal.SIGCHLD, _interrupt)
    # The interpreter's own handler would let the command end PID 1 with `kill -INT 1`; without one the kernel drops it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def warm_up(control: int) -> None:
    """Before there is a command: the steps of its end, so that memory shared with the server is copied by now.

    Mask and handler are as they were afterwards, since the command inherits the one and must not find the other. Raises
    OSError.
    """
    _hold_child_signal()
    signal.raise_signal(signal.SIGCHLD)
    sc.ppoll_in(control, 0)
    try:
        reap(0)
    except ChildProcessError:
        pass
    end_record(0, None, cpu_time_ns(1) // 1_000_000)
    for number in (signal.SIGCHLD, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGCHLD,))


def settle(status: int, control: int, liveness: int | None) -> None:
    """Keeps the three descriptors at 0, 1, 2 and closes all others. Raises OSError."""
    _hold_child_signal()
    kept = [fd if fd > LIVENESS_FD else os.dup(fd) for fd in (status, control)]
    if liveness is not None:
        kept.append(liveness if liveness > LIVENESS_FD else os.dup(liveness))
    for target, fd in enumerate(kept):
        os.dup2(fd, target, inheritable=False)
    sc.close_range(len(kept))


def serve(main: int) -> None:
    """Until the process `main` has ended. Does not return."""
    if os.getpid() != 1:
        os._exit(RUNNER_GONE)  # what is passed on to every process of a namespace must never reach another one's
    while True:
        try:
            ended = reap(main)
        except ChildProcessError:
            os._exit(RUNNER_GONE)
        if ended is not None:
            finish(*ended)
        if sc.ppoll_in(CONTROL_FD, 0):
            pass_on(os.read(CONTROL_FD, 64))


def reap(main: int) -> tuple[int, int] | None:
    """Reaps every child that has ended. (wait status, nanoseconds of CPU) of `main` once it is among them.

    Raises ChildProcessError where there is no child.
    """
    while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
        cpu_ns = cpu_time_ns(main) if ended.si_pid == main else 0
        pid, status = os.waitpid(ended.si_pid, 0)
        if pid == main:
            return status, cpu_ns
    return None


def cpu_time_ns(pid: int) -> int:
    """What a process that is not reaped yet has used, by the clock that RLIMIT_CPU is held against.

    The times of wait4(2) are scaled to the scheduler's clock and can lie a quarter below it, so they do not tell
    whether the limit struck. Source: the kernel's MAKE_PROCESS_CPUCLOCK(pid, CPUCLOCK_PROF).
    """
    try:
        return time.clock_gettime_ns(~pid << 3)
    except OSError:
        return 0  # only the name of a limit depends on it


def finish(status: int, cpu_ns: int) -> None:
    """Says how the command ended and ends the same way, as far as PID 1 can. Does not return."""
    signalled = os.WIFSIGNALED(status)
    code = None if signalled else os.WEXITSTATUS(status)
    number = os.WTERMSIG(status) if signalled else None
    try:
        os.write(STATUS_FD, end_record(code, number, cpu_ns // 1_000_000))
    except OSError:
        pass  # nobody reads any more; the end itself still shows
    os._exit(128 + number if number is not None else code or 0)


def pass_on(signals: bytes) -> None:
    """To every process of the namespace but this one."""
    if not signals:
        os._exit(RUNNER_GONE)
    for number in signals:
        try:
            os.kill(-1, number)
        except OSError:
            pass  # nobody left to signal
