"""What a start costs, counted: system calls of the helper and of the command's first process, until the command runs.

Counts do not depend on how busy the machine is. The bounds leave a third of room, so that a kernel or a library may ask
a little more; a start that does its work twice does not fit.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from adapters.linux_sandbox.launcher import LinuxSandboxLauncher
from runner.api import WorkspaceTerms
from runner.ports import LaunchRequest

COMMANDS = 20
WAIT_S = 60
FROM_NOTHING, PREPARED = 0, 1
AT_MOST = {FROM_NOTHING: 415, PREPARED: 455}
"""Sandboxes that wait, to system calls of one command, its preparation included: 321 and 353 when this was written."""
_ENTRY = re.compile(r"(?m)^(\d+) +(\w+)\(")


@dataclass
class Trace:
    """`names`: how often each call was made, by the helper and its children until the command's exec."""

    names: Counter[str] = field(default_factory=Counter)

    def read(self, text: str) -> None:
        """What strace wrote."""
        running: set[str] = set()
        for pid, name in _ENTRY.findall(text):
            if pid not in running:
                self.names[name] += 1
            if name == "execve":  # whatever follows is the command's own
                running.add(pid)


@asynccontextmanager
async def traced(pid: int) -> AsyncIterator[Trace]:
    """Of the process, its threads and the children that it makes meanwhile."""
    trace = Trace()
    with tempfile.NamedTemporaryFile(prefix="cs-strace-", mode="r") as log:
        command = ["strace", "-f", "-p", str(pid), "-o", log.name, "-e", "signal=none"]
        strace = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
        assert strace.stderr is not None
        try:
            said = await asyncio.wait_for(strace.stderr.readline(), WAIT_S)
            assert b"attached" in said, said.decode()
            yield trace
        finally:
            strace.send_signal(signal.SIGINT)
            await asyncio.wait_for(strace.communicate(), WAIT_S)
        trace.read(log.read())


async def run(launcher: LinuxSandboxLauncher, terms: WorkspaceTerms) -> None:
    process = await launcher.launch(LaunchRequest("proc_counted", terms, ("/bin/true",), None))
    try:
        assert (await asyncio.wait_for(process.wait(), WAIT_S)).command_code == 0
    finally:
        process.close()
    await asyncio.wait_for(launcher.pool.settled(), WAIT_S)


@pytest.mark.kernel("namespaces")
@pytest.mark.timeout(180)
@pytest.mark.skipif(os.geteuid() != 0, reason="the helper is undumpable: root alone can trace it")
@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
@pytest.mark.parametrize("waiting", AT_MOST)
async def test_a_start_makes_no_more_system_calls_than_it_did(waiting: int, tmp_path: Path) -> None:
    launcher = LinuxSandboxLauncher(prepared=waiting)
    terms = WorkspaceTerms(workspace_id="demo", root=str(tmp_path))
    await launcher.start()
    try:
        for _ in range(3):
            await run(launcher, terms)
        async with traced(launcher._helpers["sandbox"].pid) as trace:
            for _ in range(COMMANDS):
                await run(launcher, terms)
    finally:
        await launcher.close()
    # Who waited when tracing began is not traced.
    assert trace.names["execve"] == COMMANDS - waiting
    calls = trace.names.total() / COMMANDS
    often = ", ".join(f"{name} {count / COMMANDS:g}" for name, count in trace.names.most_common(20))
    assert calls <= AT_MOST[waiting], f"{calls:g} a command: {often}"
