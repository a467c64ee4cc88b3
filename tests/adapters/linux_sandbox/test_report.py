"""What the launcher says of itself: from a real sandbox, and from machines that lack something."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from functools import partial
from pathlib import Path

import pytest

from adapters.linux_sandbox.launcher import LinuxSandboxLauncher
from adapters.linux_sandbox.plan import Abilities
from adapters.linux_sandbox.report import REQUIRED
from tests.adapters.linux_sandbox.support import BOUND_S, shell, terms

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[2]


@pytest.mark.covers("BOX-4", "BOX-8")
async def test_a_whole_machine_reports_every_protection_from_a_real_sandbox(
    launcher: LinuxSandboxLauncher, workspace: str
) -> None:
    for what in (None, terms(workspace)):
        report = await launcher.report(what)
        states = {p.name: p.state for p in report.protections}
        assert report.available
        assert (report.command_sandbox, report.network_enforcement) == ("linux-sandbox", "enforced")
        assert {name for name in REQUIRED if states[name] != "active"} == set()
        assert states["process_limit"] == "active"
        # By process where nobody delegated control groups to whoever runs this.
        assert states["memory_limit"] == states["limit_attribution"]
        assert all(p.detail and p.remedy for p in report.protections if p.state == "degraded")


async def test_a_limit_that_is_not_set_is_reported_off(launcher: LinuxSandboxLauncher, workspace: str) -> None:
    what = terms(workspace, limits={"cpu_s": 0, "processes": 0, "memory_mb": 0, "open_files": 0, "file_size_mb": 0})
    limits = (await shell(launcher, what, "true")).isolation.limits
    assert limits == dict.fromkeys(limits, "off") | {"timeout_s": "deadline"}


@pytest.mark.covers("BOX-4")
async def test_a_workspace_without_a_sandbox_says_none(launcher: LinuxSandboxLauncher, workspace: str) -> None:
    report = await launcher.report(terms(workspace, sandbox="off"))
    assert (report.command_sandbox, report.protections, report.network_enforcement) == ("none", (), "none")
    isolation = (await shell(launcher, terms(workspace, sandbox="off"), "true")).isolation
    assert (isolation.command_sandbox, isolation.network, isolation.protections) == ("none", "none", {})


ordinary = pytest.mark.skipif(os.geteuid() == 0, reason="test_ordinary_user runs it as one")


async def test_the_memory_limit_says_what_it_counts(launcher: LinuxSandboxLauncher) -> None:
    limit = next(p for p in (await launcher.report(None)).protections if p.name == "memory_limit")
    # A delegated control group counts all memory of all processes.
    assert limit.state == "active" or (limit.detail or "").endswith("private memory only")


async def on_a_machine_that(lacks: str, workspace: str) -> dict[str, object]:
    run = await asyncio.create_subprocess_exec(
        sys.executable, str(HERE / "lacking_machine.py"), lacks, workspace, cwd=REPOSITORY,
        stdout=asyncio.subprocess.PIPE, env={"PYTHONPATH": str(REPOSITORY), "PATH": os.environ["PATH"]},
    )  # fmt: skip
    async with asyncio.timeout(BOUND_S):
        output, _ = await run.communicate()
    assert run.returncode == 0
    value: dict[str, object] = json.loads(output)
    return value


@ordinary
@pytest.mark.covers("BOX-4")
async def test_a_masked_proc_leaves_a_sandbox_without_one_and_says_how_to_get_it(workspace: str) -> None:
    said = await on_a_machine_that("unmasked-proc", workspace)
    assert said["available"] is True
    assert said["own_proc"] == ["degraded", "EPERM"]
    assert "systempaths=unconfined" in str(said["own_proc_remedy"])
    assert str(said["output"]).startswith("ran\n0\n"), "a command runs, with an empty /proc"


@pytest.mark.covers("BOX-4", "BOX-6")
async def test_a_proc_of_processes_only_is_the_next_best_and_shows_nothing_of_the_machine(
    launcher: LinuxSandboxLauncher, workspace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = "cat /proc/self/status | grep -c NoNewPrivs; ls -d /proc/sys /proc/meminfo /proc/keys; echo /proc/[0-9]*"
    whole = await shell(launcher, terms(workspace), script)
    assert whole.output == "1\n/proc/keys\n/proc/meminfo\n/proc/sys\n/proc/1 /proc/2\n"
    # As if a whole one had been refused, as container engines that mask theirs make the kernel do.
    monkeypatch.setattr("adapters.linux_sandbox.launcher.Abilities", partial(Abilities, own_proc=False))
    lesser = LinuxSandboxLauncher()
    try:
        ended = await shell(lesser, terms(workspace), script)
        assert ended.output.startswith("1\n")
        assert ended.output.count("No such file or directory") == 3
        assert ended.output.endswith("\n/proc/1 /proc/2\n")
        own_proc = next(p for p in (await lesser.report(terms(workspace))).protections if p.name == "own_proc")
        assert (own_proc.state, own_proc.detail) == ("degraded", "/proc holds the command's processes only")
    finally:
        await lesser.close()


@ordinary
@pytest.mark.covers("BOX-4")
async def test_no_namespaces_left_is_unavailable_with_enospc_and_a_sysctl(workspace: str) -> None:
    said = await on_a_machine_that("namespaces", workspace)
    assert said["available"] is False
    assert said["missing"] == ["user_namespace", "ENOSPC"]
    assert "sysctl" in str(said["remedy"])
    assert said["launch"] == "SandboxUnavailable"
    assert await asyncio.to_thread(os.listdir, workspace) == []


@pytest.mark.covers("BOX-4")
async def test_a_full_temporary_directory_is_unavailable_with_enospc(workspace: str) -> None:
    said = await on_a_machine_that("full-tmp", workspace)
    assert (said["available"], said["missing"]) == (False, ["probe", "ENOSPC"])
    assert "/tmp" in str(said["remedy"])
    assert said["launch"] == "SandboxUnavailable"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can lose its capabilities")
@pytest.mark.covers("BOX-4", "IMG-3")
async def test_root_without_capabilities_gets_no_sandbox(workspace: str) -> None:
    said = await on_a_machine_that("capabilities", workspace)
    assert said["available"] is False
    assert said["launch"] == "SandboxUnavailable"
    assert said["missing"] == ["user_namespace", "EPERM"]
    assert "ordinary user" in str(said["remedy"])
    assert await asyncio.to_thread(os.listdir, workspace) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root maps ids")
@pytest.mark.covers("BOX-1", "BOX-4")
async def test_a_file_system_without_id_maps_makes_the_command_its_owner_but_never_root(workspace: str) -> None:
    said = await on_a_machine_that("id-maps", workspace)
    assert (said["available"], said["identity"]) == (True, "degraded")
    assert str(said["output"]).startswith("ran\n")
    assert str(said["output"]).endswith("\n12345\n")
    said = await on_a_machine_that("id-maps-of-root", workspace)
    assert (said["available"], said["missing"]) == (False, ["identity", "EINVAL"])
    assert said["launch"] == "SandboxUnavailable"
    assert "chown" in str(said["remedy"])
