"""Control groups: found, prepared, and a leaf for each command.

Groups, moves, CLONE_INTO_CGROUP, cgroup.kill and removal are the kernel's own. Where its version 2 hierarchy has no
memory and pids controllers, what is written for them is seen in a directory of plain files, and no limit is struck.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from adapters.linux_sandbox import cgroups
from adapters.linux_sandbox.cgroups import CONTROLLERS, NoSubtree, Subtree
from adapters.linux_sandbox.launcher import LinuxSandboxLauncher
from adapters.linux_sandbox.process import attributed
from runner.api import Limits
from runner.ports import LaunchFailed, LaunchRequest, ManagedExit
from tests.adapters.linux_sandbox.prepared import PreparedLauncher
from tests.adapters.linux_sandbox.support import finish, read_until, shell, start, terms
from tests.leaks import await_end_of

pytestmark = pytest.mark.covers("BOX-8")
MOUNT = cgroups.own_place(Path("/proc/self/mountinfo").read_text(), Path("/proc/self/cgroup").read_text())
needs_groups = pytest.mark.skipif(
    MOUNT is None or os.geteuid() != 0, reason="needs a version 2 hierarchy that this user may make groups in"
)


# --- finding ----------------------------------------------------------------------------------------------------------
HYBRID = """31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""
CONTAINER = "900 880 0:27 /docker/abc /sys/fs/cgroup ro,nosuid shared:9 - cgroup2 cgroup rw,nsdelegate\n"


@pytest.mark.parametrize(
    ("mountinfo", "cgroup", "place"),
    [
        (HYBRID, "8:pids:/x\n0::/user.slice/a.scope\n", ("/sys/fs/cgroup/unified", "/user.slice/a.scope")),
        (HYBRID, "8:pids:/\n", None),
        (HYBRID.replace("cgroup2", "cgroup"), "0::/\n", None),
        (CONTAINER, "0::/docker/abc\n", ("/sys/fs/cgroup", "/")),
        (CONTAINER, "0::/docker/abc/inner\n", ("/sys/fs/cgroup", "/inner")),
        (CONTAINER, "0::/docker/abcdef\n", None),
        ("", "", None),
    ],
)
def test_the_own_group_is_found_below_the_mount(mountinfo: str, cgroup: str, place: tuple[str, str] | None) -> None:
    assert cgroups.own_place(mountinfo, cgroup) == place


def fake_group(path: Path, controllers: str, enabled: str = "", delegated: bool = True) -> Path:
    path.mkdir()
    for name, text in (
        ("cgroup.procs", ""),
        ("cgroup.type", "domain\n"),
        ("cgroup.controllers", controllers),
        ("cgroup.subtree_control", enabled),
    ):
        (path / name).write_text(text)
    if delegated:
        os.setxattr(path, "user.delegate", b"1")
    return path


def fake_root(folder: Path) -> Path:
    """The machine's own root, which has no type."""
    root = fake_group(folder / "mount", "memory pids cpu", delegated=False)
    (root / "cgroup.type").unlink()
    return root


def fake_self(folder: Path, mount: Path, own: str) -> str:
    (folder / "mountinfo").write_text(f"41 31 0:38 / {mount} rw - cgroup2 cgroup2 rw\n")
    (folder / "cgroup").write_text(f"0::{own}\n")
    return str(folder)


def test_a_delegated_group_gets_its_controllers_and_the_program_a_place_beside_the_leaves(tmp_path: Path) -> None:
    mount = fake_root(tmp_path)
    own = fake_group(mount / "codespace.service", "memory pids cpu")
    found = cgroups.find(proc_self=fake_self(tmp_path, mount, "/codespace.service"))
    assert found == Subtree(str(own), CONTROLLERS)
    assert (own / "cgroup.subtree_control").read_text() == "+memory +pids"
    assert (own / "supervisor").is_dir()


def test_the_delegated_group_above_the_own_one_is_taken_as_it_is(tmp_path: Path) -> None:
    mount = fake_root(tmp_path)
    unit = fake_group(mount / "codespace.service", "memory pids", "memory pids")
    fake_group(unit / "supervisor", "", delegated=False)
    found = cgroups.find(proc_self=fake_self(tmp_path, mount, "/codespace.service/supervisor"))
    assert found == Subtree(str(unit), CONTROLLERS)
    assert (unit / "cgroup.subtree_control").read_text() == "memory pids"


