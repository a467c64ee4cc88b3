"""Private file systems hold a bounded number of files: an empty one takes kernel memory, and no page."""

from __future__ import annotations

import pytest

from adapters.linux_sandbox.launcher import LinuxSandboxLauncher
from runner.api import Limits
from tests.adapters.linux_sandbox.support import run, shell, terms

pytestmark = pytest.mark.covers("BOX-8", "BOX-6")
BOTH_WAYS = True
SMALL = Limits(memory_mb=32)
FILL = """
import os, sys
os.chdir(sys.argv[1])
make, made = eval(sys.argv[2]), 0
os.mknod("first")
try:
    while made < 20000:
        make(str(made))
        made += 1
except OSError as error:
    print(error.strerror)
print(made)
"""


@pytest.mark.parametrize("place", ["/tmp", "/dev/shm", "/tmp/home"])
@pytest.mark.parametrize(
    "make",
    ["os.mknod", "os.mkdir", "lambda name: os.symlink('x', name)", "lambda name: os.link('first', name)"],
    ids=["files", "directories", "links", "hard links"],
)
async def test_empty_files_run_out_before_memory_does(
    launcher: LinuxSandboxLauncher, workspace: str, place: str, make: str
) -> None:
    ended = await run(launcher, terms(workspace, limits=SMALL), "/usr/bin/python3", "-c", FILL, place, make)
    refused, made = ended.output.splitlines()
    assert refused == "No space left on device"
    assert 4000 < int(made) < 4096


async def test_the_workspace_itself_has_no_such_bound(launcher: LinuxSandboxLauncher, workspace: str) -> None:
    ended = await run(launcher, terms(workspace, limits=SMALL), "/usr/bin/python3", "-c", FILL, workspace, "os.mknod")
    assert ended.output == "20000\n"


@pytest.mark.parametrize(
    ("memory_mb", "inodes"), [(0, 262144), (16, 4096), (64, 4096), (2048, 131072), (65536, 262144)]
)
async def test_every_private_file_system_is_bounded_in_step_with_the_limit_of_memory(
    launcher: LinuxSandboxLauncher, workspace: str, memory_mb: int, inodes: int
) -> None:
    # The workspace lies below /tmp, so that it is attached late.
    what = terms(workspace, limits=Limits(memory_mb=memory_mb))
    ended = await shell(
        launcher, what, "grep -w tmpfs /proc/self/mounts; for p in /tmp /dev/shm; do stat -fc %c $p; done"
    )
    lines = ended.output.splitlines()
    assert lines[-2:] == [str(inodes)] * 2
    mounts = lines[:-2]
    assert len(mounts) >= 3
    assert [line for line in mounts if "nr_inodes=" not in line] == []
