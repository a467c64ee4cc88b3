"""Deaths at every moment, with the real worker and the real sandbox: nothing survives, nothing is made up (PROC-7).

Each command holds the write end of a FIFO in its workspace, and so do the daemons it forked: the end of that file
proves that none of them is alive. The liveness pipe proves the same of the worker, its helper and every PID 1.
"""

from __future__ import annotations

import asyncio
import os
import resource
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import pytest

from gateway.runner_client import UdsRunner
from runner.api import ErrorCode, ListProcesses, RunnerError, RunnerLost
from tests.fakes.worker_host import REPOSITORY
from tests.leaks import children_of
from tests.runner.real_worker import session

pytestmark = [pytest.mark.kernel("namespaces"), pytest.mark.usefixtures("leak_check")]


# --- the worker dies --------------------------------------------------------------------------------------------------
@pytest.mark.covers("PROC-7", "LEASE-2")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
async def test_a_dead_worker_takes_every_command_along(how: signal.Signals) -> None:
    async with session() as s:
        _, first = await s.hold("one")
        _, second = await s.hold("two")
        s.worker.child.send_signal(how)
        assert await first == b""
        assert await second == b""
        assert await s.worker.exited() == (0 if how is signal.SIGTERM else -how)
        await s.worker.all_dead()
        assert await s.lost


@pytest.mark.covers("PROC-7")
async def test_a_stopped_worker_that_is_killed_takes_its_commands_along() -> None:
    async with session() as s:
        _, dead = await s.hold()
        s.worker.child.send_signal(signal.SIGSTOP)
        s.worker.child.send_signal(signal.SIGKILL)
        assert await dead == b""
        await s.worker.all_dead()


@pytest.mark.covers("PROC-7", "UDS-2")
@pytest.mark.parametrize("turns", range(0, 36, 6))
async def test_a_worker_killed_while_commands_start_leaves_none_and_claims_nothing(turns: int) -> None:
    async with session() as s:
        starts = [asyncio.create_task(s.rig.sh("exec sleep 86400", terms=s.unlimited())) for _ in range(4)]
        for _ in range(turns):
            await asyncio.wait(starts, timeout=0)
        s.worker.child.kill()
        for outcome in await asyncio.gather(*starts, return_exceptions=True):
            # Started, provably never sent, or unknown; never "failed".
            if isinstance(outcome, BaseException):
                assert isinstance(outcome, RunnerError)
                assert isinstance(outcome, RunnerLost) or outcome.code is ErrorCode.RUNNER_UNAVAILABLE
        await s.worker.all_dead()


@pytest.mark.covers("PROC-7", "UDS-2")
@pytest.mark.parametrize("turns", range(0, 30, 10))
async def test_a_connection_cut_while_commands_start_leaves_none(turns: int) -> None:
    async with session() as s:
        starts = [asyncio.create_task(s.rig.sh("exec sleep 86400", terms=s.unlimited())) for _ in range(4)]
        for _ in range(turns):
            await asyncio.wait(starts, timeout=0)
        runner = s.rig.runner
        assert isinstance(runner, UdsRunner)
        runner.abort("cut by the test")
        await asyncio.gather(*starts, return_exceptions=True)
        assert await s.worker.exited() == 0
        await s.worker.all_dead()


