"""The command's own process, PID 2 inside: session, terminal, signals, descriptors, limits, directory, exec.

It already has every restriction of PID 1, so nothing here is privileged. Refuses to know how its surroundings were
made. Called by the child in a fresh fork; returns only by an error.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal

from sandbox_helper import limits, posture, terminal
from sandbox_helper import syscalls as sc
from sandbox_helper.protocol import Plan, Run
from sandbox_helper.status import Reporter, VerifyFailed

_REPORT_FD = 3


def become(
    plan: Plan, run: Run, streams: tuple[int, int, int] | None, reporter: Reporter, slave_path: str | None
) -> None:
    """Turns the calling process into the command. `streams`: for 0, 1 and 2, or None for the terminal `slave_path`.

    Raises OSError, with the stage said to `reporter`.
    """
    os.setsid()
    if slave_path is not None:
        slave = terminal.take(slave_path)
        streams = (slave, slave, slave)
    if streams is None:
        raise VerifyFailed("neither streams nor a terminal")
    _reset_signals()
    _place_descriptors(streams, reporter)
    limits.apply(plan.limits)
    os.umask(plan.umask)
    reporter.enter("chdir")
    os.chdir(plan.workspace)
    # A working directory outside the new root would be a way out (CVE-2024-21626); the kernel names it unreachable.
    if os.getcwd() != plan.workspace:
        raise VerifyFailed(f"the working directory is {os.getcwd()}")
    reporter.enter("exec")
    if run.payload == "posture":
        posture.print_own()
        os._exit(0)
    _execute(run.argv, dict(plan.env))


def _reset_signals() -> None:
    """Handlers end with exec by themselves; ignored signals and the mask do not."""
    for number in signal.valid_signals():
        if number not in (signal.SIGKILL, signal.SIGSTOP) and signal.getsignal(number) not in (signal.SIG_DFL, None):
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _place_descriptors(streams: tuple[int, int, int], reporter: Reporter) -> None:
    # All of them out of the way first, so that none is overwritten before it was copied.
    report = _above_standard(reporter.fd)
    for target, source in enumerate([_above_standard(fd) for fd in streams]):
        os.dup2(source, target)
    os.dup2(report, _REPORT_FD, inheritable=False)
    reporter.fd = _REPORT_FD
    sc.close_range(_REPORT_FD + 1)


def _above_standard(fd: int) -> int:
    return fd if fd > _REPORT_FD else fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _REPORT_FD + 1)


def _execute(argv: tuple[bytes, ...], env: dict[str, str]) -> None:
    """execve with the search of execvp(3), in the command's own PATH. Raises OSError of the best attempt."""
    program = argv[0]
    if b"/" in program:
        os.execve(program, argv, env)
    best = OSError(errno.ENOENT, os.strerror(errno.ENOENT), os.fsdecode(program))
    for directory in os.fsencode(env.get("PATH", "")).split(b":"):
        try:
            os.execve(os.path.join(directory or b".", program), argv, env)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            if error.errno != errno.EACCES:
                raise
            best = error
    raise best
