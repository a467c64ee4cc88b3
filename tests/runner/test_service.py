"""The service with launches that a test holds, fails or loses: limits, eviction, uncertainty, the end (PROC)."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from runner.api import (
    CommandExit,
    ErrorCode,
    FindFiles,
    ListProcesses,
    ReadFile,
    RunnerError,
    StartProcess,
    TerminateProcess,
    TerminateWorkspace,
    WorkspaceRef,
)
from runner.ports import (
    LaunchFailed,
    LaunchRequest,
    LaunchUncertain,
    ManagedProcess,
    SandboxUnavailable,
    WatchEvent,
)
from runner.processes.table import FINISHED_TTL_S, MAX_FINISHED
from runner.service import RunnerService
from tests.contract.rig import RecordingLog, Rig, make_service, workspace
from tests.fakes.launcher import FakeLauncher


class Clock:
    """Seconds that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def serving(service: RunnerService) -> AsyncIterator[Rig]:
    with workspace() as root:
        try:
            yield Rig(service, root, "off")
        finally:
            await service.close()


def failing(error: Exception) -> FakeLauncher:
    async def fail(request: LaunchRequest) -> None:
        raise error

    return FakeLauncher(fail)


class Gate:
    """Holds each launch until it is opened. `reached`: a launch has begun."""

    def __init__(self) -> None:
        self.reached, self.opened = asyncio.Event(), asyncio.Event()

    async def __call__(self, request: LaunchRequest) -> None:
        self.reached.set()
        await self.opened.wait()


async def refused(work: Awaitable[object]) -> RunnerError:
    with pytest.raises(RunnerError) as caught:
        await work
    return caught.value


# --- limits and eviction ----------------------------------------------------------------------------------------------
@pytest.mark.covers("PROC-9")
async def test_one_command_too_many_is_refused_and_room_comes_back(leak_check: None) -> None:
    async with serving(make_service(FakeLauncher(), max_processes=2)) as rig:
        first = await rig.start("/bin/cat")
        await rig.start("/bin/cat")
        error = await refused(rig.start("/bin/true"))
        assert (error.code, error.retryable) == (ErrorCode.TOO_MANY_PROCESSES, True)
        assert error.details == {"running": 2, "limit": 2}
        await rig.terminate(first)
        await rig.exited(await rig.start("/bin/true"))


@pytest.mark.covers("PROC-9")
async def test_a_launch_under_way_counts(leak_check: None) -> None:
    gate = Gate()
    async with serving(make_service(FakeLauncher(gate), max_processes=1)) as rig:
        starting = asyncio.create_task(rig.start("/bin/true"))
        await gate.reached.wait()
        assert (await refused(rig.start("/bin/true"))).code is ErrorCode.TOO_MANY_PROCESSES
        gate.opened.set()
        await rig.exited(await starting)


@pytest.mark.covers("PROC-5")
async def test_a_finished_handle_is_forgotten_after_its_time(leak_check: None) -> None:
    clock = Clock()
    async with serving(make_service(FakeLauncher(), clock=clock)) as rig:
        process_id = await rig.start("/bin/true")
        running = await rig.start("/bin/cat")
        await rig.exited(process_id)
        clock.now += FINISHED_TTL_S - 1
        assert (await rig.status(process_id)).state == "exited"
        clock.now += 1
        assert (await refused(rig.status(process_id))).code is ErrorCode.PROCESS_NOT_FOUND
        assert (await rig.status(running)).state == "running"


@pytest.mark.covers("PROC-5")
async def test_only_the_last_finished_handles_are_kept(leak_check: None) -> None:
    async with serving(make_service(FakeLauncher())) as rig:
        ids = []
        for _ in range(MAX_FINISHED + 2):
            ids.append(await rig.start("/bin/true"))
            await rig.exited(ids[-1])
        for process_id in ids[:2]:
            assert (await refused(rig.read(process_id))).code is ErrorCode.PROCESS_NOT_FOUND
        for process_id in ids[2:]:
            assert (await rig.read(process_id)).eof


