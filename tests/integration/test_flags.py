"""Each flag and each addition to the engine's seccomp profile, removed in turn: the image says what is missing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integration.containers import ROOT, flags, home, run, serving, volumes

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

ADDITIONS = tuple(json.loads((ROOT / "image/seccomp/departures.json").read_text())["added"])
PROBE_ALONE = ("--env", "CODESPACE_REGISTRY=")


def protections(output: str) -> dict[str, dict[str, Any]]:
    report = json.loads(output)["default"]
    return {entry["name"]: entry for entry in report["protections"]}


@pytest.mark.covers("IMG-1", "IMG-3")
def test_with_all_flags_every_required_protection_and_the_own_proc_is_active() -> None:
    ended = run("doctor", "--json", options=[*flags(), *PROBE_ALONE])
    assert ended.status == 0, ended
    found = protections(ended.output)
    assert {name for name, entry in found.items() if entry["required"] and entry["state"] != "active"} == set()
    assert found["own_proc"]["state"] == "active"


@pytest.mark.covers("IMG-2")
@pytest.mark.parametrize("call", ADDITIONS)
def test_without_one_addition_to_the_profile_no_command_runs_and_doctor_says_so(call: str, tmp_path: Path) -> None:
    profile = tmp_path / "seccomp.json"
    made = subprocess.run(
        [sys.executable, str(ROOT / "tools/seccomp_profile.py"), "--without", call],
        capture_output=True, text=True, check=True, timeout=20,
    )  # fmt: skip
    profile.write_text(made.stdout)
    ended = run("doctor", options=[*flags(seccomp=("--security-opt", f"seccomp={profile}")), *PROBE_ALONE])
    assert ended.status == 1, ended
    assert "commands are refused" in ended.output
    assert call in ended.output
    assert "--security-opt seccomp=image/seccomp.json" in ended.output


@pytest.mark.covers("IMG-2")
def test_the_profile_is_the_one_that_its_script_makes_and_departs_only_as_declared() -> None:
    checked = subprocess.run(
        [sys.executable, str(ROOT / "tools/seccomp_profile.py"), "--check"], capture_output=True, text=True, timeout=20,
        check=False,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stderr
    default = json.loads((ROOT / "image/seccomp/engine-default.json").read_text())["syscalls"]
    ours = json.loads((ROOT / "image/seccomp.json").read_text())["syscalls"]
    assert [rule for rule in ours if rule not in default] == [{"names": list(ADDITIONS), "action": "SCMP_ACT_ALLOW"}]
    assert [rule["names"] for rule in default if rule not in ours] == [["clone3"]]


@pytest.mark.covers("IMG-1", "IMG-3")
def test_without_the_profile_serve_refuses_and_names_it() -> None:
    with home() as folder:
        ended = run(options=[*flags(seccomp=()), *volumes(folder)])
    assert ended.status == 1, ended
    said = [line for line in ended.errors.splitlines() if line.startswith("error: ")]
    assert len(said) == 1, ended
    assert "the sandbox cannot be had" in said[0]
    assert "--security-opt seccomp=image/seccomp.json" in said[0]


@pytest.mark.covers("IMG-1", "IMG-3")
def test_with_the_engines_masks_on_proc_commands_run_without_their_own_proc_as_doctor_declares() -> None:
    ended = run("doctor", "--json", options=[*flags(proc=()), *PROBE_ALONE])
    assert ended.status == 0, ended
    found = protections(ended.output)["own_proc"]
    assert (found["state"], found["required"], found["errno"]) == ("degraded", False, "EPERM")
    assert "--security-opt systempaths=unconfined" in found["remedy"]


@pytest.mark.covers("IMG-1", "IMG-3")
def test_without_a_temporary_directory_serve_refuses_and_names_the_flag() -> None:
    with home() as folder:
        ended = run(options=[*flags(tmp=()), *volumes(folder)])
    assert ended.status == 2, ended
    assert ended.errors == "error: no temporary directory is writable: /tmp: add --tmpfs /tmp\n"


@pytest.mark.covers("IMG-3")
@pytest.mark.parametrize("command", ["serve", "doctor", "selftest", "stdio"])
def test_uid_0_is_refused_by_every_command_that_runs_others(command: str) -> None:
    with home() as folder:
        ended = run(command, options=[*flags(user=("--user", "0")), *volumes(folder)])
    assert ended.status == 2, ended
    assert "error: the image does not run as root: uid 0: add --user" in ended.errors


@pytest.mark.covers("IMG-1")
@pytest.mark.parametrize("flag", ["capabilities", "no_new_privileges", "read_only"])
def test_flags_that_only_take_away_are_not_needed_to_run_and_change_nothing_inside(flag: str) -> None:
    """They protect the machine from the appliance, not the appliance from commands: a sandbox gives up the same."""
    with home() as folder, serving(folder, given=flags(**{flag: ()})) as running:
        status = running.output_of("cat", "/proc/self/status")
    fields = dict(line.split(":\t", 1) for line in status.splitlines())
    assert {fields[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
    assert (fields["NoNewPrivs"], fields["Seccomp"]) == ("1", "2")
