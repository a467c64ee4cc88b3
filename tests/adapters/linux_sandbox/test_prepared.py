"""Prepared sandboxes: used once, for their own plan, on what is there then; else a start goes from nothing."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from adapters.linux_sandbox import launcher as launcher_module
from adapters.linux_sandbox import pool, preparing, standing, waiting
from adapters.linux_sandbox.client import HelperClient
from adapters.linux_sandbox.launcher import LinuxSandboxLauncher
from adapters.linux_sandbox.preparing import prepare
from adapters.linux_sandbox.waiting import WaitingSandbox
from runner.api import WorkspaceTerms
from runner.ports import LaunchFailed, LaunchRequest, ManagedProcess
from sandbox_helper.protocol import MAX_FED_BYTES, STAGES, Standing
from tests.adapters.linux_sandbox.prepared import PreparedLauncher
from tests.adapters.linux_sandbox.support import BOUND_S, finish, read_until, run, shell, start, terms
from tests.leaks import children_of, holdings, left_over

PROTECT = (".git/hooks", ".git/config")
AFTER_PREPARE = STAGES[STAGES.index("session") :]
pytestmark = pytest.mark.covers("BOX-1", "BOX-7")


@pytest.fixture
async def launcher() -> AsyncIterator[PreparedLauncher]:
    made = PreparedLauncher(prepared=1)
    await made.start()
    yield made
    await made.close()


async def prime(
    launcher: PreparedLauncher, what: WorkspaceTerms, tty: tuple[int, int] | None = None
) -> WaitingSandbox | None:
    async with asyncio.timeout(BOUND_S):
        found = await launcher.primed(LaunchRequest("test", what, (), tty))
    return found[0] if found else None


async def launch(
    launcher: LinuxSandboxLauncher, what: WorkspaceTerms, script: str, tty: tuple[int, int] | None = None
) -> ManagedProcess:
    """Without a look at what waits, as the product does it."""
    request = LaunchRequest("test", what, ("/bin/sh", "-c", script), tty)
    async with asyncio.timeout(BOUND_S):
        return await LinuxSandboxLauncher.launch(launcher, request)


async def is_gone(sandbox: WaitingSandbox, launcher: PreparedLauncher) -> bool:
    async with asyncio.timeout(BOUND_S):
        await launcher.pool.settled()
    return not os.path.exists(f"/proc/{sandbox.started.pid}")  # noqa: ASYNC240 - not on a disk


@pytest.fixture
def repository(workspace: str) -> str:
    os.makedirs(f"{workspace}/.git/hooks")
    Path(workspace, ".git/config").write_text("[core]\n")
    return workspace


# --- use --------------------------------------------------------------------------------------------------------------
@pytest.mark.covers("BOX-2", "PROC-6")
@pytest.mark.parametrize("tty", [None, (40, 100)], ids=["pipes", "tty"])
async def test_a_command_runs_in_the_sandbox_that_waited_and_the_next_one_in_another(
    launcher: PreparedLauncher, repository: str, tty: tuple[int, int] | None
) -> None:
    what, seen = terms(repository, protect=PROTECT), set()
    for turn in range(3):
        sandbox = await prime(launcher, what, tty)
        assert sandbox is not None
        process = await launch(launcher, what, f"echo $$; stty size 2>&1; exit {turn}", tty)
        assert process.pid == sandbox.started.pid
        ended = await finish(process)
        assert ended.exit.command_code == turn
        assert ended.output.splitlines()[0] == "2", "the command is the second process, as from nothing"
        assert (tty is None) or "40 100" in ended.output
        seen.add(process.pid)
    assert len(seen) == 3


async def test_a_prepared_sandbox_looks_like_one_from_nothing_to_its_command(
    launcher: PreparedLauncher, repository: str
) -> None:
    script = (
        "grep -vE 'ctxt|^Vm|^Rss|_allowed|^Speculation' /proc/self/status; ulimit -a; umask; env; id; hostname;"
        "sed 's/^[0-9]* [0-9]* [^ ]* //' /proc/self/mountinfo; ls -la /proc/self/fd | wc -l; ls /proc; pwd;"
        "cat /etc/passwd; stat -c '%a %U %s %n' ~ /tmp /dev/shm /dev/*; cut -d' ' -f1 /proc/net/dev; kill -l"
    )
    what = terms(repository, protect=PROTECT, env={"A": "b"})
    plain = LinuxSandboxLauncher()
    try:
        nothing = await shell(plain, what, script)
    finally:
        await plain.close()
    assert await prime(launcher, what) is not None
    prepared = await finish(await launch(launcher, what, script))
    assert prepared.output == nothing.output
    assert len(prepared.output.splitlines()) > 100
    assert prepared.isolation == nothing.isolation


async def test_a_command_that_is_too_long_to_be_handed_over_runs_from_nothing(
    launcher: PreparedLauncher, workspace: str
) -> None:
    what = terms(workspace)
    sandbox = await prime(launcher, what)
    assert sandbox is not None
    process = await launch(launcher, what, f"echo {'x' * MAX_FED_BYTES} | wc -c")
    assert process.pid != sandbox.started.pid
    assert (await finish(process)).output == f"{MAX_FED_BYTES + 1}\n"
    assert await is_gone(sandbox, launcher)


async def test_arguments_arrive_byte_for_byte(launcher: PreparedLauncher, workspace: str) -> None:
    odd = ["", " ", "a\nb", "ü", "\udcff", "x" * (MAX_FED_BYTES // 2)]
    script = "import os,sys; os.write(1, b'\\0'.join(os.fsencode(a) for a in sys.argv[1:]))"
    ended = await run(launcher, terms(workspace), "/usr/bin/python3", "-c", script, *odd)
    assert launcher.used == 1
    assert ended.output == b"\0".join(os.fsencode(argument) for argument in odd).decode(errors="replace")


# --- another plan -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "change",
    [
        {"env": {"NEW": "1"}},
        {"protect": ()},
        {"limits": {"processes": 7}},
        {"limits": {"timeout_s": 7}},
        {"mounts_read_only": ("/opt",)},
        {"network_deny": ("a.example",)},
    ],
    ids=str,
)
async def test_what_waits_for_other_terms_is_ended_and_not_used(
    launcher: PreparedLauncher, repository: str, change: dict[str, object]
) -> None:
    what = {"protect": PROTECT}
    sandbox = await prime(launcher, terms(repository, **what))
    assert sandbox is not None
    process = await launch(launcher, terms(repository, **{**what, **change}), "echo $NEW; exit 3")
    assert process.pid != sandbox.started.pid
    assert (await finish(process)).exit.command_code == 3
    assert await is_gone(sandbox, launcher)


async def test_equal_terms_in_another_object_find_what_waits(launcher: PreparedLauncher, workspace: str) -> None:
    sandbox = await prime(launcher, terms(workspace))
    assert sandbox is not None
    process = await launch(launcher, terms(workspace), "true")
    assert process.pid == sandbox.started.pid
    await finish(process)


# --- another workspace, at the moment of use --------------------------------------------------------------------------
def replace_root(root: str) -> None:
    os.rename(root, f"{root}.old")
    os.mkdir(root)
    Path(root, "new").touch()


def same_by_a_link(root: str) -> None:
    os.rename(root, f"{root}.old")
    os.symlink(f"{root}.old", root)


async def test_a_root_that_was_replaced_is_the_new_one(launcher: PreparedLauncher, workspace: str) -> None:
    what = terms(workspace)
    sandbox = await prime(launcher, what)
    assert sandbox is not None
    await asyncio.to_thread(replace_root, workspace)
    try:
        process = await launch(launcher, what, "ls")
        assert (process.pid != sandbox.started.pid, (await finish(process)).output) == (True, "new\n")
        assert await is_gone(sandbox, launcher)
    finally:
        await asyncio.to_thread(shutil.rmtree, f"{workspace}.old")


async def test_a_root_behind_a_link_is_refused_as_from_nothing(launcher: PreparedLauncher, workspace: str) -> None:
    what = terms(workspace)
    sandbox = await prime(launcher, what)
    assert sandbox is not None
    await asyncio.to_thread(same_by_a_link, workspace)
    try:
        with pytest.raises(LaunchFailed) as failure:
            await launch(launcher, what, "touch ran")
        assert (failure.value.stage, failure.value.errno) == ("mounts", "ELOOP")
        assert await asyncio.to_thread(os.listdir, f"{workspace}.old") == []
        assert await is_gone(sandbox, launcher)
    finally:
        os.unlink(workspace)
        os.rename(f"{workspace}.old", workspace)


async def test_a_root_that_lets_nobody_in_is_refused_as_from_nothing(
    launcher: PreparedLauncher, workspace: str
) -> None:
    what = terms(workspace)
    assert await prime(launcher, what) is not None
    os.chmod(workspace, 0o000)
    try:
        with pytest.raises(LaunchFailed) as failure:
            await launch(launcher, what, "true")
        assert (failure.value.stage, failure.value.errno) == ("chdir", "EACCES")
    finally:
        os.chmod(workspace, 0o700)


def recreate(path: str) -> None:
    """At once, so that a file system may give the same inode again."""
    if os.path.isdir(path):
        shutil.rmtree(path)
        os.mkdir(path)
    else:
        os.unlink(path)
        Path(path).touch()


def by_another_name(path: str) -> None:
    """The same inode, once more the only name: but the name that was covered is gone."""
    os.link(path, f"{path}.x")
    os.unlink(path)
    os.rename(f"{path}.x", path)


def by_renaming(path: str) -> None:
    os.rename(path, f"{path}.x")
    shutil.copytree(f"{path}.x", path) if os.path.isdir(f"{path}.x") else shutil.copy(f"{path}.x", path)


def whole_repository(git: str) -> None:
    shutil.rmtree(git)
    os.makedirs(f"{git}/hooks")
    Path(git, "config").touch()


def exchange(git: str) -> None:
    for old, new in (("config", "x"), ("hooks", "config"), ("x", "hooks")):
        os.rename(f"{git}/{old}", f"{git}/{new}")


def link_at_a_name(git: str) -> None:
    shutil.rmtree(f"{git}/hooks")
    os.symlink("/tmp", f"{git}/hooks")


def link_on_the_way(git: str) -> None:
    os.rename(git, f"{git}.x")
    os.symlink(".git.x", git)


def fifo(git: str) -> None:
    os.unlink(f"{git}/config")
    os.mkfifo(f"{git}/config")


def hard_link(git: str) -> None:
    os.link(f"{git}/config", f"{git}/other")


CHANGES: dict[str, tuple[str, Callable[[str], object]]] = {
    "hooks removed": (".git/hooks", shutil.rmtree),
    "hooks recreated": (".git/hooks", recreate),
    "hooks renamed and copied": (".git/hooks", by_renaming),
    "config removed": (".git/config", os.unlink),
    "config recreated": (".git/config", recreate),
    "config renamed and copied": (".git/config", by_renaming),
    "config by another name": (".git/config", by_another_name),
    "repository recreated": (".git", whole_repository),
    "repository renamed and copied": (".git", by_renaming),
    "names exchanged": (".git", exchange),
}
WRITES = (
    "for f in .git/hooks/post-commit .git/hooks .git/config .git/config/x; do"
    " { echo evil > $f; } 2>/dev/null && echo written $f; done; mv .git aside 2>/dev/null && echo moved; true"
)


@pytest.mark.parametrize("name", CHANGES)
async def test_a_protected_name_that_was_replaced_is_covered_anew(
    launcher: PreparedLauncher, repository: str, name: str
) -> None:
    what = terms(repository, protect=PROTECT)
    sandbox = await prime(launcher, what)
    assert sandbox is not None
    place, change = CHANGES[name]
    await asyncio.to_thread(change, f"{repository}/{place}")
    process = await launch(launcher, what, WRITES)
    assert process.pid != sandbox.started.pid
    assert (await finish(process)).output == ""
    assert await is_gone(sandbox, launcher)
    # The control: without protection the same writes arrive.
    assert "moved" in (await shell(launcher, terms(repository), WRITES)).output


async def test_a_repository_that_appeared_is_covered(launcher: PreparedLauncher, workspace: str) -> None:
    what = terms(workspace, protect=(*PROTECT, "sub/.git/config"))
    sandbox = await prime(launcher, what)
    assert sandbox is not None, "where no parent is, nothing is needed"
    os.makedirs(f"{workspace}/sub/.git")
    Path(workspace, "sub/.git/config").write_text("mine")  # noqa: ASYNC240 - a small file
    process = await launch(launcher, what, "{ echo x > sub/.git/config; } 2>/dev/null || cat sub/.git/config")
    assert process.pid != sandbox.started.pid
    assert (await finish(process)).output == "mine"
    assert await is_gone(sandbox, launcher)


@pytest.mark.parametrize(
    ("plant", "errno"),
    [
        (link_at_a_name, "ELOOP"),
        (link_on_the_way, "ELOOP"),
        (fifo, "ENOTSUP"),
        (hard_link, "EMLINK"),
    ],
)
async def test_what_cannot_be_covered_stops_the_start_as_from_nothing(
    launcher: PreparedLauncher, repository: str, plant: Callable[[str], object], errno: str
) -> None:
    what = terms(repository, protect=PROTECT)
    sandbox = await prime(launcher, what)
    assert sandbox is not None
    await asyncio.to_thread(plant, f"{repository}/.git")
    with pytest.raises(LaunchFailed) as failure:
        await launch(launcher, what, "touch ran")
    assert (failure.value.stage, failure.value.errno.replace("EOPNOTSUPP", "ENOTSUP")) == ("protect", errno)
    assert not os.path.exists(f"{repository}/ran")  # noqa: ASYNC240 - a small directory
    assert await is_gone(sandbox, launcher)


async def test_what_changes_in_a_workspace_otherwise_is_seen_through_the_sandbox_that_waited(
    launcher: PreparedLauncher, repository: str
) -> None:
    what = terms(repository, protect=PROTECT)
    sandbox = await prime(launcher, what)
    assert sandbox is not None
    Path(repository, ".git/config").write_text("[user]\n")  # noqa: ASYNC240 - a small file
    Path(repository, ".git/hooks/mine").touch()  # noqa: ASYNC240 - a small file
    os.makedirs(f"{repository}/a/b")
    process = await launch(launcher, what, "cat .git/config; ls .git/hooks; ls")
    assert process.pid == sandbox.started.pid
    assert (await finish(process)).output == "[user]\nmine\na\n"


@pytest.mark.parametrize("below", [True, False], ids=["in the workspace", "beside it"])
async def test_a_read_only_directory_that_was_replaced_is_the_new_one_and_read_only(
    launcher: PreparedLauncher, workspace: str, below: bool
) -> None:
    own, shown = f"{workspace}/own", f"{workspace}/own/shown" if below else f"{workspace}/shown"
    os.makedirs(own)
    os.makedirs(shown)
    what = terms(own, mounts_read_only=(shown,))
    sandbox = await prime(launcher, what)
    assert sandbox is not None
    await asyncio.to_thread(shutil.rmtree, shown)
    os.mkdir(shown)
    Path(shown, "new").touch()  # noqa: ASYNC240 - a small directory
    process = await launch(launcher, what, f"ls {shown}; {{ echo x > {shown}/new; }} 2>/dev/null && echo written")
    assert process.pid != sandbox.started.pid
    assert (await finish(process)).output == "new\n"


@pytest.fixture
def elsewhere() -> Iterator[str]:
    """A workspace that is not below /tmp, so that mounts in it are part of the laid-out tree."""
    root = os.path.realpath(tempfile.mkdtemp(prefix="codespace-test-", dir="/var/tmp"))
    yield root
    shutil.rmtree(root)


@pytest.mark.parametrize("prepared", [False, True], ids=["from nothing", "prepared"])
async def test_a_read_only_directory_in_a_workspace_that_was_made_again_is_read_only_again(
    launcher: PreparedLauncher, elsewhere: str, prepared: bool
) -> None:
    shown = f"{elsewhere}/shown"
    os.mkdir(shown)
    what = terms(elsewhere, mounts_read_only=(shown,))
    writes = "{ echo x > shown/x; } 2>/dev/null && echo written; ls shown"
    assert (await finish(await launch(launcher, what, writes))).output == ""
    for _ in range(10):  # a file system may give the same inode again, as ext4 mostly does
        sandbox = await prime(launcher, what) if prepared else None
        await asyncio.to_thread(recreate, shown)
        process = await launch(launcher, what, writes)
        assert sandbox is None or process.pid != sandbox.started.pid
        assert (await finish(process)).output == ""


async def test_no_sandbox_waits_where_it_would_leave_a_placeholder(launcher: PreparedLauncher, workspace: str) -> None:
    os.mkdir(f"{workspace}/.git")
    what = terms(workspace, protect=PROTECT)
    for _ in range(3):
        assert await prime(launcher, what) is None
        assert await asyncio.to_thread(os.listdir, f"{workspace}/.git") == []
    running = await launch(launcher, what, "echo up; read x")
    await read_until(running, b"up\n")
    assert await prime(launcher, what) is None, "the placeholder of a running command is none to rely on"
    running.close_stdin()
    await finish(running)
    assert await asyncio.to_thread(os.listdir, f"{workspace}/.git") == []
    assert launcher.used == 0


# --- ends -------------------------------------------------------------------------------------------------------------
@pytest.mark.covers("PROC-8")
async def test_a_waiting_sandbox_that_is_killed_is_noticed_and_never_handed_out(
    launcher: PreparedLauncher, repository: str
) -> None:
    what = terms(repository, protect=PROTECT)
    for _ in range(5):
        sandbox = await prime(launcher, what)
        assert sandbox is not None
        os.kill(sandbox.started.pid, signal.SIGKILL)
        process = await launch(launcher, what, "exit 5")
        assert process.pid != sandbox.started.pid
        assert (await finish(process)).exit.command_code == 5
        assert await is_gone(sandbox, launcher)


@pytest.mark.covers("PROC-8")
async def test_a_sandbox_that_dies_after_it_was_taken_costs_nothing_but_the_start_from_nothing(
    launcher: PreparedLauncher, workspace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    what = terms(workspace)
    sandbox = await prime(launcher, what)
    assert sandbox is not None

    def die(_: object) -> None:
        os.kill(sandbox.started.pid, signal.SIGKILL)

    monkeypatch.setattr(waiting, "difference", die)
    process = await launch(launcher, what, "echo once >> log; cat log")
    assert process.pid != sandbox.started.pid
    assert (await finish(process)).output == "once\n"
    assert await is_gone(sandbox, launcher)


@pytest.mark.covers("PROC-8")
async def test_a_sandbox_that_was_stopped_is_given_up_and_the_command_runs_once(
    launcher: PreparedLauncher, workspace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    what = terms(workspace)
    sandbox = await prime(launcher, what)
    assert sandbox is not None
    os.kill(sandbox.started.pid, signal.SIGSTOP)
    monkeypatch.setattr(waiting, "USE_TIMEOUT_S", 0.1)
    process = await launch(launcher, what, "echo once >> log; cat log")
    assert process.pid != sandbox.started.pid
    assert (await finish(process)).output == "once\n"
    assert await is_gone(sandbox, launcher)


@pytest.mark.covers("BOX-5", "PROC-8")
@pytest.mark.parametrize("tty", [None, (24, 80)], ids=["pipes", "tty"])
@pytest.mark.parametrize("stage", AFTER_PREPARE)
async def test_a_stage_that_fails_in_a_waiting_sandbox_is_named_and_nothing_runs(
    workspace: str, stage: str, tty: tuple[int, int] | None
) -> None:
    launcher = PreparedLauncher(helper_options=("--fault", stage))
    try:
        sandbox = await prime(launcher, terms(workspace), tty)
        assert sandbox is not None
        with pytest.raises(LaunchFailed) as failure:
            await launch(launcher, terms(workspace), "touch ran", tty)
        assert (failure.value.stage, failure.value.errno) == (stage, "EIO")
        assert await asyncio.to_thread(os.listdir, workspace) == []
    finally:
        await launcher.close()


@pytest.mark.parametrize("stage", [stage for stage in STAGES[1:] if stage not in AFTER_PREPARE])
async def test_a_stage_that_fails_in_the_making_leaves_no_sandbox(workspace: str, stage: str) -> None:
    before = holdings()
    launcher = PreparedLauncher(helper_options=("--fault", stage))
    try:
        assert await prime(launcher, terms(workspace)) is None
        assert len(children_of(os.getpid()).keys() - before.children.keys()) == 1, "the helper"
    finally:
        await launcher.close()
    assert left_over(before, holdings()) == []


class IdleProxy:
    """Takes every command's listeners and serves none."""

    async def serve(self, *_: object) -> None: ...

    async def close(self) -> None: ...