# --- launches that fail -----------------------------------------------------------------------------------------------
@pytest.mark.covers("PROC-8", "LEASE-2")
async def test_a_failed_launch_gives_stage_errno_and_remedy_and_leaves_no_handle(leak_check: None) -> None:
    failure = LaunchFailed("mounts", "EPERM", "no mounts here", path="/usr", remedy="allow mounts")
    async with serving(make_service(failing(failure))) as rig:
        error = await refused(rig.start("/bin/true"))
        assert (error.code, error.message, error.retryable) == (
            ErrorCode.PROCESS_SPAWN_FAILED,
            "no mounts here",
            False,
        )
        assert error.details == {"stage": "mounts", "errno": "EPERM", "path": "/usr", "remedy": "allow mounts"}
        assert (await rig.runner.list_processes(ListProcesses())).processes == ()
        assert rig.events == []


@pytest.mark.covers("PROC-8", "PROC-9")
@pytest.mark.parametrize("errno", ["EMFILE", "EAGAIN", "ENOMEM"])
async def test_a_machine_that_is_short_of_something_makes_the_error_retryable(errno: str) -> None:
    async with serving(make_service(failing(LaunchFailed("descriptors", errno, "short")))) as rig:
        assert (await refused(rig.start("/bin/true"))).retryable


@pytest.mark.covers("BOX-4")
async def test_a_missing_sandbox_names_the_feature_and_the_remedy(leak_check: None) -> None:
    missing = SandboxUnavailable("user_namespace", "EPERM", "no user namespaces", remedy="allow them")
    async with serving(make_service(failing(missing))) as rig:
        error = await refused(rig.start("/bin/true"))
        assert error.code is ErrorCode.SANDBOX_UNAVAILABLE
        assert error.details == {"feature": "user_namespace", "errno": "EPERM", "remedy": "allow them"}


@pytest.mark.covers("PROC-8", "UDS-2")
async def test_an_uncertain_launch_stays_running_until_it_is_proved_gone(leak_check: None) -> None:
    gone = asyncio.Event()

    async def ended() -> None:
        await gone.wait()

    async with serving(make_service(failing(LaunchUncertain("lost", ended=ended)), max_processes=1)) as rig:
        request = StartProcess(process_id="proc_doubt", terms=rig.terms(), argv=("/bin/true",))
        error = await refused(rig.runner.start_process(request))
        assert error.details == {"uncertain": True}
        assert error.code is ErrorCode.INTERNAL
        status = await rig.status("proc_doubt")
        assert (status.state, status.termination, status.eof) == ("running", None, False)
        assert rig.events == []
        assert (await refused(rig.start("/bin/true"))).code is ErrorCode.TOO_MANY_PROCESSES
        waiting = asyncio.create_task(rig.status("proc_doubt", 60_000))
        gone.set()
        status = await waiting
        assert (status.state, status.termination, status.exit_code, status.eof) == ("exited", "unknown", None, True)
        assert [(e.process_id, e.termination) for e in rig.events] == [("proc_doubt", "unknown")]
        assert (await rig.read("proc_doubt")).eof


@pytest.mark.covers("PROC-8", "LEASE-2")
async def test_a_launcher_that_breaks_proves_nothing_so_the_command_counts_as_running() -> None:
    log = RecordingLog()
    async with serving(make_service(failing(ZeroDivisionError()), log=log)) as rig:
        request = StartProcess(process_id="proc_broken", terms=rig.terms(), argv=("/bin/true",))
        assert (await refused(rig.runner.start_process(request))).details == {"uncertain": True}
        assert (await rig.status("proc_broken")).state == "running"
        assert rig.events == []
        assert log.lines[0][0] == "launch_broke"
        # Nobody could wait for its end for ever.
        rig.runner._table.remove("proc_broken")  # type: ignore[attr-defined]


