"""Our own attack probes inside the sandbox, refused with the errno that says by what; outside, each can succeed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.attacks.harness import Identity, Place, SandboxDriver, identities, make_place

PROGRAM = Path(__file__).parent / "inside" / "own_probes.py"
TARGETS: dict[str, list[str | None]] = json.loads((Path(__file__).parent / "own_targets.json").read_text())
"""Probe to the errnos that count as a refusal; null: refused without one. In the order of NOTES: by what it attacks."""
PYTHON = "/usr/bin/python3"


def outcomes(text: str) -> dict[str, tuple[str, str | None, str]]:
    records = [json.loads(line) for line in text.splitlines()]
    return {record["id"]: (record["state"], record["errno"], record["detail"]) for record in records}


@pytest.mark.covers("BOX-1", "BOX-6", "BOX-7", "NET-1")
@pytest.mark.parametrize("size", [None, (24, 80)], ids=["pipes", "tty"])
def test_every_own_probe_is_refused_for_its_own_reason(
    sandbox: SandboxDriver, place: Place, size: tuple[int, int] | None
) -> None:
    program = shutil.copy(PROGRAM, place.tools)
    for name in (".git", ".git/hooks"):
        (place.workspace / name).mkdir()
        sandbox.identity.own(place.workspace / name)
    (place.workspace / ".git/config").touch()
    sandbox.identity.own(place.workspace / ".git/config")
    finished = sandbox.run(place.terms(), [PYTHON, str(program), str(place.workspace)], tty=size)
    found = outcomes(finished.output)
    assert set(found) == set(TARGETS)
    wrong = {
        name: outcome for name, outcome in found.items() if outcome[0] != "refused" or outcome[1] not in TARGETS[name]
    }
    assert wrong == {}
    assert sorted(os.listdir(place.workspace / ".git")) == ["config", "config.link", "hooks", "probe-other"]
    assert (place.workspace / ".git/config").stat().st_size == 0
    assert os.listdir(place.workspace / ".git/hooks") == []


@pytest.mark.covers("BOX-7")
@pytest.mark.parametrize("identity", identities(), ids=lambda identity: identity.name)
def test_every_own_probe_can_succeed_outside(identity: Identity) -> None:
    with make_place(identity) as place:
        run = subprocess.run(
            [PYTHON, str(PROGRAM), str(place.workspace), "--control"],
            stdout=subprocess.PIPE,
            text=True,
            timeout=60,
            check=True,
            **identity.popen_arguments(),
        )
    found = outcomes(run.stdout)
    assert set(found) == set(TARGETS)
    needs_root = set() if identity.name == "root" else {"write-to-the-machine-through-proc"}
    assert {name: outcome for name, outcome in found.items() if outcome[0] != "open" and name not in needs_root} == {}


ALL_SIGNALS = """
import os, signal, sys
for number in range(1, signal.NSIG):
    os.kill(1, number)
with open("/proc/1/status") as status:
    sys.stdout.write(status.read())
sys.exit(7)
"""


@pytest.mark.covers("BOX-1", "PROC-6")
def test_no_signal_from_inside_moves_pid_1(sandbox: SandboxDriver, place: Place) -> None:
    finished = sandbox.run(place.terms(), [PYTHON, "-c", ALL_SIGNALS])
    assert finished.code == 7, finished
    assert "(stopped)" not in finished.output


DAEMON = """
import os, signal
if os.fork():
    os.wait()
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
print("daemon runs", flush=True)
signal.pause()
"""


@pytest.mark.covers("PROC-7", "PROC-11")
def test_a_daemon_that_left_session_and_parent_dies_with_its_command(sandbox: SandboxDriver, place: Place) -> None:
    script = f'{PYTHON} -c "$1"; read line; exit 3'
    command = sandbox.launch(place.terms(), ["/bin/sh", "-c", script, "sh", DAEMON])
    sandbox.expect(command, "daemon runs")
    inside = family_of(command.pid)
    assert len(inside) == 3, "PID 1, the shell and the daemon"
    sandbox.send(command, "\n")
    assert sandbox.wait(command).code == 3
    assert [pid for pid in inside if os.path.exists(f"/proc/{pid}")] == []


def family_of(init: int) -> list[int]:
    """`init` and its children: an orphan of a PID namespace becomes a child of its PID 1."""
    found = [init]
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == init:
            found.append(int(pid))
    return found
