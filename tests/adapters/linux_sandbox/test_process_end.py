"""How a command ended, from PID 1's record and its own wait status: where they do not agree, nothing is claimed."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from adapters.linux_sandbox.host import look_up
from adapters.linux_sandbox.plan import Abilities, build_plan
from adapters.linux_sandbox.process import Channels, SandboxedProcess
from runner.api import Isolation
from runner.ports import ManagedExit
from tests.adapters.linux_sandbox.support import BOUND_S, terms

pytestmark = pytest.mark.covers("PROC-6", "BOX-5")
BOTH_WAYS = True
PLAN = build_plan(terms("/workspaces/one"), look_up(), Abilities())
FINE = b'{"code":0,"signal":null,"cpu_ms":1}\n'


def stand_in(record: bytes, code: int | None) -> tuple[int, int]:
    """A child in PID 1's stead: writes `record`, then ends with `code`, or by SIGKILL. (pid, its end of the pipe)."""
    read, write = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        try:
            os.write(write, record)
            if code is None:
                os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(99 if code is None else code)
    os.close(write)
    os.set_blocking(read, False)
    return pid, read


async def end_of(record: bytes, code: int | None) -> ManagedExit:
    pid, status = stand_in(record, code)
    control = os.open("/dev/null", os.O_WRONLY | os.O_CLOEXEC)
    output, stdin = os.pipe2(os.O_CLOEXEC)
    channels = Channels(status, control, output, stdin, False)
    isolation = Isolation(command_sandbox="linux-sandbox", network="restricted", protections={})

    async def ended() -> None:
        return None

    process = SandboxedProcess(pid, os.pidfd_open(pid), channels, isolation, PLAN, ended)
    async with asyncio.timeout(BOUND_S):
        found = await process.wait()
    process.close()
    return found


@pytest.mark.parametrize(
    ("record", "code", "found"),
    [
        (FINE, 0, ManagedExit(0, None, 0)),
        (b'{"code":7,"signal":null,"cpu_ms":1}\n', 7, ManagedExit(7, None, 7)),
        (b'{"code":null,"signal":15,"cpu_ms":1}\n', 143, ManagedExit(143, None, None, "SIGTERM")),
        (FINE, None, ManagedExit(None, 9, 0)),
        (b"", None, ManagedExit(None, 9)),
    ],
)
async def test_record_and_status_that_agree_are_the_command_s_end(
    record: bytes, code: int | None, found: ManagedExit
) -> None:
    assert await end_of(record, code) == found


@pytest.mark.parametrize(
    ("record", "code"),
    [
        (b"", 0),
        (b"", 255),
        (b"not a record\n", 0),
        (FINE + FINE, 0),
        (b'{"code":0,"signal":null}\n', 0),
        (b'{"code":0,"signal":9,"cpu_ms":1}\n', 0),
        (b'{"code":0,"signal":null,"cpu_ms":1,"more":1}\n', 0),
        (b'{"code":1,"signal":null,"cpu_ms":1}\n', 0),
        (b'{"code":null,"signal":9,"cpu_ms":1}\n', 0),
        (FINE, 3),
    ],
)
async def test_a_record_that_lies_or_is_missing_is_never_a_success(record: bytes, code: int) -> None:
    found = await end_of(record, code)
    assert (found.exit_code, found.command_code, found.command_signal, found.limit) == (None, None, None, None)
    assert "PID 1" in (found.note or "")
