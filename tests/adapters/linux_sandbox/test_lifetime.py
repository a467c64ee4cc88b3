"""Who ends with whom: daemons with their command, commands with the runner, and nobody with the helper."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from adapters.linux_sandbox import client
from adapters.linux_sandbox.launcher import LinuxSandboxLauncher
from runner.ports import LaunchFailed, LaunchUncertain
from tests.adapters.linux_sandbox.support import BOUND_S, finish, read_until, run, shell, start, terms
from tests.leaks import holdings, left_over

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[2]
DAEMON = (
    "import os\n"
    "if os.fork() == 0:\n"
    "    os.setsid()\n"
    "    if os.fork() == 0:\n"
    "        lock = open('lock', 'w')\n"
    "        os.lockf(lock.fileno(), os.F_LOCK, 0)\n"
    "        os.write(1, b'up\\n')\n"
    "        import signal; signal.pause()\n"
    "    os._exit(0)\n"
    "import sys, time\n"
    "sys.stdin.read()\n"
)
"""Leaves a double-forked daemon in a session of its own that holds a lock; ends at the end of its input."""


def _lock_is_free(path: str) -> bool:
    with open(path, "r+", encoding="utf-8") as lock:
        try:
            os.lockf(lock.fileno(), os.F_TLOCK, 0)
        except OSError:
            return False
    return True


@pytest.mark.covers("PROC-7", "PROC-11")
@pytest.mark.parametrize("sandbox", ["required", "off"])
async def test_a_double_forked_daemon_ends_with_the_main_command(
    launcher: LinuxSandboxLauncher, workspace: str, sandbox: str
) -> None:
    process = await start(launcher, terms(workspace, sandbox=sandbox), ("/usr/bin/python3", "-c", DAEMON))
    await read_until(process, b"up\n")
    assert not await asyncio.to_thread(_lock_is_free, f"{workspace}/lock"), "the control: the daemon is alive"
    process.close_stdin()
    assert (await finish(process)).exit.command_code == 0
    assert await asyncio.to_thread(_lock_is_free, f"{workspace}/lock")


@pytest.mark.covers("PROC-7")
async def test_killing_the_managed_child_ends_the_daemons_too(launcher: LinuxSandboxLauncher, workspace: str) -> None:
    process = await start(launcher, terms(workspace), ("/usr/bin/python3", "-c", DAEMON))
    await read_until(process, b"up\n")
    process.kill()
    await finish(process)
    assert await asyncio.to_thread(_lock_is_free, f"{workspace}/lock")


@pytest.mark.covers("PROC-7", "LEASE-2")
@pytest.mark.parametrize("sandbox", ["required", "prepared", "off"])
async def test_a_killed_runner_takes_every_command_along_and_the_liveness_pipe_proves_it(
    workspace: str, sandbox: str
) -> None:
    alive_read, alive_write = os.pipe()
    runner = await asyncio.create_subprocess_exec(
        sys.executable, str(HERE / "runner_to_kill.py"), workspace, sandbox, str(alive_write), DAEMON,
        stdout=asyncio.subprocess.PIPE, pass_fds=(alive_write,), cwd=REPOSITORY,
        env={"PYTHONPATH": str(REPOSITORY), "PATH": os.environ["PATH"]},
    )  # fmt: skip
    os.close(alive_write)
    assert runner.stdout is not None
    try:
        async with asyncio.timeout(BOUND_S):
            assert await runner.stdout.readline() == b"up\n"
            runner.kill()
            await runner.wait()
            # EOF only once the helper, every PID 1 and so every command is gone.
            assert await asyncio.to_thread(os.read, alive_read, 1) == b""
    finally:
        os.close(alive_read)
    assert await asyncio.to_thread(_lock_is_free, f"{workspace}/lock")


@pytest.mark.covers("PROC-7", "BOX-2")
async def test_a_running_command_outlives_its_helper_and_the_next_one_gets_another(
    launcher: LinuxSandboxLauncher, workspace: str
) -> None:
    process = await start(launcher, terms(workspace), ("/bin/cat",))
    helper = launcher._helpers["sandbox"]
    os.kill(helper.pid, signal.SIGKILL)
    async with asyncio.timeout(BOUND_S):
        await helper.gone.wait()
    assert (await shell(launcher, terms(workspace), "echo again")).output == "again\n"
    assert launcher._helpers["sandbox"] is not helper
    assert process.stdin_fd is not None
    os.write(process.stdin_fd, b"still here")
    process.close_stdin()
    ended = await finish(process)
    assert (ended.output, ended.exit.command_code) == ("still here", 0)


@pytest.mark.covers("PROC-8")
async def test_a_helper_lost_before_the_start_is_a_failure_that_proves_nothing_ran(
    launcher: LinuxSandboxLauncher, workspace: str
) -> None:
    await shell(launcher, terms(workspace), "true")
    helper = launcher._helpers["sandbox"]
    os.kill(helper.pid, signal.SIGSTOP)
    starting = asyncio.create_task(start(launcher, terms(workspace), ("/bin/sh", "-c", "echo ran > mark")))
    while not helper._pending:  # noqa: ASYNC110 - the client has no event for a request under way
        await asyncio.sleep(0)
    os.kill(helper.pid, signal.SIGKILL)
    with pytest.raises(LaunchFailed) as failure:
        await starting
    assert failure.value.stage == "namespace"
    assert await asyncio.to_thread(os.listdir, workspace) == []
    assert (await shell(launcher, terms(workspace), "echo again")).output == "again\n"


@pytest.mark.covers("PROC-8")
async def test_a_helper_lost_during_the_start_leaves_it_uncertain_and_the_command_dead(workspace: str) -> None:
    before = holdings()
    launcher = LinuxSandboxLauncher(helper_prefix=(sys.executable, "-I", str(HERE / "lost_helper.py")))
    try:
        with pytest.raises(LaunchUncertain):
            await start(launcher, terms(workspace, sandbox="off"), ("ignored",))
    finally:
        await launcher.close()
    assert left_over(before, holdings()) == []


@pytest.mark.covers("PROC-8", "BOX-2")
@pytest.mark.parametrize("known", [True, False], ids=["a known plan", "a new plan"])
@pytest.mark.parametrize("sandbox", ["required", "off"])
async def test_a_helper_that_answers_nothing_is_replaced_and_what_ran_goes_on(
    launcher: LinuxSandboxLauncher, workspace: str, monkeypatch: pytest.MonkeyPatch, sandbox: str, known: bool
) -> None:
    what = terms(workspace, sandbox=sandbox)
    running = await start(launcher, what, ("/bin/cat",))
    helper = launcher._helpers["sandbox" if sandbox == "required" else "plain"]
    os.kill(helper.pid, signal.SIGSTOP)
    monkeypatch.setattr(client, "REPLY_TIMEOUT_S", 0.2)
    asked = what if known else what.model_copy(update={"env": {"NEW": "1"}})
    starts = [asyncio.create_task(start(launcher, asked, ("/bin/sh", "-c", "echo ran > mark"))) for _ in range(3)]
    failures = await asyncio.gather(*starts, return_exceptions=True)
    monkeypatch.undo()
    assert [(type(f), getattr(f, "errno", None)) for f in failures] == [(LaunchFailed, "EPIPE")] * 3, failures
    assert (await shell(launcher, what, "echo again; ls")).output == "again\n", "nothing of the others ran"
    assert running.stdin_fd is not None
    os.write(running.stdin_fd, b"still here")
    running.close_stdin()
    assert (await finish(running)).output == "still here"


@pytest.mark.covers("PROC-8")
async def test_a_helper_that_answers_nothing_after_the_start_leaves_it_uncertain(
    workspace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = holdings()
    monkeypatch.setattr(client, "REPLY_TIMEOUT_S", 5.0)
    launcher = LinuxSandboxLauncher(helper_prefix=(sys.executable, "-I", str(HERE / "lost_helper.py"), "--stop"))
    try:
        with pytest.raises(LaunchUncertain):
            await start(launcher, terms(workspace, sandbox="off"), ("ignored",))
    finally:
        await launcher.close()
    assert left_over(before, holdings()) == []


async def test_a_cancelled_launch_ends_what_it_started(launcher: LinuxSandboxLauncher, workspace: str) -> None:
    before = holdings()
    for _ in range(10):
        starting = asyncio.create_task(start(launcher, terms(workspace), ("/bin/cat",)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
    assert left_over(before, holdings()) == []


async def test_a_closed_launcher_refuses_and_closes_again(workspace: str) -> None:
    launcher = LinuxSandboxLauncher()
    await launcher.start()
    await launcher.close()
    await launcher.close()
    report = await launcher.report(terms(workspace))
    assert not report.available


@pytest.mark.timeout(60)
@pytest.mark.covers("PROC-7", "BOX-7")
async def test_three_hundred_commands_leave_nothing(launcher: LinuxSandboxLauncher, workspace: str) -> None:
    what = terms(workspace, protect=(".hidden", "absent/too"))
    await run(launcher, what, "/bin/true")
    before = holdings()
    for turn in range(100):
        ended = await asyncio.gather(
            run(launcher, what, "/bin/sh", "-c", "sleep 100 & echo x"),
            run(launcher, what, "/bin/true", tty=(24, 80) if turn % 5 == 0 else None),
            run(launcher, what, "/bin/false"),
        )
        assert [one.exit.command_code for one in ended] == [0, 0, 1]
    assert left_over(before, holdings()) == []
    assert await asyncio.to_thread(os.listdir, workspace) == []


@pytest.mark.covers("BOX-2")
async def test_the_runner_is_the_parent_of_every_managed_child(launcher: LinuxSandboxLauncher, workspace: str) -> None:
    process = await start(launcher, terms(workspace), ("/bin/cat",))
    stat = await asyncio.to_thread(Path(f"/proc/{process.pid}/stat").read_text)
    assert int(stat.rpartition(")")[2].split()[1]) == os.getpid()
    process.close_stdin()
    await finish(process)


async def test_no_number_stands_for_a_helper_that_is_gone() -> None:
    helper = client.HelperClient("sandbox", None)
    with pytest.raises(client.HelperGone):
        _ = helper.pid
    await helper.start()
    pid = helper.pid
    assert pid == helper.session
    await helper.close()
    with pytest.raises(client.HelperGone):
        _ = helper.pid
    for number in (0, -1, -pid):
        with pytest.raises(ValueError, match="no process"):
            await client.reap(number)