def test_the_root_of_a_container_s_groups_is_its_own(tmp_path: Path) -> None:
    mount = fake_group(tmp_path / "mount", "memory pids", delegated=False)
    assert cgroups.find(proc_self=fake_self(tmp_path, mount, "/")) == Subtree(str(mount), CONTROLLERS)
    (mount / "cgroup.type").unlink()
    assert isinstance(cgroups.find(proc_self=str(tmp_path)), NoSubtree), "that is the machine's own root"


def test_a_writable_group_that_nobody_delegated_is_left_alone(tmp_path: Path) -> None:
    mount = fake_root(tmp_path)
    session = fake_group(mount / "session.scope", "memory pids", delegated=False)
    before = sorted(os.listdir(session))
    found = cgroups.find(proc_self=fake_self(tmp_path, mount, "/session.scope"))
    assert found == NoSubtree("the control group /session.scope is not delegated to this program", "EACCES")
    assert sorted(os.listdir(session)) == before


def test_a_delegated_group_without_the_controllers_says_which(tmp_path: Path) -> None:
    mount = fake_root(tmp_path)
    fake_group(mount / "unit", "cpu pids")
    found = cgroups.find(proc_self=fake_self(tmp_path, mount, "/unit"))
    assert found == NoSubtree("the delegated control group lacks the controllers memory", "ENOENT")


def test_processes_that_cannot_be_moved_leave_limits_by_process(tmp_path: Path) -> None:
    mount = fake_root(tmp_path)
    own = fake_group(mount / "unit", "memory pids")
    (own / "cgroup.procs").write_text("1\n")  # plain files, so that it stays whatever is written elsewhere
    found = cgroups.find(proc_self=fake_self(tmp_path, mount, "/unit"))
    assert isinstance(found, NoSubtree)
    assert found.errno in ("EBUSY", "ENOENT")
    assert (own / "cgroup.subtree_control").read_text() == ""


def test_no_proc_is_no_subtree(tmp_path: Path) -> None:
    found = cgroups.find(proc_self=str(tmp_path / "absent"))
    assert isinstance(found, NoSubtree)
    assert found.errno == "ENOENT"


# --- settings and events ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("controllers", "limits", "settings"),
    [
        (
            CONTROLLERS,
            Limits(memory_mb=3, processes=7),
            [("memory.max", "3145728"), ("memory.oom.group", "1"), ("memory.swap.max", "0"), ("pids.max", "7")],
        ),
        (CONTROLLERS, Limits(memory_mb=0, processes=0), []),
        (frozenset({"pids"}), Limits(memory_mb=3, processes=7), [("pids.max", "7")]),
        (frozenset(), Limits(), []),
    ],
)
def test_a_leaf_is_set_to_the_limits_of_its_controllers(
    controllers: frozenset[str], limits: Limits, settings: list[tuple[str, str]]
) -> None:
    assert cgroups.leaf_settings(controllers, limits) == settings


KILLED = ManagedExit(None, signal.SIGKILL)
FAILED, FINE = ManagedExit(1, None, 1), ManagedExit(0, None, 0)


@pytest.mark.parametrize(
    ("ended", "struck", "limit"),
    [
        (KILLED, {"memory_mb"}, "memory_mb"),
        (KILLED, set(), None),
        (FAILED, {"memory_mb"}, None),
        (FAILED, {"processes"}, "processes"),
        (FINE, {"processes"}, None),
        (ManagedExit(137, None, None, "SIGKILL"), {"memory_mb", "processes"}, "memory_mb"),
        (ManagedExit(152, None, None, "SIGXCPU", "cpu_s"), {"processes"}, "cpu_s"),
    ],
)
def test_a_limit_is_named_only_where_it_ended_the_command(
    ended: ManagedExit, struck: set[cgroups.Struck], limit: str | None
) -> None:
    assert attributed(ended, frozenset(struck)).limit == limit


def test_what_the_kernel_counted_is_read_from_the_leaf(tmp_path: Path) -> None:
    leaf = cgroups.Leaf(str(tmp_path), CONTROLLERS)
    (tmp_path / "memory.events").write_text("low 0\nhigh 0\nmax 9\noom 1\noom_kill 1\noom_group_kill 1\n")
    (tmp_path / "pids.events").write_text("max 0\n")
    assert leaf.struck() == {"memory_mb"}
    (tmp_path / "memory.events").write_text("low 0\nhigh 0\nmax 9\noom 1\noom_kill 0\n")
    (tmp_path / "pids.events").write_text("max 3\n")
    assert leaf.close() == {"processes"}


