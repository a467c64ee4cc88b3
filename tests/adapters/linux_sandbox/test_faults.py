"""A failure of any set-up step, or of any system call it makes, ends the start: the command never runs."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from adapters.linux_sandbox.launcher import LinuxSandboxLauncher
from runner.ports import LaunchFailed, SandboxUnavailable
from sandbox_helper.protocol import STAGES
from tests.adapters.linux_sandbox.deny_calls import NUMBERS
from tests.adapters.linux_sandbox.support import start, terms

DENY = str(Path(__file__).with_name("deny_calls.py"))
MARK = ("/bin/sh", "-c", "echo ran > mark")
CALLS = [call for call in NUMBERS if call != "setresuid" or os.geteuid() == 0]


@pytest.mark.covers("BOX-4", "BOX-5", "PROC-8")
@pytest.mark.parametrize("tty", [None, (24, 80)], ids=["pipes", "tty"])
@pytest.mark.parametrize("stage", [stage for stage in STAGES if stage != "namespace"])
async def test_a_failing_stage_is_named_and_nothing_runs(
    workspace: str, stage: str, tty: tuple[int, int] | None
) -> None:
    launcher = LinuxSandboxLauncher(helper_options=("--fault", stage))
    try:
        with pytest.raises(LaunchFailed) as failure:
            await start(launcher, terms(workspace, protect=(".git/hooks",)), MARK, tty)
        assert (failure.value.stage, failure.value.errno) == (stage, "EIO")
        assert await asyncio.to_thread(os.listdir, workspace) == []
    finally:
        await launcher.close()


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the test's filter knows the numbers of x86-64 alone")
@pytest.mark.covers("BOX-4", "BOX-5")
@pytest.mark.parametrize("call", CALLS)
async def test_a_system_call_that_fails_never_leads_to_a_weaker_run(workspace: str, call: str) -> None:
    launcher = LinuxSandboxLauncher(helper_prefix=(sys.executable, "-I", DENY, call))
    try:
        with pytest.raises((SandboxUnavailable, LaunchFailed)):
            await start(launcher, terms(workspace), MARK)
        assert not (await launcher.report(None)).available
        assert await asyncio.to_thread(os.listdir, workspace) == []
    finally:
        await launcher.close()