# --- the gateway dies -------------------------------------------------------------------------------------------------
GATEWAY = """
import asyncio, sys
from tests.runner.real_worker import session

async def main():
    async with session() as s:
        process_id = await s.rig.sh(sys.argv[1], terms=s.unlimited())
        await s.rig.until(process_id, "ready")
        print(s.worker.child.pid, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.fixture
def scratch() -> Iterator[str]:
    """For a process that is killed and so removes nothing."""
    with tempfile.TemporaryDirectory(prefix="cs-") as folder:
        yield folder


@pytest.mark.covers("PROC-7")
@pytest.mark.parametrize("stopped", [False, True], ids=["as it runs", "with its worker stopped"])
async def test_a_killed_gateway_takes_worker_and_commands_along(stopped: bool, scratch: str) -> None:
    gateway = await asyncio.to_thread(
        subprocess.Popen[str],
        [sys.executable, "-c", GATEWAY, "echo ready; trap '' TERM HUP; while :; do sleep 86400; done"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        cwd=REPOSITORY,
        env={**os.environ, "TMPDIR": scratch},
        text=True,
    )
    assert gateway.stdout is not None
    with gateway, gateway.stdout:
        worker = int(await asyncio.to_thread(gateway.stdout.readline))
        watched = {worker, *await asyncio.to_thread(_tree, worker)}
        assert len(watched) >= 4, "worker, helper, PID 1 and the command"
        ends = [os.pidfd_open(pid) for pid in watched]
        try:
            if stopped:
                os.kill(worker, signal.SIGSTOP)
            gateway.kill()
            for end in ends:
                await asyncio.to_thread(select.select, [end], [], [])
        finally:
            for end in ends:
                os.close(end)


def _tree(pid: int) -> set[int]:
    found: set[int] = set()
    todo = [pid]
    while todo:
        children = children_of(todo.pop()).keys()
        found |= children
        todo += children
    return found


# --- the helper dies --------------------------------------------------------------------------------------------------
@pytest.mark.covers("PROC-7", "BOX-3")
async def test_a_dead_helper_leaves_running_commands_alone_and_is_replaced() -> None:
    async with session() as s:
        process_id = await s.rig.sh("echo ready; read x; echo got:$x; exit 7", terms=s.unlimited())
        cursor = await s.rig.until(process_id, "ready")
        before = s.helper()
        os.kill(before, signal.SIGKILL)
        await s.next_command()
        assert s.helper() != before
        await s.rig.write(process_id, "on\n")
        assert await s.rig.output(process_id, cursor) == "got:on\n"
        status = await s.rig.exited(process_id)
        assert (status.termination, status.command_exit and status.command_exit.code) == ("exited", 7)


@pytest.mark.covers("PROC-8", "UDS-2", "LEASE-2")
@pytest.mark.parametrize("turns", range(0, 30, 5))
async def test_a_helper_killed_during_starts_gives_started_failed_or_unknown_and_each_is_true(turns: int) -> None:
    async with session() as s:
        await s.rig.run("true")
        helper = s.helper()
        starts = [asyncio.create_task(s.rig.sh("echo ran; exec sleep 86400", terms=s.unlimited())) for _ in range(4)]
        for _ in range(turns):
            await asyncio.wait(starts, timeout=0)
        os.kill(helper, signal.SIGKILL)
        outcomes = await asyncio.gather(*starts, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, str):
                await s.rig.until(outcome, "ran")
            else:
                assert isinstance(outcome, RunnerError), outcome
                known = outcome.code is ErrorCode.PROCESS_SPAWN_FAILED
                assert known or outcome.details == {"uncertain": True}, outcome
        await s.next_command()
        await s.rig.tidy()
        listed = (await s.rig.runner.list_processes(ListProcesses())).processes
        assert {process.state for process in listed} == {"exited"}


# --- the machine is short ---------------------------------------------------------------------------------------------
@pytest.mark.covers("PROC-9")
async def test_without_descriptors_a_start_fails_retryably_and_the_others_go_on() -> None:
    async with session() as s:
        echo = await s.rig.start("/bin/cat", terms=s.unlimited())
        pid = s.worker.child.pid
        soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        used = max(int(name) for name in await asyncio.to_thread(os.listdir, f"/proc/{pid}/fd"))
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (used + 2, hard))
        with pytest.raises(RunnerError) as caught:
            await s.rig.run("true")
        assert (caught.value.code, caught.value.retryable) == (ErrorCode.PROCESS_SPAWN_FAILED, True)
        assert caught.value.details["errno"] == "EMFILE"
        await s.rig.write(echo, "still here\n")
        await s.rig.until(echo, "still here")
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))
        assert (await s.rig.run("echo again"))[0] == "again\n"