# --- requests that meet a launch under way ----------------------------------------------------------------------------
@pytest.mark.covers("PROC-8")
async def test_a_start_that_nobody_waits_for_any_more_still_happens(leak_check: None) -> None:
    gate = Gate()
    async with serving(make_service(FakeLauncher(gate))) as rig:
        request = StartProcess(process_id="proc_left", terms=rig.terms(), argv=("/bin/sh", "-c", "echo ran"))
        starting = asyncio.ensure_future(rig.runner.start_process(request))
        await gate.reached.wait()
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        gate.opened.set()
        assert (await rig.event("proc_left")).termination == "exited"
        assert await rig.output("proc_left") == "ran\n"


@pytest.mark.covers("PROC-9")
@pytest.mark.parametrize("by", ["terminate_workspace", "close"])
async def test_what_is_ended_while_it_starts_ends_as_soon_as_it_has_started(leak_check: None, by: str) -> None:
    gate = Gate()
    launcher = FakeLauncher(gate)
    async with serving(make_service(launcher)) as rig:
        starting = asyncio.create_task(rig.start("/bin/sleep", "86400"))
        await gate.reached.wait()
        ending: asyncio.Future[object] = asyncio.ensure_future(
            rig.runner.close()
            if by == "close"
            else rig.runner.terminate_workspace(TerminateWorkspace(workspace_id="demo"))
        )
        await asyncio.wait([ending], timeout=0)
        gate.opened.set()
        process_id = await starting
        await ending
        assert [(e.process_id, e.termination) for e in rig.events] == [(process_id, "terminated")]


@pytest.mark.covers("PROC-5")
async def test_an_id_is_no_handle_before_its_command_started(leak_check: None) -> None:
    gate = Gate()
    async with serving(make_service(FakeLauncher(gate))) as rig:
        request = StartProcess(process_id="proc_early", terms=rig.terms(), argv=("/bin/true",))
        starting = asyncio.ensure_future(rig.runner.start_process(request))
        await gate.reached.wait()
        assert (await refused(rig.status("proc_early"))).code is ErrorCode.PROCESS_NOT_FOUND
        gate.opened.set()
        await starting
        await rig.exited("proc_early")


# --- the end ----------------------------------------------------------------------------------------------------------
@pytest.mark.covers("PROC-7")
async def test_close_kills_what_ignores_term_and_returns_when_it_is_dead(leak_check: None) -> None:
    launcher = FakeLauncher()
    service = make_service(launcher)
    async with serving(service) as rig:
        process_id = await rig.sh("trap '' TERM HUP; echo ready; while :; do sleep 86400; done")
        await rig.until(process_id, "ready")
        await rig.runner.close()
        assert [(e.process_id, e.termination) for e in rig.events] == [(process_id, "terminated")]
        assert launcher.closed
        assert (await refused(rig.start("/bin/true"))).code is ErrorCode.RUNNER_UNAVAILABLE
        reading = rig.runner.read_file(ReadFile(workspace=rig.ref(), path="a"))
        assert (await refused(reading)).code is ErrorCode.RUNNER_UNAVAILABLE
        await rig.runner.close()


@pytest.mark.covers("PROC-7", "PROC-9")
async def test_hundreds_of_commands_leave_no_descriptor_and_no_child(leak_check: None) -> None:
    async with serving(make_service(FakeLauncher())) as rig:
        for round_ in range(30):
            ids = [await rig.sh(f"echo {n}; exit {n}", tty=n % 2 == 1) for n in range(8)]
            if round_ % 3 == 0:
                for process_id in ids:
                    await rig.runner.terminate_process(TerminateProcess(process_id=process_id))
            for process_id in ids:
                await rig.exited(process_id)
        assert len(rig.events) == 240


