"""The start of the command's own process, PID 2 inside: session, descriptors, limits, directory, exec.

PID 1 has every restriction already, and its child inherits them, so nothing here is privileged. Two ways lead to exec.
Without a terminal the child shares PID 1's memory until then (vfork), which saves copying an interpreter's page tables;
limits, mask and directory are set in PID 1 just before. A terminal needs a step of its own in the child (TIOCSCTTY), so
that child is forked. Refuses to know how its surroundings were made. Called by the child.
"""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import subprocess

from sandbox_helper import limits, posture, terminal
from sandbox_helper import syscalls as sc
from sandbox_helper.protocol import INTERPRETER_MISSING, Plan, Run
from sandbox_helper.status import Reporter, VerifyFailed

_REPORT_FD, _STATUS_FD = 3, 4
Streams = tuple[int, int, int]


def start(plan: Plan, run: Run, streams: Streams | None, reporter: Reporter, slave_path: str | None) -> int:
    """The pid of the command. `streams`: for 0, 1 and 2, or None for the terminal `slave_path`.

    Raises OSError where it did not start, unless a forked child says so itself.
    """
    reporter.enter("session")
    if streams is not None and run.payload == "exec":
        return _spawn(plan, run, streams, reporter)
    pid = os.fork()
    if pid == 0:
        try:
            _become(plan, run, streams, reporter, slave_path)
        except Exception as error:  # noqa: BLE001 - the outermost handler of this process
            reporter.fail(error)
        finally:
            os._exit(1)
    return pid


def warm_up(plan: Plan, streams: Streams | None) -> None:
    """For a child that waits: what can be done before it knows its command, and the way to exec once, up to a fork that
    the kernel refuses. That copies memory shared with the server now, where the next time writes to it. Raises OSError.
    """
    _enter(plan)
    os.chdir("/")
    if streams is None:
        return  # its command is forked, and gets limits of its own
    resource.setrlimit(resource.RLIMIT_NPROC, (0, resource.getrlimit(resource.RLIMIT_NPROC)[1]))
    try:
        _popen(plan, (b"/",), streams)
    except OSError:
        pass  # nobody could run a directory either
    else:
        raise VerifyFailed("a directory was run")
    limits.apply(plan.limits)


def _spawn(plan: Plan, run: Run, streams: Streams, reporter: Reporter) -> int:
    _enter_place(plan, reporter, limited=run.waits)
    reporter.enter("exec")
    try:
        command = _popen(plan, run.argv, streams)
    except FileNotFoundError as error:
        raise _explained(error, plan, run) from error
    os.chdir("/")
    _kept.append(command)
    # The runner waits for the end of the report; what is still to do here is nothing to it.
    os.close(reporter.fd)
    return command.pid


def _popen(plan: Plan, argv: tuple[bytes, ...], streams: Streams) -> subprocess.Popen[bytes]:
    """The session and descriptors 0, 1, 2 are Popen's part, and those that it has to close where nobody has verified
    that exec does; signals are as the server left them, all default. Raises OSError, ValueError.
    """
    return subprocess.Popen(
        argv,
        env=dict(plan.env),
        stdin=streams[0],
        stdout=streams[1],
        stderr=streams[2],
        start_new_session=True,
        close_fds=plan.mode == "plain",
    )


_kept: list[subprocess.Popen[bytes]] = []
"""Popen would wait for its child when collected; PID 1 does that itself."""


def _become(plan: Plan, run: Run, streams: Streams | None, reporter: Reporter, slave_path: str | None) -> None:
    """Turns the calling process into the command. Raises OSError."""
    os.setsid()
    if slave_path is not None:
        slave = terminal.take(slave_path)
        streams = (slave, slave, slave)
    if streams is None:
        raise VerifyFailed("neither streams nor a terminal")
    _place_descriptors(streams, reporter)
    _enter_place(plan, reporter)
    reporter.enter("exec")
    if run.payload == "posture":
        posture.print_own()
        os._exit(0)
    # execvpe(3)'s search, in the command's own PATH.
    try:
        os.execvpe(run.argv[0], run.argv, dict(plan.env))
    except FileNotFoundError as error:
        raise _explained(error, plan, run) from error


def _explained(error: OSError, plan: Plan, run: Run) -> OSError:
    """exec says ENOENT of the program and of its interpreter alike; a look tells them apart. The place is the
    command's own, which a lie about it harms alone."""
    program = run.argv[0]
    places = (program,) if b"/" in program else _in_path(program, plan)
    if any(os.access(place, os.X_OK) and os.path.isfile(place) for place in places):
        return OSError(errno.ENOENT, INTERPRETER_MISSING, program)
    return OSError(errno.ENOENT, os.strerror(errno.ENOENT), program)


def _enter_place(plan: Plan, reporter: Reporter, *, limited: bool = False) -> None:
    if not limited:
        limits.apply(plan.limits)
    reporter.enter("chdir")
    _enter(plan)


def _enter(plan: Plan) -> None:
    os.umask(plan.umask)
    os.chdir(plan.workspace)
    # A working directory outside the new root would be a way out (CVE-2024-21626); the kernel names it unreachable.
    if os.getcwd() != plan.workspace:
        raise VerifyFailed(f"the working directory is {os.getcwd()}")


def _place_descriptors(streams: Streams, reporter: Reporter) -> None:
    # All of them out of the way first, so that none is overwritten before it was copied.
    report, status = _above_standard(reporter.fd), _above_standard(reporter.status)
    for target, source in enumerate([_above_standard(fd) for fd in streams]):
        os.dup2(source, target)
    os.dup2(report, _REPORT_FD, inheritable=False)
    os.dup2(status, _STATUS_FD, inheritable=False)
    reporter.fd, reporter.status = _REPORT_FD, _STATUS_FD
    sc.close_range(_STATUS_FD + 1)


def _above_standard(fd: int) -> int:
    return fd if fd > _STATUS_FD else fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _STATUS_FD + 1)


def _in_path(program: bytes, plan: Plan) -> tuple[bytes, ...]:
    return tuple(os.path.join(os.fsencode(directory), program) for directory in os.get_exec_path(dict(plan.env)))
