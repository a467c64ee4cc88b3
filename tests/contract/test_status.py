"""How a command ends and what is said of it (PROC-3, PROC-6, PROC-9)."""

from __future__ import annotations

import asyncio

import pytest

from runner.api import SHOWN_ARGV_CHARS, CommandExit, ListProcesses, TerminateProcess, shown_argv
from tests.contract.rig import Rig

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.covers("PROC-3")
async def test_a_running_command_has_no_termination(rig: Rig) -> None:
    status = await rig.status(await rig.start("/bin/cat"))
    assert (status.state, status.termination, status.exit_code, status.command_exit) == ("running", None, None, None)
    assert status.exited_at_utc is None


@pytest.mark.covers("PROC-3", "PROC-6")
@pytest.mark.parametrize("code", [0, 1, 7, 126, 137, 255])
async def test_an_exit_code_is_the_command_s_own(rig: Rig, code: int) -> None:
    _, status = await rig.run(f"exit {code}")
    assert (status.termination, status.command_exit) == ("exited", CommandExit(code=code))
    assert isinstance(status.exit_code, int)
    assert status.exited_at_utc is not None
    assert status.exited_at_utc >= status.started_at_utc


@pytest.mark.covers("PROC-6")
@pytest.mark.parametrize("name", ["KILL", "TERM", "ABRT", "SEGV", "HUP"])
async def test_a_death_by_signal_is_told_by_its_name(rig: Rig, name: str) -> None:
    _, status = await rig.run(f"kill -{name} $$")
    assert (status.termination, status.command_exit) == ("exited", CommandExit(signal=f"SIG{name}"))
    assert isinstance(status.exit_code, int)


@pytest.mark.covers("PROC-9")
async def test_terminate_lets_the_command_answer_first_and_still_says_terminated(rig: Rig) -> None:
    process_id = await rig.sh("trap 'echo bye; exit 0' TERM; echo ready; while :; do read x || :; done")
    await rig.until(process_id, "ready")
    status = await rig.terminate(process_id)
    assert (status.termination, status.exit_code) == ("terminated", None)
    assert status.command_exit == CommandExit(code=0)
    assert await rig.output(process_id) == "ready\nbye\n"


@pytest.mark.covers("PROC-9")
async def test_terminate_kills_what_ignores_it_and_what_sits_on_its_terminal(rig: Rig) -> None:
    stubborn = "trap '' TERM HUP INT; echo ready; while :; do sleep 86400; done"
    ids = [await rig.sh(stubborn), await rig.sh(stubborn, tty=True)]
    for process_id in ids:
        await rig.until(process_id, "ready")
    for status in await asyncio.gather(*(rig.terminate(process_id) for process_id in ids)):
        assert (status.termination, status.exit_code) == ("terminated", None)


@pytest.mark.covers("PROC-9")
async def test_terminate_ends_a_stopped_command(rig: Rig) -> None:
    process_id = await rig.sh("echo ready; kill -STOP $$; echo resumed; sleep 86400")
    await rig.until(process_id, "ready")
    assert (await rig.terminate(process_id)).termination == "terminated"


@pytest.mark.covers("PROC-9")
async def test_terminate_is_idempotent_and_harmless_after_the_end(rig: Rig) -> None:
    process_id = await rig.sh("exit 5")
    before = await rig.exited(process_id)
    answer = await rig.runner.terminate_process(TerminateProcess(process_id=process_id))
    assert answer.state == "exited"
    assert await rig.status(process_id) == before


@pytest.mark.covers("PROC-9", "PROC-3")
async def test_the_timeout_ends_a_command_and_names_itself_even_where_the_command_is_stopped(rig: Rig) -> None:
    terms = rig.terms(timeout_s=1)
    ids = [
        await rig.sh("echo before; sleep 86400", terms=terms),
        await rig.sh("echo before; kill -STOP $$", terms=terms),
    ]
    for process_id in ids:
        status = await rig.exited(process_id)
        assert (status.termination, status.limit, status.exit_code) == ("timeout", "timeout_s", None)
        assert await rig.output(process_id) == "before\n"


@pytest.mark.covers("PROC-3")
async def test_a_command_that_exits_with_its_timeout_set_is_just_exited(rig: Rig) -> None:
    _, status = await rig.run("exit 0", terms=rig.terms(timeout_s=60))
    assert (status.termination, status.limit) == ("exited", None)
    assert status.isolation.limits["timeout_s"] == "deadline"
    _, status = await rig.run("exit 0", terms=rig.terms(timeout_s=0))
    assert status.isolation.limits["timeout_s"] == "off"


@pytest.mark.covers("PROC-3", "LEASE-2")
async def test_the_exit_event_comes_before_any_answer_that_says_exited(rig: Rig) -> None:
    for _ in range(20):
        process_id = await rig.sh("exit 0")
        while (await rig.status(process_id, 5000)).state != "exited":
            pass
        assert [e.termination for e in rig.events if e.process_id == process_id] == ["exited"]


@pytest.mark.covers("LEASE-2")
async def test_each_command_has_exactly_one_exit_event(rig: Rig) -> None:
    ids = [await rig.sh("exit 0"), await rig.sh("kill -KILL $$"), await rig.start("/bin/cat")]
    await rig.terminate(ids[2])
    for process_id in ids:
        await rig.exited(process_id)
    told = [(e.process_id, e.termination, e.workspace_id) for e in rig.events if e.process_id in ids]
    assert sorted(told) == [(ids[0], "exited", "demo"), (ids[1], "exited", "demo"), (ids[2], "terminated", "demo")]


@pytest.mark.covers("PROC-7")
async def test_a_command_is_listed_with_its_state_and_workspace(rig: Rig) -> None:
    running, over = await rig.start("/bin/cat"), await rig.sh("exit 0")
    await rig.exited(over)
    listed = {p.process_id: p for p in (await rig.runner.list_processes(ListProcesses(workspace_id="demo"))).processes}
    assert (listed[running].state, listed[running].argv) == ("running", ("/bin/cat",))
    assert listed[over].state == "exited"
    assert (await rig.runner.list_processes(ListProcesses(workspace_id="other"))).processes == ()


@pytest.mark.covers("PROC-7")
async def test_commands_however_long_do_not_keep_the_list_from_being_told(rig: Rig) -> None:
    """An agent could otherwise hide what it runs: all lists together have to fit into a frame."""
    word = "\u00e9" * 60_000
    process_id = await rig.start("/bin/true", word, "end")
    await rig.exited(process_id)
    listed = {p.process_id: p for p in (await rig.runner.list_processes(ListProcesses())).processes}
    shown = listed[process_id].argv
    assert shown[0] == "/bin/true"
    assert len(shown) == 2
    assert shown[1].endswith("\u00e9…")
    assert sum(map(len, shown)) <= SHOWN_ARGV_CHARS


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        (("a", "b"), ("a", "b")),
        (("a", "x" * SHOWN_ARGV_CHARS), ("a", "x" * (SHOWN_ARGV_CHARS - 3) + "…")),
        (("x" * (SHOWN_ARGV_CHARS - 1),), ("x" * (SHOWN_ARGV_CHARS - 1),)),
        (("x" * (SHOWN_ARGV_CHARS - 1), "yz"), ("x" * (SHOWN_ARGV_CHARS - 1), "…")),
        (("",) * 100_000, ("",) * SHOWN_ARGV_CHARS + ("…",)),
    ],
)
async def test_a_long_command_is_shown_by_its_beginning(argv: tuple[str, ...], shown: tuple[str, ...]) -> None:
    assert shown_argv(argv) == shown
