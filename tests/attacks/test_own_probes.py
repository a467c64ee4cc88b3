"""Our own attack probes on a terminal and without protection; `codespace selftest` runs them all, beside controls."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from adapters.linux_sandbox.host import ROOT_STAND_IN_ID
from adapters.linux_sandbox.selftest.bait import PROTECT, Bait, lay_out
from adapters.linux_sandbox.selftest.run import targets
from tests.attacks.harness import Place, SandboxDriver

PYTHON = "/usr/bin/python3"
TARGETS = targets()
NOT_FINITE = [kind for kind in dict.fromkeys(t["kind"] for t in TARGETS.values()) if kind != "resource"]


def outcomes(text: str) -> dict[str, tuple[str, str | None, str]]:
    records = [json.loads(line) for line in text.splitlines()]
    return {record["id"]: (record["state"], record["errno"], record["detail"]) for record in records}


@pytest.fixture
def laid(sandbox: SandboxDriver) -> Iterator[Bait]:
    with lay_out(sandbox.identity.uid or (ROOT_STAND_IN_ID if os.geteuid() == 0 else None)) as bait:
        yield bait


def argv(laid: Bait, *only: str) -> list[str]:
    return laid.command(PYTHON, *(word for name in only for word in ("--only", name)))


@pytest.mark.covers("BOX-1", "BOX-6", "BOX-7", "NET-1")
def test_every_own_probe_is_refused_on_a_terminal_for_its_own_reason(sandbox: SandboxDriver, laid: Bait) -> None:
    terms = {"workspace_id": "w", "root": laid.workspace, "protect": PROTECT, "mounts_read_only": [laid.tools]}
    finished = sandbox.run(terms, argv(laid, *NOT_FINITE), tty=(24, 80))
    found = outcomes(finished.output)
    assert set(found) == {name for name, target in TARGETS.items() if target["kind"] in NOT_FINITE}
    wrong = {
        name: outcome
        for name, outcome in found.items()
        if outcome[0] != "refused" or outcome[1] not in TARGETS[name]["errnos"]
    }
    assert wrong == {}
    git = Path(laid.workspace, ".git")
    assert sorted(os.listdir(git)) == ["config", "config.link", "hooks", "probe-other"]
    assert (git / "config").read_text() == "bait\n"
    assert os.listdir(git / "hooks") == []


@pytest.mark.covers("BOX-7")
@pytest.mark.parametrize("name", [name for name in TARGETS if name.startswith("protected: ")])
def test_a_probe_of_protected_names_is_open_in_the_same_sandbox_without_protection(
    sandbox: SandboxDriver, laid: Bait, name: str
) -> None:
    terms = {"workspace_id": "w", "root": laid.workspace, "protect": [], "mounts_read_only": [laid.tools]}
    assert outcomes(sandbox.run(terms, argv(laid, name)).output) == {name: ("open", None, "")}


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
