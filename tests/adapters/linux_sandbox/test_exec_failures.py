"""A program that does not start: what is said of the cause. A script's interpreter is another cause than its name."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from adapters.linux_sandbox.launcher import LinuxSandboxLauncher
from runner.ports import LaunchFailed
from tests.adapters.linux_sandbox.support import run, start, terms

pytestmark = pytest.mark.covers("PROC-8")
BOTH_WAYS = True
SIZES = [None, (24, 80)]


def program(root: str, first_line: str, mode: int = 0o755) -> None:
    path = Path(root, "tool")
    path.write_text(f"{first_line}\necho ran\n")
    path.chmod(mode)


@pytest.mark.parametrize("tty", SIZES, ids=["pipes", "terminal"])
@pytest.mark.parametrize("line", ["#!/opt/absent/python", "#!/bin/sh\r", "#!./absent", "#!/usr/bin/absent -x"])
async def test_a_script_whose_interpreter_is_missing_blames_the_line_that_names_it(
    launcher: LinuxSandboxLauncher, workspace: str, line: str, tty: tuple[int, int] | None
) -> None:
    await asyncio.to_thread(program, workspace, line)
    what = terms(workspace, env={"PATH": f"{workspace}:/usr/bin:/bin"})
    for name in ("./tool", "tool", f"{workspace}/tool"):
        with pytest.raises(LaunchFailed) as failed:
            await start(launcher, what, (name,), tty)
        error = failed.value
        assert (error.stage, error.errno, error.path) == ("exec", "ENOENT", name)
        assert "#!" in error.message
        assert "first line (#!)" in (error.remedy or "")
        assert "first word" not in (error.remedy or "")
    # The control: with an interpreter that exists, the same program runs.
    await asyncio.to_thread(program, workspace, "#!/bin/sh")
    assert (await run(launcher, what, "tool", tty=tty)).output.strip() == "ran"


@pytest.mark.parametrize("tty", SIZES, ids=["pipes", "terminal"])
@pytest.mark.parametrize("name", ["absent", "./absent", "./dangling", "/opt/absent"])
async def test_a_program_that_is_missing_blames_the_first_word(
    launcher: LinuxSandboxLauncher, workspace: str, name: str, tty: tuple[int, int] | None
) -> None:
    os.symlink("nowhere", f"{workspace}/dangling")
    with pytest.raises(LaunchFailed) as failed:
        await start(launcher, terms(workspace), (name,), tty)
    error = failed.value
    assert (error.stage, error.errno, error.path) == ("exec", "ENOENT", name)
    assert "first word" in (error.remedy or "")
    assert "#!" not in error.message
