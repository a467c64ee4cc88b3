"""A workspace that an earlier command prepared cannot steer the set-up of the next one."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from adapters.linux_sandbox.launcher import LinuxSandboxLauncher
from runner.ports import LaunchFailed
from tests.adapters.linux_sandbox.support import shell, start, terms

pytestmark = pytest.mark.covers("BOX-6", "BOX-7")


async def test_a_link_at_a_mount_target_inside_the_workspace_is_refused(
    launcher: LinuxSandboxLauncher, workspace: str
) -> None:
    root, vendor = f"{workspace}/ws", f"{workspace}/ws/vendor"
    await asyncio.to_thread(os.makedirs, vendor)
    what = terms(root, mounts_read_only=(vendor,))
    assert (await shell(launcher, what, "touch vendor/x || echo refused")).output.endswith("refused\n")
    await shell(launcher, terms(root), "rmdir vendor && ln -s /etc vendor")
    with pytest.raises(LaunchFailed) as failure:
        await start(launcher, what, ("/bin/sh", "-c", "touch ran"))
    assert failure.value.stage == "mounts"
    assert failure.value.errno == "ELOOP"


async def test_a_root_replaced_by_a_link_is_refused(launcher: LinuxSandboxLauncher, workspace: str) -> None:
    root, other = f"{workspace}/ws", f"{workspace}/other"
    await asyncio.to_thread(os.mkdir, root)
    await asyncio.to_thread(os.mkdir, other)
    assert (await shell(launcher, terms(root), "pwd")).output == f"{root}\n"
    await asyncio.to_thread(os.rmdir, root)
    await asyncio.to_thread(os.symlink, other, root)
    with pytest.raises(LaunchFailed) as failure:
        await start(launcher, terms(root), ("/bin/sh", "-c", "touch ran"))
    assert (failure.value.stage, failure.value.errno) == ("mounts", "ELOOP")
    assert await asyncio.to_thread(os.listdir, other) == []


async def test_a_root_replaced_by_another_directory_is_the_one_that_runs(
    launcher: LinuxSandboxLauncher, workspace: str
) -> None:
    root = f"{workspace}/ws"
    await asyncio.to_thread(os.mkdir, root)
    await shell(launcher, terms(root), "touch old")
    await asyncio.to_thread(os.rename, root, f"{workspace}/aside")
    await asyncio.to_thread(os.mkdir, root)
    assert (await shell(launcher, terms(root), "ls; touch new")).output == ""
    assert await asyncio.to_thread(os.listdir, f"{workspace}/aside") == ["old"]
    assert await asyncio.to_thread(os.listdir, root) == ["new"]


async def test_a_program_of_the_workspace_is_not_taken_for_one_of_the_system(
    launcher: LinuxSandboxLauncher, workspace: str
) -> None:
    fake = Path(workspace, "true")
    await asyncio.to_thread(fake.write_text, "#!/bin/sh\necho fake\n")
    await asyncio.to_thread(fake.chmod, 0o755)
    assert (await shell(launcher, terms(workspace), "env true")).output == ""