class _UnpollableLauncher(FakeLauncher):
    """Its commands' output ends are regular files, which epoll refuses, as it may refuse any for want of memory."""

    async def launch(self, request: LaunchRequest) -> ManagedProcess:
        managed = await super().launch(request)
        with tempfile.TemporaryFile() as file:
            os.dup2(file.fileno(), managed.output_fd, inheritable=False)
        return managed


@pytest.mark.covers("PROC-9", "LEASE-2")
async def test_a_command_whose_output_cannot_be_taken_is_killed_and_said_to_be_over(leak_check: None) -> None:
    log = RecordingLog()
    async with serving(make_service(_UnpollableLauncher(), log=log)) as rig:
        process_id = await rig.start("sleep", "1000")
        assert (await rig.exited(process_id)).command_exit == CommandExit(signal="SIGKILL")
        assert [event.process_id for event in rig.events] == [process_id]
        assert "pipes_failed" in dict(log.lines)


# --- the watch --------------------------------------------------------------------------------------------------------
class FakeWatch:
    """Counts starts; says one event a start, or fails."""

    def __init__(self, error: Exception | None = None) -> None:
        self.started: list[tuple[str, str]] = []
        self.spoken = asyncio.Event()
        self._error = error

    async def watch(self, workspace_id: str, root: str) -> None:
        self.started.append((workspace_id, root))
        if self._error is not None:
            self.spoken.set()
            raise self._error

    async def subscribe(self, workspace_id: str) -> AsyncIterator[WatchEvent]:
        yield WatchEvent("resync_required", epoch=3, seq=7)
        self.spoken.set()
        await asyncio.Event().wait()

    async def close(self) -> None:
        return


def made(root: str) -> Callable[[], object]:
    def write() -> None:
        with open(f"{root}/a.txt", "w", encoding="utf-8") as file:
            file.write("a")

    return write


@pytest.mark.covers("WATCH-1")
async def test_the_first_read_starts_the_watch_and_the_second_does_not(leak_check: None) -> None:
    watch = FakeWatch()
    service = make_service(FakeLauncher(), watch=watch)
    async with serving(service) as rig:
        await asyncio.to_thread(made(rig.root))
        for _ in range(2):
            await rig.runner.read_file(ReadFile(workspace=rig.ref(), path="a.txt"))
        await watch.spoken.wait()
        assert watch.started == [("demo", rig.root)]
        state = service.watch_hints.state("demo")
        assert state is not None
        assert (state.epoch, state.seq, state.resyncs) == (3, 7, 1)


@pytest.mark.covers("WATCH-1")
async def test_a_workspace_whose_root_changes_and_changes_back_is_watched_there_each_time(leak_check: None) -> None:
    watch = FakeWatch()
    service = make_service(FakeLauncher(), watch=watch)
    async with serving(service) as rig, asyncio.timeout(30):
        await asyncio.to_thread(os.mkdir, f"{rig.root}/inner")
        for root in (rig.root, f"{rig.root}/inner", rig.root):
            watch.spoken.clear()
            await rig.runner.find_files(FindFiles(workspace=WorkspaceRef(workspace_id="demo", root=root), pattern="*"))
            await watch.spoken.wait()
        assert watch.started == [("demo", rig.root), ("demo", f"{rig.root}/inner"), ("demo", rig.root)]
        state = service.watch_hints.state("demo")
        assert state is not None
        assert state.resyncs == 3


@pytest.mark.covers("WATCH-3")
async def test_a_watch_that_cannot_start_fails_no_request(leak_check: None) -> None:
    watch, log = FakeWatch(OSError(28, "no watches left")), RecordingLog()
    async with serving(make_service(FakeLauncher(), watch=watch, log=log)) as rig:
        await asyncio.to_thread(made(rig.root))
        assert (await rig.runner.read_file(ReadFile(workspace=rig.ref(), path="a.txt"))).content == "a"
        await watch.spoken.wait()
        assert (await rig.runner.read_file(ReadFile(workspace=rig.ref(), path="a.txt"))).content == "a"
