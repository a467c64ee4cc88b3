"""The child of a `plain` plan: a session, limits and clean descriptors, and no isolation whatever.

The operator switched the sandbox off. What remains is that the command's whole tree ends with it: the child is a
subreaper, so orphans come back to it, and it kills what descends from it until nothing does. It learns of the runner's
end by the control pipe: a parent-death signal would end it before its duty is done. Refuses to pretend more.
Called by the server.
"""

from __future__ import annotations

import os
import signal

from sandbox_helper import command, init, process_control, terminal
from sandbox_helper import syscalls as sc
from sandbox_helper.child import Descriptors, Facts
from sandbox_helper.protocol import Plan, Run
from sandbox_helper.status import Reporter


def run(facts: Facts, plan: Plan, request: Run, given: Descriptors) -> None:
    """Does not return."""
    reporter = Reporter(given.report, given.status, facts.fault if request.payload == "exec" else None)
    try:
        reporter.enter("parent")
        process_control.become_subreaper()
        reporter.enter("terminal")
        slave = terminal.make(reporter.fd, request.tty) if request.tty else None
        main = command.start(plan, request, given.streams(), reporter, slave)
    except Exception as error:  # noqa: BLE001 - the outermost handler of this process
        reporter.fail(error)
        os._exit(1)
    init.settle(given.status, given.control, facts.liveness_fd)
    _serve(main)


def _serve(main: int) -> None:
    while True:
        if ended := init.reap(main):
            _kill_descendants()
            init.finish(*ended)
        if sc.ppoll_in(init.CONTROL_FD, 0):
            signals = os.read(init.CONTROL_FD, 64)
            if not signals:
                _kill_descendants()
                os._exit(init.RUNNER_GONE)
            for number in signals:
                for pid in _descendants():
                    _signal(pid, number)


def _descendants() -> list[int]:
    """Every process below this one, by /proc/PID/task/PID/children."""
    found, waiting = [], [os.getpid()]
    while waiting:
        pid = waiting.pop()
        try:
            with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as children:
                below = [int(child) for child in children.read().split()]
        except OSError:
            continue
        found.extend(below)
        waiting.extend(below)
    return found


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except OSError:
        pass


def _kill_descendants() -> None:
    """Stopped first, so that none forks on while it is looked for; then killed and reaped, until none is left."""
    while descendants := _descendants():
        for pid in descendants:
            _signal(pid, signal.SIGSTOP)
        for pid in descendants:
            _signal(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return
