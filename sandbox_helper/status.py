"""What a child says about itself: one JSON line for each stage it enters, and one for the step that failed.

Stages go to the status pipe, which the runner looks into once the report socket ends: a line there wakes nobody.
Refuses to know what the stages do. Used by the child, whose every step is preceded by `enter`, so that a failure, or a
kill, names its stage.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sandbox_helper.protocol import STAGES, Cover, Failure, encode, failure_value, stage_line

_STAGE_LINES = {stage: stage_line(stage) for stage in STAGES}
"""Made before any fork: a stage costs one write."""


class VerifyFailed(OSError):
    """The kernel's own account of the child is not what was asked for."""

    def __init__(self, what: str) -> None:
        super().__init__(errno.EPERM, f"verification: {what}")


def os_failure(stage: str, error: OSError) -> Failure:
    number = error.errno or errno.EIO
    path = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else ""
    return Failure(stage, errno.errorcode.get(number, str(number)), path, error.strerror or str(error))


class StageFailed(Exception):
    """A step of the helper's own start that failed; `failure` says which."""

    def __init__(self, stage: str, error: OSError) -> None:
        super().__init__(f"{stage}: {error}")
        self.failure = os_failure(stage, error)


@contextmanager
def at_stage(stage: str) -> Iterator[None]:
    """Names the stage of what fails within. Raises StageFailed."""
    try:
        yield
    except OSError as error:
        raise StageFailed(stage, error) from error


class Reporter:
    """`fd`, `status`: the child's ends of the report socket and the status pipe. `fault`: a stage at which to fail, for
    tests of the failure itself (a probe never does, or every test would end there)."""

    __slots__ = ("_fault", "fd", "stage", "status")

    def __init__(self, fd: int, status: int, fault: str | None) -> None:
        self.fd, self.status = fd, status
        self.stage = STAGES[0]
        self._fault = fault

    def enter(self, stage: str) -> None:
        """Raises OSError where the runner is gone: nobody would own the command."""
        self.stage = stage
        os.write(self.status, _STAGE_LINES[stage])
        if stage == self._fault:
            raise OSError(errno.EIO, "failure asked for by the helper's --fault option")

    def note_covers(self, covers: list[Cover]) -> None:
        """What the runner has to watch, and which placeholders it removes afterwards. Raises OSError."""
        if covers:
            self.say({"covers": covers})

    def say(self, record: dict[str, Any]) -> None:
        """Raises OSError where the runner is gone."""
        os.write(self.fd, encode(record))

    def fail(self, error: Exception) -> None:
        """Says what failed; a runner that is gone needs no answer. Anything but an OSError is our own fault, and ends
        the start like one."""
        if not isinstance(error, OSError):
            error = OSError(errno.ENOTRECOVERABLE, f"{type(error).__name__}: {error}")
        try:
            os.write(self.fd, encode(failure_value(os_failure(self.stage, error))))
        except OSError:
            pass