def test_a_leaf_whose_limits_do_not_take_is_no_leaf(tmp_path: Path) -> None:
    # In a plain directory there is no memory.max to write to.
    with pytest.raises(OSError, match=r"memory\.max"):
        cgroups.make_leaf(Subtree(str(tmp_path), CONTROLLERS), Limits())
    assert os.listdir(tmp_path) == []


def test_leaves_of_dead_runners_are_swept_and_others_stay(tmp_path: Path) -> None:
    gone = subprocess.Popen(["/bin/true"])
    gone.wait(15)
    names = [f"command-{gone.pid}-1", f"command-{os.getpid()}-1", "command-x-1", "supervisor"]
    for name in names:
        (tmp_path / name).mkdir()
    assert cgroups.sweep(str(tmp_path)) == names[:1]
    assert sorted(os.listdir(tmp_path)) == sorted(names[1:])


# --- the kernel's own groups ------------------------------------------------------------------------------------------
@pytest.fixture
def group() -> Iterator[Path]:
    assert MOUNT is not None
    path = Path(tempfile.mkdtemp(prefix="codespace-test-", dir=MOUNT[0]))
    os.setxattr(path, "user.delegate", b"1")
    yield path
    for below in sorted(path.rglob("*"), reverse=True):
        if below.is_dir():
            below.rmdir()
    path.rmdir()


@needs_groups
def test_every_process_of_a_group_moves(group: Path) -> None:
    waiting = [subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE) for _ in range(3)]
    try:
        for process in waiting:
            (group / "cgroup.procs").write_text(str(process.pid))
        cgroups.move_all(str(group), str(group / "supervisor"))
        assert (group / "cgroup.procs").read_text() == ""
        moved = {int(pid) for pid in (group / "supervisor" / "cgroup.procs").read_text().split()}
        assert moved == {process.pid for process in waiting}
    finally:
        for process in waiting:
            process.communicate()


@needs_groups
def test_closing_a_leaf_kills_what_is_left_in_it(group: Path) -> None:
    leaf = cgroups.make_leaf(Subtree(str(group), frozenset()), Limits())
    left = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    (Path(leaf.path) / "cgroup.procs").write_text(str(left.pid))
    assert leaf.close() == frozenset()
    assert await_end_of({left.pid: "left"}, timeout_s=15) == {}
    assert left.wait(15) == -signal.SIGKILL
    cgroups.sweep(str(group))
    assert not Path(leaf.path).exists() or os.listdir(group / leaf.name)


@pytest.fixture
async def grouped(group: Path) -> LinuxSandboxLauncher:
    return LinuxSandboxLauncher(find_groups=lambda: Subtree(str(group), frozenset()))


def leaves(group: Path) -> list[Path]:
    return [path for path in group.iterdir() if path.is_dir()]


@needs_groups
@pytest.mark.parametrize("tty", [None, (24, 80)], ids=["pipes", "tty"])
async def test_a_command_starts_in_a_leaf_of_its_own_that_goes_with_it(
    group: Path, grouped: LinuxSandboxLauncher, workspace: str, tty: tuple[int, int] | None
) -> None:
    try:
        process = await start(grouped, terms(workspace), ("/bin/sh", "-c", "sleep 86400 & echo on; read line"), tty)
        await read_until(process, b"on")
        (leaf,) = leaves(group)
        inside = (leaf / "cgroup.procs").read_text().split()
        assert str(process.pid) in inside
        assert len(inside) == 3, "PID 1, the shell and what it left"
        process.kill()
        ended = await finish(process)
        assert (ended.exit.signal, ended.exit.limit) == (signal.SIGKILL, None)
        assert leaves(group) == []
    finally:
        await grouped.close()


@needs_groups
async def test_a_sandbox_waits_in_the_leaf_of_its_command(group: Path, workspace: str) -> None:
    launcher = PreparedLauncher(find_groups=lambda: Subtree(str(group), frozenset()), prepared=1)
    try:
        what = terms(workspace)
        (sandbox,) = await launcher.primed(LaunchRequest("test", what, (), None))
        (leaf,) = leaves(group)
        assert (leaf / "cgroup.procs").read_text().split() == [str(sandbox.started.pid)]
        process = await start(launcher, what, ("/bin/sh", "-c", "echo on; read line"))
        await read_until(process, b"on")
        assert launcher.used == 1
        assert len((leaf / "cgroup.procs").read_text().split()) == 2
        await launcher.pool.settled()
        launcher.pool.discard(lambda _: True)
        await launcher.pool.settled()
        assert leaves(group) == [leaf], "that of what waited went with it"
        process.kill()
        await finish(process)
        await launcher.pool.settled()
        launcher.pool.discard(lambda _: True)
        await launcher.pool.settled()
        assert leaves(group) == []
    finally:
        await launcher.close()
    assert leaves(group) == []


