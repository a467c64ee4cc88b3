"""A workspace that an earlier command prepared cannot steer the set-up of the next one."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adapters.linux_sandbox import launcher as launcher_module
from adapters.linux_sandbox.launcher import LinuxSandboxLauncher
from adapters.linux_sandbox.plan import build_plan
from runner.ports import LaunchFailed
from sandbox_helper.protocol import Plan
from tests.adapters.linux_sandbox.support import shell, start, terms

pytestmark = pytest.mark.covers("BOX-6", "BOX-7")
BOTH_WAYS = True


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


async def test_a_link_that_a_command_exchanges_for_the_directory_at_the_target_is_not_followed(
    launcher: LinuxSandboxLauncher, workspace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, shown = f"{workspace}/ws", f"{workspace}/ws/dir/shown"
    await asyncio.to_thread(os.makedirs, shown)
    await asyncio.to_thread(os.mkdir, f"{workspace}/private")
    await asyncio.to_thread(Path(workspace, "private", "key").touch)

    def found_as_a_link(*given: Any, **more: Any) -> Plan:
        # What renameat2(RENAME_EXCHANGE) in a loop comes to: a link where it is resolved, a directory where it is put.
        plan = build_plan(*given, **more)
        mounts = tuple(m._replace(source=f"{root}/link") if m.target == shown else m for m in plan.mounts)
        return plan._replace(mounts=mounts)

    monkeypatch.setattr(launcher_module, "build_plan", found_as_a_link)
    what = terms(root, mounts_read_only=(shown,))
    await asyncio.to_thread(os.mkdir, f"{root}/link")
    assert (await shell(launcher, what, "ls dir/shown && echo shown")).output == "shown\n"
    await asyncio.to_thread(os.rmdir, f"{root}/link")
    await asyncio.to_thread(os.symlink, f"{workspace}/private", f"{root}/link")
    with pytest.raises(LaunchFailed) as failure:
        await start(launcher, what, ("/bin/sh", "-c", "ls dir/shown"))
    assert (failure.value.stage, failure.value.errno) == ("mounts", "ELOOP")


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


async def test_more_workspaces_than_laid_out_trees_each_keep_their_own(
    launcher: LinuxSandboxLauncher, workspace: str
) -> None:
    roots = [f"{workspace}/{number}" for number in range(12)]
    for root in roots:
        await asyncio.to_thread(os.mkdir, root)
    for _ in range(2):
        for root in roots:
            assert (await shell(launcher, terms(root), "pwd; touch $(basename $PWD)")).output == f"{root}\n"
    for root in roots:
        assert await asyncio.to_thread(os.listdir, root) == [os.path.basename(root)]


async def test_a_file_of_the_hosts_that_is_gone_or_new_is_looked_up_again(workspace: str) -> None:
    launcher = LinuxSandboxLauncher()
    # Outside the private /tmp, which would hide it.
    place = await asyncio.to_thread(tempfile.mkdtemp, dir="/var/tmp")
    gone, extra = f"{place}/gone", f"{workspace}/extra"
    await asyncio.to_thread(Path(gone).touch)
    await asyncio.to_thread(os.mkdir, f"{place}/beside")
    await asyncio.to_thread(os.makedirs, f"{extra}/ws")
    await launcher.start()
    facts = launcher._host
    assert facts is not None
    launcher._host = replace(facts, etc_copied=(*facts.etc_copied, gone))
    what = terms(f"{extra}/ws", mounts_read_only=(f"{place}/beside",))
    try:
        assert (await shell(launcher, what, f"ls {gone}")).output == f"{gone}\n"
        await asyncio.to_thread(os.unlink, gone)
        assert (await shell(launcher, what, f"test -e {gone} || echo none")).output == "none\n"
        # The operator's directory is another one now: the next command sees that.
        tool = terms(f"{extra}/ws", mounts_read_only=(f"{extra}/tool",))
        for version in ("1", "2"):
            await asyncio.to_thread(os.mkdir, f"{extra}/tool")
            await asyncio.to_thread(Path(extra, "tool", "v").write_text, version)
            assert (await shell(launcher, tool, f"cat {extra}/tool/v")).output == version
            await asyncio.to_thread(os.rename, f"{extra}/tool", f"{extra}/old{version}")
    finally:
        await launcher.close()
        await asyncio.to_thread(shutil.rmtree, place)
