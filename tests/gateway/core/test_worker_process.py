"""The worker link with real worker processes: start, loss, back-off, proof of death, shutdown."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway import worker_process, worker_start
from gateway.errors import Code, StartFailed, ToolError
from gateway.liveness import LivenessDirectory
from gateway.worker_process import BackOff, WorkerLink
from gateway.worker_start import WorkerCommand
from runner import api
from runner.api import ProcessExited, RunnerLost, WorkspaceTerms
from tests.gateway.core.support import quiet_log

REPOSITORY = Path(__file__).resolve().parents[3]
START = api.StartProcess(process_id="proc_1", terms=WorkspaceTerms(workspace_id="demo", root="/w"), argv=("true",))
QUICK = BackOff(first_s=0.0, last_s=0.0, steady_s=0.0)


async def soon(awaitable: Awaitable[Any]) -> Any:
    return await asyncio.wait_for(awaitable, 15)


class Told:
    """A listener that keeps what it was told and lets a test wait for it."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._changed = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()

    def _note(self, line: str) -> None:
        self.lines.append(line)
        task = asyncio.get_running_loop().create_task(self._notify())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def until(self, line: str) -> None:
        async with self._changed:
            await soon(self._changed.wait_for(lambda: line in self.lines))

    def runner_up(self, instance_id: str) -> None:
        self._note(f"up {instance_id}")

    def process_exited(self, instance_id: str, event: ProcessExited) -> None:
        self._note(f"exited {event.process_id}")

    def runner_lost(self, instance_id: str) -> None:
        self._note(f"lost {instance_id}")

    def all_dead(self, instance_id: str) -> None:
        self._note(f"dead {instance_id}")


@asynccontextmanager
async def link(mode: str, directory: Path, back_off: BackOff = QUICK) -> AsyncIterator[tuple[WorkerLink, Told]]:
    command = WorkerCommand(
        argv=(sys.executable, "-m", "tests.gateway.core.obedient_worker", mode, str(directory)), cwd=str(REPOSITORY)
    )
    one = WorkerLink(
        quiet_log(),
        max_processes=3,
        deaths=LivenessDirectory(directory / "liveness"),
        command=command,
        back_off=back_off,
    )
    told = Told()
    one.subscribe(told)
    try:
        yield one, told
    finally:
        child = directory / "child"
        if child.exists():
            end(int(child.read_text()))
        await asyncio.wait_for(one.close(), 10)


def starts(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "starts").read_text().splitlines()]


def end(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


@pytest.mark.covers("UDS-1")
async def test_a_worker_is_started_alone_in_a_clean_environment_and_its_socket_is_gone(tmp_path: Path) -> None:
    async with link("good", tmp_path) as (one, told):
        with pytest.raises(ToolError) as early:
            one.runner  # noqa: B018
        assert early.value.code is Code.RUNNER_UNAVAILABLE
        await soon(one.start())
        assert told.lines == ["up run-0"]
        assert one.description is not None
        assert one.description.runner_instance_id == "run-0"
        await soon(one.runner.list_processes(api.ListProcesses()))
        facts = starts(tmp_path)[0]
        assert facts["session"] == facts["pid"], "a session leader"
        assert set(facts["environment"]) <= {"PATH", "LANG", "PYTHONUTF8", "PYTHONDONTWRITEBYTECODE", "LC_CTYPE"}
        assert facts["socket_directory_mode"] == 0o700
        assert facts["options"]["--max-processes"] == "3"
        inherited = {0, 1, 2, int(facts["options"]["--liveness-fd"])}
        assert len(set(facts["descriptors"]) - inherited) == 1, "the listing itself, and nothing of ours"
        assert not Path(facts["options"]["--socket"]).parent.exists()


@pytest.mark.covers("UDS-1")
async def test_a_connection_of_another_process_is_turned_away_and_the_worker_s_own_is_taken(tmp_path: Path) -> None:
    async with link("stranger", tmp_path) as (one, told):
        await soon(one.start())
        assert told.lines == ["up run-0"]


@pytest.mark.parametrize("mode", ["dies", "no such program"])
async def test_a_worker_that_cannot_be_started_is_a_start_failure_with_the_reason(tmp_path: Path, mode: str) -> None:
    async with link(mode, tmp_path) as (one, told):
        if mode != "dies":
            one._command = WorkerCommand(argv=("/no/such/program",))
        with pytest.raises(StartFailed, match="status 3" if mode == "dies" else "No such file"):
            await soon(one.start())
        assert told.lines == []


@pytest.mark.timeout(200)
async def test_a_worker_that_says_no_hello_is_killed_at_the_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for bound_s in (1, 10, 60):  # the first that lets it come as far as the silence, however slow the machine
        monkeypatch.setattr(worker_start, "START_S", float(bound_s))
        async with link("mute", tmp_path) as (one, _):
            with pytest.raises(StartFailed, match=f"within {bound_s} s"):
                await asyncio.wait_for(one.start(), bound_s + 60)
        if (tmp_path / "starts").exists():
            break
    pid = starts(tmp_path)[0]["pid"]
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.covers("UDS-2", "PROC-7")
async def test_a_killed_worker_is_replaced_at_once_but_its_commands_are_not_called_dead_before_they_are(
    tmp_path: Path,
) -> None:
    async with link("good", tmp_path) as (one, told):
        await soon(one.start())
        await soon(one.runner.start_process(START))
        child = int((tmp_path / "child").read_text())
        lost = one.runner
        os.kill(starts(tmp_path)[0]["pid"], signal.SIGKILL)
        await told.until("up run-1")
        assert told.lines == ["up run-0", "lost run-0", "up run-1"]
        assert one.runner is not lost
        with pytest.raises(api.RunnerError) as gone:
            await soon(lost.list_processes(api.ListProcesses()))
        assert gone.value.code is api.ErrorCode.RUNNER_UNAVAILABLE
        await soon(one.runner.list_processes(api.ListProcesses()))
        assert "dead run-0" not in told.lines
        end(child)
        await told.until("dead run-0")
        assert told.lines == ["up run-0", "lost run-0", "up run-1", "dead run-0"]


@pytest.mark.covers("UDS-2")
async def test_a_call_in_flight_at_the_kill_is_lost_and_the_link_is_down_when_its_caller_hears_it(
    tmp_path: Path,
) -> None:
    async with link("good", tmp_path, BackOff(first_s=3600, last_s=3600, steady_s=3600)) as (one, told):
        await soon(one.start())
        pid = starts(tmp_path)[0]["pid"]
        os.kill(pid, signal.SIGSTOP)
        call = asyncio.create_task(one.runner.start_process(START))
        await asyncio.wait({call}, timeout=0)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(RunnerLost):
            await soon(call)
        assert told.lines[:2] == ["up run-0", "lost run-0"]
        with pytest.raises(ToolError) as down:
            one.runner  # noqa: B018
        assert (down.value.code, down.value.retryable) == (Code.RUNNER_UNAVAILABLE, True)
        assert one.description is None
        await told.until("dead run-0")


@pytest.mark.covers("UDS-2", "PROC-7")
async def test_a_worker_that_answers_no_more_is_lost_killed_and_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_process, "HEARTBEAT_S", 0.05)
    monkeypatch.setattr(worker_process, "SILENCE_S", 0.5)
    monkeypatch.setattr(worker_process, "LINGER_S", 0.1)
    async with link("good", tmp_path) as (one, told):
        await soon(one.start())
        os.kill(starts(tmp_path)[0]["pid"], signal.SIGSTOP)
        with pytest.raises(RunnerLost):
            await soon(one.runner.start_process(START))
        monkeypatch.setattr(worker_process, "SILENCE_S", 30)
        await told.until("dead run-0")
        await told.until("up run-1")


