"""The runner itself: `runner.api.Runner` over the ports (PROC, FS, ENV-1).

It performs what it is asked and reports what happened. It refuses to know: policy, leases, approvals, MCP, the socket
its requests came through, and every execution backend. `runner.worker` serves it over the private socket;
`gateway.__main__` joins it in process.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Iterable

from runner.api import (
    MAX_STDIN_BYTES,
    ApplyPatch,
    Describe,
    EnvironmentSupport,
    ErrorCode,
    EventListener,
    FileContent,
    FindFiles,
    FindPage,
    GrepFiles,
    GrepPage,
    IsolationReport,
    ListProcesses,
    NetworkDecisions,
    PatchApplied,
    ProcessExited,
    ProcessList,
    ProcessOutput,
    ProcessResized,
    ProcessStarted,
    ProcessStatus,
    ProcessTerminating,
    QueryProcess,
    ReadFile,
    ReadProcess,
    RecoveredPatches,
    RecoverPatches,
    ResizeProcess,
    RunnerDescription,
    RunnerError,
    StartProcess,
    StdinWritten,
    TerminateProcess,
    TerminateWorkspace,
    TidyWorkspace,
    WorkspaceRef,
    WorkspaceTerminated,
    WorkspaceTidied,
    WriteStdin,
    check_argv,
)
from runner.files import Files
from runner.log import Log
from runner.ports import PatchEngine, WatchBackend
from runner.processes.output import READ_BYTES
from runner.processes.process import Process
from runner.processes.start import start
from runner.processes.table import ProcessTable
from runner.watch import WatchHints
from runner.workspace import Environment, Environments, environment_of, unavailable

CLOSE_BOUND_S = 4.0
"""A killed command that is not reaped within this is reported in the log and left to the death of this process."""
TERMINATE_WORKSPACE_BOUND_S = 10.0


class RunnerService:
    """One runner instance. An environment or a port that is missing is a part this runner lacks: `describe` says so,
    requests are refused.

    `clock`: seconds, monotonic, for the age of finished handles. `network_decisions`: what the managed proxy decided so
    far. Use it on one event loop.
    """

    def __init__(
        self,
        *,
        environments: Environments,
        watch: WatchBackend | None,
        max_processes: int,
        log: Log,
        clock: Callable[[], float] = time.monotonic,
        network_decisions: Callable[[], tuple[NetworkDecisions, ...]] = tuple,
    ) -> None:
        self.runner_instance_id = f"runner_{secrets.token_hex(12)}"
        self._environments, self._log = environments, log
        self._network_decisions = network_decisions
        self.watch_hints = WatchHints(watch, log)
        self._files = Files(self.watch_hints)
        self._table = ProcessTable(max_running=max_processes, clock=clock)
        self._scratch = memoryview(bytearray(READ_BYTES))
        self._listeners: list[EventListener] = []
        self._launches: set[asyncio.Task[ProcessStarted]] = set()
        self._closing: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Gets the sandbox helper going, so that the first command does not wait for it.

        A machine that cannot sandbox is no reason to refuse reads: the launcher then says so on each request.
        """
        for environment in self._environments.values():
            if environment.launcher is not None:
                await environment.launcher.start()

    # --- describe ---------------------------------------------------------------------------------------------------
    async def describe(self, request: Describe) -> RunnerDescription:
        kind = request.terms.environment if request.terms is not None else "host"
        environment = self._environments.get(kind, Environment())
        isolation = _NO_ISOLATION
        if environment.launcher is not None:
            isolation = await environment.launcher.report(request.terms)
        support = environment.support or EnvironmentSupport(
            kind=kind,
            exec_supported=isolation.available,
            file_read_supported=environment.filesystem is not None,
            file_write_supported=environment.patch_available,
        )
        return RunnerDescription(
            runner_instance_id=self.runner_instance_id,
            environment=support,
            isolation=isolation,
            grep_available=environment.grep_available,
            patch_available=environment.patch_available,
            network_decisions=self._network_decisions(),
        )

    # --- files and patches ------------------------------------------------------------------------------------------
    async def read_file(self, request: ReadFile) -> FileContent:
        return await self._files.read_file(self._environment(request.workspace), request)

    async def find_files(self, request: FindFiles) -> FindPage:
        return await self._files.find_files(self._environment(request.workspace), request)

    async def grep_files(self, request: GrepFiles) -> GrepPage:
        return await self._files.grep_files(self._environment(request.workspace), request)

    async def apply_patch(self, request: ApplyPatch) -> PatchApplied:
        applied = await self._patches(request.workspace).apply_patch(request)
        self.watch_hints.touch(request.workspace)
        return applied

    async def recover_patches(self, request: RecoverPatches) -> RecoveredPatches:
        return await self._patches(request.workspace).recover_patches(request)

    async def tidy_workspace(self, request: TidyWorkspace) -> WorkspaceTidied:
        launcher = self._environment(request.workspace).launcher
        if launcher is None:
            raise unavailable("tidying", "the runner was joined without a launcher")
        return WorkspaceTidied(removed=await launcher.tidy(request.workspace.root, request.protect))

    def _environment(self, workspace: WorkspaceRef) -> Environment:
        return environment_of(self._environments, workspace)

    def _patches(self, workspace: WorkspaceRef) -> PatchEngine:
        engine = self._environment(workspace).patch_engine
        if engine is None:
            raise unavailable("patching", "the runner was joined without a patch helper")
        return engine

    # --- processes --------------------------------------------------------------------------------------------------
    async def start_process(self, request: StartProcess) -> ProcessStarted:
        launcher = self._environment(request.terms).launcher
        check_argv(request.argv)
        if launcher is None:
            raise unavailable("running commands", "the runner was joined without a launcher")
        if self._closing is not None:
            raise RunnerError(ErrorCode.RUNNER_UNAVAILABLE, "the runner is shutting down; nothing was started")
        process = Process(request, scratch=self._scratch, on_exit=self._on_exit, log=self._log)
        self._table.add(process)
        # A launch runs to its end whoever stops waiting for it: half of one would be nobody's.
        launch = asyncio.create_task(start(launcher, self._table, process, request, self._log))
        self._launches.add(launch)
        launch.add_done_callback(self._launch_done)
        return await asyncio.shield(launch)

    async def read_process(self, request: ReadProcess) -> ProcessOutput:
        return await self._table.get(request.process_id).read(request)

    async def process_status(self, request: QueryProcess) -> ProcessStatus:
        return await self._table.get(request.process_id).status(request.wait_ms)

    async def write_stdin(self, request: WriteStdin) -> StdinWritten:
        process = self._table.get(request.process_id)
        try:
            data = request.data.encode("utf-8")
        except UnicodeEncodeError:
            raise RunnerError(
                ErrorCode.INVALID_ARGUMENT,
                "data contains an unpaired surrogate, which has no UTF-8 form; nothing was written",
                details={"argument": "data"},
            ) from None
        if len(data) > MAX_STDIN_BYTES:
            raise RunnerError(
                ErrorCode.INVALID_ARGUMENT,
                f"data is {len(data)} bytes long and {MAX_STDIN_BYTES} are allowed at once; nothing was written: send "
                "it in pieces, or put it in a file",
                details={"argument": "data", "max_bytes": MAX_STDIN_BYTES},
            )
        written = await process.write_stdin(data, eof=request.eof)
        return StdinWritten(process_id=request.process_id, written_bytes=written)

    async def resize_process(self, request: ResizeProcess) -> ProcessResized:
        self._table.get(request.process_id).resize(request.rows, request.cols)
        return ProcessResized(process_id=request.process_id, rows=request.rows, cols=request.cols)

    async def terminate_process(self, request: TerminateProcess) -> ProcessTerminating:
        process = self._table.get(request.process_id)
        process.terminate()
        return ProcessTerminating(process_id=request.process_id, state="exited" if process.state.is_over else "running")

    async def terminate_workspace(self, request: TerminateWorkspace) -> WorkspaceTerminated:
        ended = [p for p in self._table if p.workspace_id == request.workspace_id and not p.state.is_over]
        for process in ended:
            process.terminate()
        alive = await _wait_over(ended, TERMINATE_WORKSPACE_BOUND_S)
        if alive:
            raise RunnerError(
                ErrorCode.INTERNAL,
                f"{len(alive)} commands of workspace {request.workspace_id} are not proved dead yet; ask again",
                retryable=True,
                details={"process_ids": alive},
            )
        return WorkspaceTerminated(process_ids=tuple(p.process_id for p in ended))

    async def list_processes(self, request: ListProcesses) -> ProcessList:
        wanted = request.workspace_id
        return ProcessList(
            processes=tuple(p.summary() for p in self._table if wanted is None or p.workspace_id == wanted)
        )

    # --- events and end ---------------------------------------------------------------------------------------------
    def subscribe(self, listener: EventListener) -> None:
        self._listeners.append(listener)

    async def close(self) -> None:
        """Kills what runs, waits for that up to CLOSE_BOUND_S, closes the ports. Idempotent; goes on if cancelled."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(), name="close the runner")
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        processes = list(self._table)
        for process in processes:
            process.kill()
        if self._launches:
            await asyncio.wait(self._launches, timeout=CLOSE_BOUND_S)
        alive = await _wait_over(processes, CLOSE_BOUND_S)
        if alive:
            self._log("close_left_processes", level="error", process_ids=alive)
        # Draining is bounded by itself, so this ends.
        await asyncio.gather(*(process.wait_ended() for process in processes if process.state.is_over))
        self._table.close()
        await self.watch_hints.close()
        await self._files.close()
        for environment in self._environments.values():
            await environment.close()

    def _on_exit(self, event: ProcessExited) -> None:
        self._table.finished(event.process_id)
        for listener in self._listeners:
            listener(event)

    def _launch_done(self, launch: asyncio.Task[ProcessStarted]) -> None:
        self._launches.discard(launch)
        if not launch.cancelled():
            launch.exception()  # who asked has seen it, or no longer waits


_NO_ISOLATION = IsolationReport(command_sandbox="none", available=False, network_enforcement="none", protections=())


async def _wait_over(processes: Iterable[Process], bound_s: float) -> list[str]:
    """Ids of those that are not proved over after `bound_s`."""
    waits = [asyncio.ensure_future(process.wait_over()) for process in processes]
    if waits:
        _, pending = await asyncio.wait(waits, timeout=bound_s)
        for wait in pending:
            wait.cancel()
    return [process.process_id for process in processes if not process.state.is_over]