@needs_groups
async def test_a_command_that_does_not_start_leaves_no_leaf(
    group: Path, grouped: LinuxSandboxLauncher, workspace: str
) -> None:
    try:
        with pytest.raises(LaunchFailed):
            await start(grouped, terms(workspace), ("/no/such/program",))
        assert leaves(group) == []
    finally:
        await grouped.close()


@needs_groups
async def test_a_group_that_vanishes_after_the_probe_is_a_failed_start(
    group: Path, grouped: LinuxSandboxLauncher, workspace: str
) -> None:
    try:
        assert (await shell(grouped, terms(workspace), "exit 3")).exit.command_code == 3
        os.rmdir(group)
        with pytest.raises(LaunchFailed) as failed:
            await start(grouped, terms(workspace), ("/bin/true",))
        assert (failed.value.stage, failed.value.errno) == ("limits", "ENOENT")
    finally:
        os.makedirs(group, exist_ok=True)
        await grouped.close()


@needs_groups
async def test_a_sandbox_that_started_outside_its_leaf_is_no_sandbox(
    grouped: LinuxSandboxLauncher, workspace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = cgroups.make_leaf

    def stray(subtree: Subtree, limits: Limits) -> cgroups.Leaf:
        leaf, above = made(subtree, limits), os.open(subtree.path, os.O_RDONLY)
        os.dup2(above, leaf.fd, inheritable=False)
        os.close(above)
        return leaf

    monkeypatch.setattr(cgroups, "make_leaf", stray)
    try:
        report = await grouped.report(terms(workspace))
        assert not report.available
        assert "outside its control group" in (report.protections[0].detail or "")
    finally:
        await grouped.close()


async def test_a_group_that_no_command_can_start_in_is_told_and_limits_by_process_hold(workspace: str) -> None:
    with tempfile.TemporaryDirectory() as plain:  # clone3 says EBADF: it is no control group
        launcher = LinuxSandboxLauncher(find_groups=lambda: Subtree(plain, frozenset()))
        try:
            ended = await shell(
                launcher, terms(workspace, limits={"processes": 20}), "grep processes /proc/self/limits"
            )
            assert ended.output.split()[2:4] == ["20", "20"]
            assert ended.isolation.limits["processes"] == "rlimit"
            found = {p.name: p for p in (await launcher.report(terms(workspace))).protections}
            assert (found["limit_attribution"].state, found["limit_attribution"].errno) == ("degraded", "EBADF")
            assert os.listdir(plain) == []
        finally:
            await launcher.close()


AS_USER = """
import asyncio, os, sys
from adapters.linux_sandbox import cgroups
from adapters.linux_sandbox.launcher import LinuxSandboxLauncher
from tests.adapters.linux_sandbox.support import finish, read_until, start, terms

async def main():
    launcher = LinuxSandboxLauncher(find_groups=lambda: cgroups.find(wanted=frozenset()))
    process = await start(launcher, terms(sys.argv[1]), ("/bin/sh", "-c", "echo on; read line"))
    await read_until(process, b"on")
    with open(f"/proc/{process.pid}/cgroup") as file:
        print(os.getuid(), file.read().splitlines()[-1])
    process.kill()
    await finish(process)
    await launcher.close()

asyncio.run(main())
"""


@needs_groups
def test_an_ordinary_user_starts_commands_in_leaves_of_the_group_that_it_was_given(
    group: Path, workspace: str, repository: Path
) -> None:
    for path in (group, *group.iterdir(), Path(workspace)):
        os.chown(path, 12345, 12345)
    join = f"echo $$ > {group}/cgroup.procs && exec setpriv --reuid 12345 --regid 12345 --clear-groups -- "
    done = subprocess.run(
        ["/bin/sh", "-c", join + '"$@"', "sh", sys.executable, "-c", AS_USER, workspace],
        cwd=repository, capture_output=True, text=True, timeout=15, check=True,
    )  # fmt: skip
    uid, where = done.stdout.split()
    assert uid == "12345"
    assert f"/{group.name}/command-" in where
    assert leaves(group) == []
