"""What the contract suite runs against: a runner, whatever stands behind it, and short words for using it.

`Rig` starts commands under fresh ids, waits for what a test names, and ends what a test left running. Each wait is
bounded by the test's own timeout; nothing polls by the clock.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from adapters.filesystem.openat_filesystem import OpenatFileSystem
from gateway.runner_client import UdsRunner
from runner.__main__ import container
from runner.api import (
    Limits,
    ListProcesses,
    ProcessExited,
    ProcessOutput,
    ProcessStatus,
    QueryProcess,
    ReadProcess,
    Runner,
    StartProcess,
    TerminateProcess,
    WorkspaceRef,
    WorkspaceTerms,
    WriteStdin,
)
from runner.log import Level
from runner.ports import SandboxLauncher
from runner.service import RunnerService
from runner.workspace import Environment
from tests.fakes.worker_host import hosted_worker

WAIT_MS = 5_000
_numbers = itertools.count(1)


@dataclass
class RecordingLog:
    """Keeps what was logged; a test reads it."""

    lines: list[tuple[str, dict[str, object]]] = field(default_factory=list)

    def __call__(self, event: str, *, level: Level = "info", **fields: object) -> None:
        self.lines.append((event, {"level": level, **fields}))


class Rig:
    """`runner` with one workspace at `root`. `events`: every event so far, in order of arrival."""

    def __init__(self, runner: Runner, root: str, sandbox: str) -> None:
        self.runner, self.root, self.sandbox = runner, root, sandbox
        self.events: list[ProcessExited] = []
        self._news = asyncio.Event()
        self._ids: list[str] = []
        runner.subscribe(self._on_event)

    def _on_event(self, event: ProcessExited) -> None:
        self.events.append(event)
        self._news.set()

    def terms(self, *, workspace_id: str = "demo", root: str | None = None, **limits: Any) -> WorkspaceTerms:
        """The terms of the rig's workspace; keyword arguments are limits."""
        return WorkspaceTerms.model_validate(
            {"workspace_id": workspace_id, "root": root or self.root, "limits": Limits(**limits)}
        )

    def ref(self) -> WorkspaceRef:
        return WorkspaceRef(workspace_id="demo", root=self.root)

    def new_id(self) -> str:
        process_id = f"proc_{next(_numbers):08d}"
        self._ids.append(process_id)
        return process_id

    async def start(self, *argv: str, tty: bool = False, terms: WorkspaceTerms | None = None) -> str:
        process_id = self.new_id()
        request = StartProcess(process_id=process_id, terms=terms or self.terms(), argv=argv, tty=tty)
        await self.runner.start_process(request)
        return process_id

    async def sh(self, script: str, *, tty: bool = False, terms: WorkspaceTerms | None = None) -> str:
        return await self.start("/bin/sh", "-c", script, tty=tty, terms=terms)

    async def read(self, process_id: str, cursor: int = 0, **more: Any) -> ProcessOutput:
        return await self.runner.read_process(ReadProcess(process_id=process_id, cursor=cursor, **more))

    async def status(self, process_id: str, wait_ms: int = 0) -> ProcessStatus:
        return await self.runner.process_status(QueryProcess(process_id=process_id, wait_ms=wait_ms))

    async def exited(self, process_id: str) -> ProcessStatus:
        """The status once the command is over and its output has ended."""
        while True:
            status = await self.status(process_id, WAIT_MS)
            if status.state == "exited" and status.eof:
                return status

    async def output(self, process_id: str, cursor: int = 0) -> str:
        """Everything from `cursor` to the end of the output."""
        parts = []
        while True:
            got = await self.read(process_id, cursor, wait_ms=WAIT_MS)
            parts.append(got.chunk)
            cursor = got.cursor
            if got.eof:
                return "".join(parts)

    async def until(self, process_id: str, text: str, cursor: int = 0) -> int:
        """Reads until `text` has come; the cursor after what was read."""
        seen = ""
        while text not in seen:
            got = await self.read(process_id, cursor, wait_ms=WAIT_MS)
            assert not got.eof or text in seen + got.chunk, f"ended without {text!r}: {seen + got.chunk!r}"
            seen, cursor = seen + got.chunk, got.cursor
        return cursor

    async def run(self, script: str, **more: Any) -> tuple[str, ProcessStatus]:
        """Output and last status of a shell script."""
        process_id = await self.sh(script, **more)
        return await self.output(process_id), await self.exited(process_id)

    async def write(self, process_id: str, data: str, *, eof: bool = False) -> int:
        answer = await self.runner.write_stdin(WriteStdin(process_id=process_id, data=data, eof=eof))
        return answer.written_bytes

    async def terminate(self, process_id: str) -> ProcessStatus:
        await self.runner.terminate_process(TerminateProcess(process_id=process_id))
        return await self.exited(process_id)

    async def event(self, process_id: str) -> ProcessExited:
        """The exit event of a command, once it has arrived."""
        while True:
            for event in self.events:
                if event.process_id == process_id:
                    return event
            self._news.clear()
            await self._news.wait()

    async def tidy(self) -> None:
        """Ends what the last test left running."""
        ids, self._ids = set(self._ids), []
        listed = await self.runner.list_processes(ListProcesses())
        for process in listed.processes:
            if process.process_id in ids and process.state == "running":
                await self.terminate(process.process_id)


def make_service(launcher: SandboxLauncher, *, max_processes: int = 8, **more: Any) -> RunnerService:
    """A service on real files and `launcher`, without what a test of processes does not need."""
    options: dict[str, Any] = {
        "environments": {
            "host": Environment(filesystem=OpenatFileSystem(), launcher=launcher),
            "linux-container": container(),
        },
        "watch": None,
        "max_processes": max_processes,
        "log": RecordingLog(),
    }
    return RunnerService(**{**options, **more})


@contextmanager
def workspace() -> Iterator[str]:
    """A new directory under its canonical name."""
    with tempfile.TemporaryDirectory(prefix="codespace-rig-") as root:
        yield os.path.realpath(root)


@asynccontextmanager
async def in_process(service: RunnerService, sandbox: str) -> AsyncIterator[Rig]:
    """The service in this process."""
    await service.start()
    with workspace() as root:
        try:
            yield Rig(service, root, sandbox)
        finally:
            await service.close()


@asynccontextmanager
async def over_the_socket(module: Sequence[str], sandbox: str) -> AsyncIterator[Rig]:
    """The worker program behind the gateway's own client."""
    loop = asyncio.get_running_loop()
    async with hosted_worker(module) as worker:
        runner = UdsRunner(lambda reason: None)
        await loop.create_unix_connection(lambda: runner, sock=worker.connection)
        await runner.hello()
        with workspace() as root:
            try:
                yield Rig(runner, root, sandbox)
            finally:
                await runner.close()
                await worker.exited()
