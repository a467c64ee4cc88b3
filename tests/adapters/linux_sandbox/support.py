"""What the launcher's tests share: commands run to their end, with everything bounded."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass

from adapters.linux_sandbox.launcher import LinuxSandboxLauncher
from runner.api import Isolation, WorkspaceTerms
from runner.ports import LaunchRequest, ManagedExit, ManagedProcess

BOUND_S = 30.0
"""No wait of a test is longer. Only a bound: nothing is asserted about time."""


@dataclass(frozen=True)
class Ended:
    """A command that is over: everything it wrote, and how it ended."""

    output: str
    exit: ManagedExit
    isolation: Isolation


def terms(root: str, **changes: object) -> WorkspaceTerms:
    return WorkspaceTerms.model_validate({"workspace_id": "test", "root": root, **changes})


async def start(
    launcher: LinuxSandboxLauncher, what: WorkspaceTerms, argv: Sequence[str], tty: tuple[int, int] | None = None
) -> ManagedProcess:
    request = LaunchRequest(process_id="test", terms=what, argv=tuple(argv), tty_size=tty)
    async with asyncio.timeout(BOUND_S):
        return await launcher.launch(request)


async def read_until(process: ManagedProcess, ending: bytes) -> bytes:
    """Output up to and with `ending`; fails where the output ends before."""
    seen = b""
    async with asyncio.timeout(BOUND_S):
        while ending not in seen:
            part = await read_some(process.output_fd)
            assert part, f"the output ended before {ending!r}: {seen!r}"
            seen += part
    return seen


async def read_some(fd: int) -> bytes:
    """Some bytes, or none at the end (which a terminal says as EIO)."""
    while True:
        try:
            return os.read(fd, 65536)
        except BlockingIOError:
            await _readable(fd)
        except OSError:
            return b""


async def _readable(fd: int) -> None:
    loop = asyncio.get_running_loop()
    event = asyncio.Event()
    loop.add_reader(fd, event.set)
    try:
        await event.wait()
    finally:
        loop.remove_reader(fd)


async def finish(process: ManagedProcess) -> Ended:
    """Reads to the end, waits, closes."""
    output = b""
    async with asyncio.timeout(BOUND_S):
        ending = asyncio.create_task(process.wait())
        while part := await read_some(process.output_fd):
            output += part
        ended = await ending
    process.close()
    return Ended(output.decode(errors="replace"), ended, process.isolation)


async def run(
    launcher: LinuxSandboxLauncher,
    what: WorkspaceTerms,
    *argv: str,
    tty: tuple[int, int] | None = None,
    stdin: bytes | None = None,
) -> Ended:
    """One command from start to end. `stdin`: written (it must fit the pipe), then closed."""
    process = await start(launcher, what, argv, tty)
    if stdin is not None:
        assert process.stdin_fd is not None
        os.write(process.stdin_fd, stdin)
    if tty is None:
        process.close_stdin()
    return await finish(process)


async def shell(launcher: LinuxSandboxLauncher, what: WorkspaceTerms, script: str) -> Ended:
    return await run(launcher, what, "/bin/sh", "-c", script)
