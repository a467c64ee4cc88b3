"""`codespace selftest`: nothing open here as root and as an ordinary user, and it says so when something is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from adapters.linux_sandbox.selftest.run import targets
from gateway.__main__ import Joined
from gateway.cli.app import command_line
from gateway.cli.console import run
from gateway.cli.selftest import State, Tried

REPOSITORY = Path(__file__).parents[3]
DENY = REPOSITORY / "tests" / "adapters" / "linux_sandbox" / "deny_calls.py"
MAPPED = DENY.with_name("mapped_root.py")
PROGRAM = (sys.executable, "-m", "gateway", "selftest")
WAIT_S = 100
IDENTITIES: list[int | None] = [None, 12345] if os.geteuid() == 0 else [None]
pytestmark = [pytest.mark.kernel("namespaces"), pytest.mark.timeout(120), pytest.mark.xdist_group("attacks")]


def selftest(*arguments: str, uid: int | None = None, prefix: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    identity: dict[str, Any] = {} if uid is None else {"user": uid, "group": uid, "extra_groups": []}
    return subprocess.run(
        [*prefix, *PROGRAM, *arguments],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
        **identity,
    )


@pytest.mark.covers("BOX-1", "BOX-6", "BOX-7", "BOX-8", "NET-1", "IMG-3")
@pytest.mark.parametrize("uid", IDENTITIES, ids=lambda uid: "user" if uid else "self")
def test_no_probe_is_open_and_each_can_succeed_outside(uid: int | None) -> None:
    done = selftest("--json", uid=uid)
    said = json.loads(done.stdout)
    probes = {probe.pop("id"): probe for probe in said["probes"]}
    assert set(probes) == set(targets())
    assert {name: p for name, p in probes.items() if p["state"] != "blocked" or not p["as_meant"]} == {}
    root = uid is None and os.geteuid() == 0
    need_root = set() if root else {"write-to-the-machine-through-proc"}
    need_network = {"see-another-interface", "find-a-way-out"}
    not_shown = {name for name, p in probes.items() if p["control"]["state"] != "open"}
    assert need_root <= not_shown <= need_root | need_network
    assert (said["ok"], said["open"], said["controls_failed"], done.returncode) == (True, 0, 0, 0)
    assert {p["kind"] for p in probes.values()} == {"filesystem", "process", "kernel", "network", "resource"}


@pytest.mark.covers("IMG-3")
def test_what_a_filter_around_the_program_refuses_is_said_and_excused() -> None:
    done = selftest(prefix=(sys.executable, str(DENY), "ptrace"))
    traced = next(line for line in done.stdout.splitlines() if " be-traced " in line)
    assert "EPERM outside as well, by a system call filter around this program" in traced
    assert done.stdout.splitlines()[-1].endswith(" 0 failed")
    assert done.returncode == 0


@pytest.mark.covers("BOX-4")
def test_without_a_sandbox_it_fails_and_says_what_is_missing() -> None:
    done = selftest(prefix=(sys.executable, str(DENY), "unshare"))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: SANDBOX_UNAVAILABLE: selftest: ")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root maps ids")
@pytest.mark.covers("BOX-4", "IMG-3")
@pytest.mark.parametrize(
    ("ids", "remedy"),
    [("0 0 1", "/proc/self/uid_map"), ("0 0 1\n61000 61000 1", "root of a user namespace never can")],
    ids=["root-alone", "root-and-the-probes'-user"],
)
def test_root_of_a_user_namespace_in_which_no_workspace_could_have_a_sandbox_fails(ids: str, remedy: str) -> None:
    done = selftest(prefix=(sys.executable, str(MAPPED), ids))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: SANDBOX_UNAVAILABLE: selftest: ")
    assert remedy in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root maps ids")
@pytest.mark.covers("IMG-3")
def test_root_of_a_user_namespace_in_which_a_user_s_workspace_could_passes() -> None:
    """The control for the one above; all probes have passed there elsewhere, on the same sandbox."""
    check = "import asyncio; from adapters.linux_sandbox.selftest.run import check_workspaces as c; asyncio.run(c())"
    command = [sys.executable, str(MAPPED), "0 0 65536", sys.executable, "-c", check]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root unmounts")
@pytest.mark.covers("BOX-4", "IMG-3")
def test_a_machine_whose_proc_is_gone_is_told_to_mount_it() -> None:
    done = selftest(prefix=("/usr/bin/unshare", "--mount", "/bin/sh", "-c", 'umount -l /proc && exec "$@"', "sh"))
    assert done.returncode == 1
    assert "mount -t proc proc /proc" in done.stderr


@dataclass(frozen=True)
class FakeTried:
    name: str = "a-probe"
    kind: str = "kernel"
    state: State = "blocked"
    errno: str | None = "EPERM"
    detail: str = ""
    expected: bool = True
    control: State = "open"
    control_detail: str = ""
    excused: bool = False
    holds: bool = True


class FakeParts(Joined):
    def __init__(self, found: list[Tried]) -> None:
        self._found = found

    def selftest(self) -> Sequence[Tried]:
        return self._found


@pytest.mark.parametrize(
    ("tried", "line"),
    [
        (FakeTried(state="open", errno=None, detail="seen", holds=False), "OPEN      kernel      a-probe  seen"),
        (FakeTried(state="untried", errno=None, holds=False), "untried   kernel      a-probe"),
        (
            FakeTried(control="blocked", control_detail="EROFS", holds=False),
            "CONTROL FAILED: blocked outside as well: EROFS",
        ),
    ],
)
def test_a_hole_or_a_failed_control_exits_1_and_is_named(
    capsys: pytest.CaptureFixture[str], tried: FakeTried, line: str
) -> None:
    assert run(command_line(FakeParts([FakeTried(name="fine"), tried])), ["selftest"]) == 1
    assert line in capsys.readouterr().out
    assert run(command_line(FakeParts([FakeTried(name="fine"), tried])), ["selftest", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["ok"] is False


@pytest.mark.parametrize(("found", "status"), [([FakeTried()], 0), ([], 1)])
def test_only_a_run_with_probes_succeeds(found: list[Tried], status: int) -> None:
    assert run(command_line(FakeParts(found)), ["selftest"]) == status


def test_a_refusal_by_something_else_is_marked(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command_line(FakeParts([FakeTried(expected=False)])), ["selftest"]) == 0
    assert "refused, but not by what was meant to" in capsys.readouterr().out