async def test_a_worker_that_keeps_failing_is_tried_again_and_close_ends_the_trying(tmp_path: Path) -> None:
    async with link("twice", tmp_path, BackOff(first_s=0.01, last_s=0.01, steady_s=3600)) as (one, told):
        await soon(one.start())
        os.kill(starts(tmp_path)[0]["pid"], signal.SIGKILL)
        await told.until("dead run-0")

        async def tried_again() -> None:
            while len(starts(tmp_path)) < 4:
                await asyncio.wait({asyncio.ensure_future(asyncio.to_thread(os.sched_yield))})

        await soon(tried_again())
        assert told.lines == ["up run-0", "lost run-0", "dead run-0"]


@pytest.mark.covers("PROC-7")
async def test_closing_ends_the_worker_and_tells_its_death(tmp_path: Path) -> None:
    async with link("good", tmp_path) as (one, told):
        await soon(one.start())
        await soon(asyncio.gather(one.close(), one.close()))
        assert told.lines == ["up run-0", "lost run-0", "dead run-0"]
        with pytest.raises(ProcessLookupError):
            os.kill(starts(tmp_path)[0]["pid"], 0)
        with pytest.raises(ToolError):
            one.runner  # noqa: B018
        assert list((tmp_path / "liveness").iterdir()) == []


@pytest.mark.covers("PROC-7")
async def test_closing_kills_a_worker_that_ignores_the_goodbye(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_process, "CLOSE_S", 0.3)
    async with link("stubborn", tmp_path) as (one, told):
        await soon(one.start())
        await soon(one.close())
        assert told.lines == ["up run-0", "lost run-0", "dead run-0"]


@pytest.mark.covers("PROC-7", "LEASE-2")
async def test_closing_is_bounded_where_a_death_cannot_be_proved_and_claims_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_process, "CLOSE_S", 0.3)
    monkeypatch.setattr(worker_process, "PROOF_S", 0.2)
    async with link("good", tmp_path) as (one, told):
        await soon(one.start())
        await soon(one.runner.start_process(START))
        await soon(one.close())
        assert told.lines == ["up run-0", "lost run-0"]
        assert len(list((tmp_path / "liveness").iterdir())) == 1, "the next start finds the proof missing"


def test_back_off_doubles_to_its_bound_and_starts_anew_after_steady_service() -> None:
    rule = BackOff(first_s=0.1, last_s=1.0, steady_s=30)
    waits = [0.0]
    for _ in range(6):
        waits.append(rule.next(waits[-1], served_s=1))
    assert waits[1:] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert rule.next(1.0, served_s=31) == 0.0