async def test_listeners_without_room_for_their_descriptors_leave_no_sandbox_and_cost_nobody_the_helper(
    workspace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_fd: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    launcher = PreparedLauncher(proxy=IdleProxy())
    what = terms(workspace, network="enabled", network_allow=("allowed.test:443",))
    try:
        await launcher.start()
        assert (await shell(launcher, what, "exit 3")).exit.command_code == 3
        assert launcher.used == 1
        await launcher.pool.settled()
        launcher.pool.discard(lambda _: True)
        await launcher.pool.settled()
        before, helper = holdings(), launcher._helpers["sandbox"]
        monkeypatch.setattr(preparing, "os", SimpleNamespace(dup=full, close=os.close))
        assert await prime(launcher, what) is None
        monkeypatch.undo()
        assert left_over(before, holdings()) == []
        assert not helper.gone.is_set()
    finally:
        await launcher.close()


@pytest.mark.covers("BOX-2")
async def test_a_helper_that_is_killed_takes_what_waits_along(launcher: PreparedLauncher, workspace: str) -> None:
    what = terms(workspace)
    for _ in range(3):
        sandbox = await prime(launcher, what)
        assert sandbox is not None
        os.kill(launcher._helpers["sandbox"].pid, signal.SIGKILL)
        async with asyncio.timeout(BOUND_S):
            await launcher._helpers["sandbox"].gone.wait()
        assert await is_gone(sandbox, launcher)
        assert (await shell(launcher, what, "exit 4")).exit.command_code == 4


async def test_a_helper_that_is_killed_while_it_prepares_leaves_nothing(
    launcher: PreparedLauncher, workspace: str
) -> None:
    what = terms(workspace)
    before = set(children_of(os.getpid())) - {launcher._helpers["sandbox"].pid}
    await shell(launcher, what, "true")
    for _ in range(3):
        await launcher.pool.settled()
        helper = launcher._helpers["sandbox"]
        os.kill(helper.pid, signal.SIGSTOP)
        launcher.pool.discard(lambda _: True)
        priming = asyncio.create_task(prime(launcher, what))
        while not helper._pending:  # noqa: ASYNC110 - the client has no event for a request under way
            await asyncio.sleep(0)
        os.kill(helper.pid, signal.SIGKILL)
        assert await priming is None
        assert (await finish(await launch(launcher, what, "exit 4"))).exit.command_code == 4
    await launcher.pool.settled()
    launcher.pool.discard(lambda _: True)
    await launcher.pool.settled()
    assert set(children_of(os.getpid())) == before | {launcher._helpers["sandbox"].pid}


@pytest.mark.timeout(120)
async def test_closing_leaves_nothing_whatever_is_under_way(workspace: str) -> None:
    before = holdings()
    for turns in range(5):
        launcher = PreparedLauncher()
        await finish(await launch(launcher, terms(workspace), "true"))
        for _ in range(turns * 30):
            await asyncio.sleep(0)
        async with asyncio.timeout(BOUND_S):
            await launcher.close()
        assert launcher.pool.waiting == 0
        assert left_over(before, holdings()) == []


@pytest.mark.timeout(120)
async def test_a_hundred_commands_leave_no_more_than_what_waits(launcher: PreparedLauncher, repository: str) -> None:
    what = terms(repository, protect=PROTECT)
    await launcher.start()
    before = holdings()
    for _ in range(100):
        assert (await shell(launcher, what, "sleep 100 & exit 3")).exit.command_code == 3
    assert launcher.used == 100
    await launcher.pool.settled()
    launcher.pool.discard(lambda _: True)
    await launcher.pool.settled()
    assert left_over(before, holdings()) == []
    assert sorted(os.listdir(f"{repository}/.git")) == ["config", "hooks"]


# --- how many ---------------------------------------------------------------------------------------------------------
async def test_no_more_wait_than_the_operator_allows_and_the_last_used_go_on(workspace: str) -> None:
    launcher = PreparedLauncher(prepared=2)
    try:
        roots = [f"{workspace}/{name}" for name in "abc"]
        for root in roots:
            os.mkdir(root)
            await finish(await launch(launcher, terms(root), "true"))
            await launcher.pool.settled()
        assert launcher.pool.waiting == 2
        assert await prime(launcher, terms(roots[2])) is None, "there is no room, and nobody gives way yet"
    finally:
        await launcher.close()


async def test_a_plan_gives_way_to_one_that_is_in_use(workspace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "YIELD_S", 0.0)
    launcher = PreparedLauncher(prepared=1)
    try:
        old, new = f"{workspace}/old", f"{workspace}/new"
        os.mkdir(old)
        os.mkdir(new)
        sandbox = await prime(launcher, terms(old))
        assert sandbox is not None
        assert await prime(launcher, terms(new)) is not None
        assert await is_gone(sandbox, launcher)
        assert launcher.pool.waiting == 1
    finally:
        await launcher.close()


@pytest.mark.covers("POL-5")
async def test_what_waits_is_ended_when_a_registry_was_taken_into_force(
    launcher: PreparedLauncher, repository: str, workspace: str
) -> None:
    sandbox = await prime(launcher, terms(repository, protect=PROTECT))
    assert sandbox is not None
    assert await launcher.tidy(f"{workspace}/another", PROTECT) == ()
    assert await is_gone(sandbox, launcher)


@pytest.mark.covers("POL-5")
@pytest.mark.parametrize("event", ["a registry", "a lost helper"])
async def test_what_is_being_made_meanwhile_does_not_wait_either(
    launcher: PreparedLauncher, workspace: str, monkeypatch: pytest.MonkeyPatch, event: str
) -> None:
    made: list[WaitingSandbox] = []

    async def make_and_then(helper: HelperClient, *more: Any) -> WaitingSandbox | None:
        sandbox = await prepare(helper, *more)
        assert sandbox is not None
        made.append(sandbox)
        if event == "a registry":
            await launcher.tidy(f"{workspace}/another", PROTECT)
        else:
            signal.pidfd_send_signal(helper_fd, signal.SIGKILL)
            async with asyncio.timeout(BOUND_S):
                await helper.gone.wait()
        return sandbox

    helper_fd = os.pidfd_open(launcher._helpers["sandbox"].pid)
    try:
        monkeypatch.setattr(launcher_module, "prepare", make_and_then)
        assert await prime(launcher, terms(workspace)) is None
    finally:
        os.close(helper_fd)
    (sandbox,) = made
    assert await is_gone(sandbox, launcher)
    monkeypatch.setattr(launcher_module, "prepare", prepare)
    assert await prime(launcher, terms(workspace)) is not None, "the next use makes one again"


async def test_the_mounts_of_a_command_that_outlived_its_plan_are_taken_apart(
    launcher: PreparedLauncher, workspace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mounts_held() -> int:
        return sum(place.startswith("mnt:") for place in holdings().descriptors.values())

    assert await prime(launcher, terms(workspace)) is not None
    process = await launch(launcher, terms(workspace), "cat")
    await launcher.pool.settled()
    monkeypatch.setattr(pool, "IDLE_S", 0.0)
    launcher.pool.expire()
    await launcher.pool.settled()
    assert mounts_held() == 1, "the command's"
    process.close_stdin()
    await finish(process)
    await launcher.pool.settled()
    assert mounts_held() == 0


async def test_what_nobody_uses_for_long_is_ended(
    launcher: PreparedLauncher, workspace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = await prime(launcher, terms(workspace))
    assert sandbox is not None
    launcher.pool.expire()
    assert launcher.pool.waiting == 1, "not yet"
    monkeypatch.setattr(pool, "IDLE_S", 0.0)
    launcher.pool.expire()
    assert await is_gone(sandbox, launcher)
    assert launcher.pool.waiting == 0


@pytest.mark.covers("BOX-4")
async def test_nothing_waits_without_a_pool_or_without_a_sandbox(workspace: str) -> None:
    for bound, sandbox in ((0, "required"), (2, "off")):
        launcher = PreparedLauncher(prepared=bound)
        try:
            assert await prime(launcher, terms(workspace, sandbox=sandbox)) is None
            assert (await shell(launcher, terms(workspace, sandbox=sandbox), "exit 3")).exit.command_code == 3
            assert launcher.pool.waiting == 0
        finally:
            await launcher.close()


# --- what it costs ----------------------------------------------------------------------------------------------------
def private_kb(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(("Private_Clean", "Private_Dirty")))


@pytest.mark.skipif(os.geteuid() != 0, reason="nobody else may look at it")
async def test_a_waiting_sandbox_adds_less_than_three_megabytes(launcher: PreparedLauncher, repository: str) -> None:
    sandbox = await prime(launcher, terms(repository, protect=PROTECT))
    assert sandbox is not None
    assert 0 < await asyncio.to_thread(private_kb, sandbox.started.pid) <= 3 * 1024


async def test_an_interpreter_that_is_missing_is_told_apart_in_a_sandbox_that_waited(
    launcher: PreparedLauncher, workspace: str
) -> None:
    script = Path(workspace, "script")
    script.write_text("#!/no/such/interpreter\n")  # noqa: ASYNC240 - a small file
    script.chmod(0o755)  # noqa: ASYNC240 - a small file
    for argv, said in ((("./script",), "first line"), (("nowhere",), "No such file")):
        assert await prime(launcher, terms(workspace)) is not None
        with pytest.raises(LaunchFailed) as failure:
            await start(launcher, terms(workspace), argv)
        assert (failure.value.stage, failure.value.errno) == ("exec", "ENOENT")
        assert said in failure.value.message


def test_the_look_from_outside_names_what_differs(workspace: str) -> None:
    def stamp(path: str, workspace: bool) -> tuple[int, int, int, int]:
        found = os.stat(path)
        rest = (found.st_uid, found.st_gid) if workspace else (found.st_size, found.st_mtime_ns)
        return found.st_dev, found.st_ino, *rest

    file = f"{workspace}/file"
    Path(file).write_text("one")
    places = (Standing(workspace, stamp(workspace, True)), Standing(file, stamp(file, False)))
    assert standing.difference(places) is None
    Path(file).write_text("three")
    assert standing.difference(places) == file
    os.unlink(file)
    assert standing.difference(places) == file
    assert standing.difference((Standing(workspace, (0, 0, 0, 0)),)) == workspace
    assert standing.difference((Standing(f"{workspace}/gone", (0, 0, 0, 0)),)) == f"{workspace}/gone"
