"""What 300 commands in a row leave behind in the running program, and what the program leaves when it ends: nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.leaks import descriptors_of
from tests.program import Program, Refused, running_program

ROUNDS = 50
DAEMON = "(setsid sh -c 'sleep 1000' >/dev/null 2>&1 &); exec true"


@dataclass(frozen=True)
class Held:
    """`processes`: pid to its number of descriptors. `files`: everything below TMPDIR and the workspace."""

    processes: dict[int, int]
    zombies: dict[int, str]
    files: list[str]


def held(program: Program) -> Held:
    family = program.family()
    zombies = {pid: what for pid, what in family.items() if what.startswith("Z")}
    return Held(
        processes={pid: len(descriptors_of(pid)) for pid in family if pid not in zombies},
        zombies=zombies,
        files=sorted(
            str(path.relative_to(program.folder))
            for place in ("tmp", "workspace")
            for path in Path(program.folder, place).rglob("*")
        ),
    )


def settled(program: Program, wanted: Held | None = None) -> Held:
    """What is held once calls have gone by: the last command's descriptors are closed by then, a few turns later."""
    found = held(program)
    for _ in range(50):
        if found == wanted:
            break
        program.call("workspace_info")
        found = held(program)
    return found


def one_round(program: Program) -> None:
    """Six commands of different ends."""
    assert program.run("true")["command_exit"] == {"code": 0}
    assert program.run("sh", "-c", "kill -9 $$")["command_exit"] == {"signal": "SIGKILL"}
    assert program.run("sh", "-c", DAEMON)["command_exit"] == {"code": 0}
    assert program.run("sh", "-c", "test -t 0 && head -c 100000 /dev/zero", tty=True)["command_exit"] == {"code": 0}
    with pytest.raises(Refused) as missing:
        program.run("no-such-program")
    assert missing.value.code == "PROCESS_SPAWN_FAILED"
    process_id = program.call("exec_command", workspace_id="demo", command=["sleep", "1000"])["process_id"]
    program.call("terminate_process", process_id=process_id)
    assert program.ended(process_id)["termination"] == "terminated"


@pytest.mark.covers("PROC-7", "PROC-11", "LEASE-2")
@pytest.mark.kernel("namespaces")
@pytest.mark.timeout(120)
def test_three_hundred_commands_leave_no_process_descriptor_zombie_or_file() -> None:
    with running_program() as program:
        (program.workspace / ".git").mkdir()
        for _ in range(3):
            one_round(program)
        before = settled(program)
        for _ in range(ROUNDS):
            one_round(program)
        after = settled(program, before)
        assert len(before.processes) >= 3, program.family()
        assert after == before
        assert after.zombies == {}
        assert after.files == ["workspace/.git"]
        status, alive = program.stop()
        assert (status, alive) == (0, {})
        assert list((program.folder / "tmp").iterdir()) == []
        assert not (program.folder / "mcp.sock").exists()


@pytest.mark.covers("PROC-7")
@pytest.mark.kernel("namespaces")
@pytest.mark.timeout(60)
def test_a_program_that_is_killed_takes_every_daemon_along() -> None:
    with running_program() as program:
        # The shell's own command line names the second one.
        script = "setsid sleep 1000 & until grep -q ^sleep /proc/$!/cmdline; do :; done; echo ready; sleep 1000"
        started = program.call("exec_command", workspace_id="demo", command=["sh", "-c", script])
        said = program.call("read_process", process_id=started["process_id"], wait_ms=10_000)
        assert said["chunk"] == "ready\n"
        family = program.family()
        assert sum("sleep 1000" in what for what in family.values()) >= 2
        program.process.kill()
        program.process.wait(10)
        status, alive = program.process.returncode, program.await_end(family)
        assert (status, alive) == (-9, {})
