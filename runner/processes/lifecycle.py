"""The life of one command as a table, and what its end is called (PROC-3, PROC-6).

Pure: no clock, descriptor or loop. `runner.processes.process` walks it.

    STARTING --started--> RUNNING --reaped--> DRAINING --drained--> ENDED
       |                     |
       +------lost-----------+--> UNCERTAIN --gone--> ENDED

DRAINING: the managed child is reaped, so nothing of the command lives, but its last output may still be in the pipe.
UNCERTAIN: the command may or may not run, and nobody here can say; it counts as running until it is proved gone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Literal

from runner.api import CommandExit
from runner.ports import ManagedExit

Termination = Literal["exited", "timeout", "terminated", "unknown"]
Limit = Literal["timeout_s", "cpu_s", "memory_mb", "processes", "file_size_mb"]


class State(Enum):
    STARTING = "starting"
    RUNNING = "running"
    UNCERTAIN = "uncertain"
    DRAINING = "draining"
    ENDED = "ended"

    @property
    def is_over(self) -> bool:
        """Nothing of the command is alive."""
        return self in (State.DRAINING, State.ENDED)


class Step(Enum):
    STARTED = "started"
    LOST = "lost"
    REAPED = "reaped"
    DRAINED = "drained"
    GONE = "gone"


STEPS: Mapping[tuple[State, Step], State] = {
    (State.STARTING, Step.STARTED): State.RUNNING,
    (State.STARTING, Step.LOST): State.UNCERTAIN,
    (State.RUNNING, Step.REAPED): State.DRAINING,
    (State.RUNNING, Step.LOST): State.UNCERTAIN,
    (State.DRAINING, Step.DRAINED): State.ENDED,
    (State.UNCERTAIN, Step.GONE): State.ENDED,
}


class Cause(Enum):
    """Why the runner set out to end a command. The first one stands."""

    TIMEOUT = "timeout"
    TERMINATED = "terminated"


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a command ended, in the words of the contract. `exit_code` is the managed child's."""

    termination: Termination
    exit_code: int | None = None
    command_exit: CommandExit | None = None
    limit: Limit | None = None


GONE = Verdict("unknown")
"""It is over, and that is all that can be said."""


def judge(cause: Cause | None, exit: ManagedExit) -> Verdict:
    """The cause decides, never the code: a command that answers TERM with status 0 was still terminated.

    Without a cause of ours, a managed child that died of a signal died of something unknown: it is never the command's
    own doing (PROC-6).
    """
    command_exit = None
    if exit.command_signal is not None:
        command_exit = CommandExit(signal=exit.command_signal)
    elif exit.command_code is not None:
        command_exit = CommandExit(code=exit.command_code)
    if cause is Cause.TIMEOUT:
        return Verdict("timeout", None, command_exit, "timeout_s")
    if cause is Cause.TERMINATED:
        return Verdict("terminated", None, command_exit)
    if exit.exit_code is None:
        return Verdict("unknown", None, command_exit, exit.limit)
    return Verdict("exited", exit.exit_code, command_exit, exit.limit)
