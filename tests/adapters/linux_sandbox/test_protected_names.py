"""Protected names hold against commands, git still works, and nothing of the covers stays in the real workspace."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from adapters.linux_sandbox.cover_watch import CoverWatch
from adapters.linux_sandbox.launcher import LinuxSandboxLauncher
from runner.ports import LaunchFailed
from sandbox_helper.protocol import PLACEHOLDER_MTIME_S
from tests.adapters.linux_sandbox.support import finish, read_until, shell, start, terms

PROTECT = (".git/hooks", ".git/config")
GIT = "git -c user.name=a -c user.email=a@example.org -c init.defaultBranch=main"
pytestmark = pytest.mark.covers("BOX-7")
BOTH_WAYS = True


async def prepare(launcher: LinuxSandboxLauncher, workspace: str) -> None:
    """A repository as a first command makes it."""
    ended = await shell(launcher, terms(workspace, protect=PROTECT), f"{GIT} init -q && echo 1 > f && ls .git/config")
    assert ended.exit.command_code == 0, ended.output


async def test_a_first_git_init_works_and_everyday_git_after_it(launcher: LinuxSandboxLauncher, workspace: str) -> None:
    await prepare(launcher, workspace)
    what = terms(workspace, protect=PROTECT)
    for script in (
        f"{GIT} add f && {GIT} commit -q -m one",
        f"{GIT} switch -q -c topic && echo 2 > f && {GIT} commit -q -a -m two",
        f"{GIT} switch -q main && {GIT} merge -q topic",
        f"echo 3 > f && {GIT} stash -q && {GIT} stash pop -q && {GIT} checkout -q f",
        f"{GIT} worktree add -q ../$(basename $PWD)/tree topic && {GIT} log --oneline | wc -l",
        f"{GIT} gc -q && {GIT} status --porcelain",
    ):
        ended = await shell(launcher, what, script)
        assert ended.exit.command_code == 0, f"{script}: {ended.output}"


@pytest.mark.parametrize(
    "attack",
    [
        "echo x > .git/hooks/post-commit",
        "git config core.fsmonitor ./x",
        "rm -rf .git/hooks",
        "mv .git/hooks aside",
        "mv .git aside",
        "rmdir .git/hooks; ln -s ../evil .git/hooks",
        "rm -f .git/config",
        "mv f .git/config",
        "ln -f f .git/config",
        "chmod 777 .git/config",
        "git init -q --template=. ; echo x > .git/config",
    ],
)
async def test_an_attack_on_a_protected_name_fails_and_changes_nothing(
    launcher: LinuxSandboxLauncher, workspace: str, attack: str
) -> None:
    await prepare(launcher, workspace)
    config = Path(workspace, ".git/config")
    before = await asyncio.to_thread(config.read_bytes)
    hooks = await asyncio.to_thread(os.listdir, f"{workspace}/.git/hooks")
    ended = await shell(launcher, terms(workspace, protect=PROTECT), attack)
    assert ended.exit.command_code != 0, ended.output
    assert await asyncio.to_thread(config.read_bytes) == before
    assert await asyncio.to_thread(os.listdir, f"{workspace}/.git/hooks") == hooks


async def test_the_same_attacks_work_on_names_that_nobody_protects(
    launcher: LinuxSandboxLauncher, workspace: str
) -> None:
    await prepare(launcher, workspace)
    ended = await shell(
        launcher, terms(workspace), "echo x > .git/hooks/post-commit && mv .git aside && ls aside/hooks/post-commit"
    )
    assert ended.exit.command_code == 0, ended.output


async def test_an_absent_name_cannot_be_made_and_leaves_no_trace(
    launcher: LinuxSandboxLauncher, workspace: str
) -> None:
    await asyncio.to_thread(os.makedirs, f"{workspace}/.git")
    what = terms(workspace, protect=(".git/hooks", ".git/config", ".codex", "no/parent"))
    process = await start(launcher, what, ("/bin/sh", "-c", "echo up; read x; mkdir .codex || echo x > .git/config"))
    await read_until(process, b"up\n")
    assert sorted(await asyncio.to_thread(os.listdir, f"{workspace}/.git")) == ["config", "hooks"]
    process.close_stdin()
    ended = await finish(process)
    assert ended.exit.command_code != 0
    assert await asyncio.to_thread(os.listdir, f"{workspace}/.git") == []
    assert await asyncio.to_thread(os.listdir, workspace) == [".git"]


async def test_placeholders_stay_while_another_command_of_the_root_runs(
    launcher: LinuxSandboxLauncher, workspace: str
) -> None:
    what = terms(workspace, protect=(".codex",))
    process = await start(launcher, what, ("/bin/sh", "-c", "echo up; read x; mkdir .codex"))
    await read_until(process, b"up\n")
    await shell(launcher, what, "true")
    assert await asyncio.to_thread(os.listdir, workspace) == [".codex"]
    process.close_stdin()
    assert (await finish(process)).exit.command_code != 0
    assert await asyncio.to_thread(os.listdir, workspace) == []


async def test_a_placeholder_of_a_crash_is_taken_over_and_removed(workspace: str) -> None:
    what = terms(workspace, protect=(".codex",))
    crashed = LinuxSandboxLauncher()
    process = await start(crashed, what, ("/bin/cat",))
    # As a crash would: the placeholder stays, because nobody waits any more.
    os.link(f"{workspace}/.codex", f"{workspace}/kept")
    process.kill()
    await finish(process)
    assert sorted(os.listdir(workspace)) == [".codex", "kept"], "with a second name it is no placeholder"
    os.unlink(f"{workspace}/kept")
    await crashed.close()
    launcher = LinuxSandboxLauncher()
    assert (await shell(launcher, what, "echo x > .codex")).exit.command_code != 0
    assert os.listdir(workspace) == []
    await launcher.close()


async def test_an_empty_file_of_the_users_own_is_not_taken_for_a_placeholder(
    launcher: LinuxSandboxLauncher, workspace: str
) -> None:
    own = Path(workspace, ".codex")
    await asyncio.to_thread(own.touch, 0)
    await shell(launcher, terms(workspace, protect=(".codex", ".other")), "true")
    assert await asyncio.to_thread(os.listdir, workspace) == [".codex"]


@pytest.mark.parametrize(
    "plant",
    [
        "ln -s ../outside .git/hooks",
        "ln -s elsewhere .git/config",
        "rmdir .git; ln -s other .git",
        "ln -s / .git/hooks",
    ],
)
async def test_a_link_planted_at_a_protected_name_stops_the_next_start(
    launcher: LinuxSandboxLauncher, workspace: str, plant: str
) -> None:
    await shell(launcher, terms(workspace), f"mkdir .git other; {plant}")
    with pytest.raises(LaunchFailed) as failure:
        await start(launcher, terms(workspace, protect=PROTECT), ("/bin/sh", "-c", "touch ran"))
    assert (failure.value.stage, failure.value.errno) == ("protect", "ELOOP")
    assert failure.value.path in PROTECT
    assert failure.value.remedy
    assert "ran" not in await asyncio.to_thread(os.listdir, workspace)


@pytest.mark.covers("BOX-7", "PROC-8")
@pytest.mark.parametrize("planted", ["a", "b", "d/c"])
@pytest.mark.parametrize("how", ["ln -s /tmp {}", "mkfifo {}"])
async def test_a_start_that_fails_at_one_name_leaves_no_placeholder_of_the_others(
    launcher: LinuxSandboxLauncher, workspace: str, planted: str, how: str
) -> None:
    names = ("a", "b", "d/c")
    await shell(launcher, terms(workspace), f"mkdir d; {how.format(planted)}")
    with pytest.raises(LaunchFailed) as failure:
        await start(launcher, terms(workspace, protect=names), ("/bin/true",))
    assert failure.value.stage == "protect"
    there = [name for name in names if os.path.lexists(f"{workspace}/{name}")]  # noqa: ASYNC240
    assert there == [planted]


@pytest.mark.parametrize(
    ("plant", "errno"),
    [
        ("mkfifo .git/config", "ENOTSUP"),
        ("/usr/bin/python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\".git/config\")'", "ENOTSUP"),
        ("echo > .git/config && ln .git/config other", "EMLINK"),
    ],
    ids=["fifo", "socket", "hard link"],
)
async def test_what_a_read_only_mount_does_not_protect_stops_the_next_start(
    launcher: LinuxSandboxLauncher, workspace: str, plant: str, errno: str
) -> None:
    planted = await shell(launcher, terms(workspace, protect=PROTECT), f"mkdir .git && {plant}")
    assert planted.exit.command_code == 0, planted.output
    with pytest.raises(LaunchFailed) as failed:
        await start(launcher, terms(workspace, protect=PROTECT), ("/bin/true",))
    error = failed.value
    assert (error.stage, (error.errno or "").replace("EOPNOTSUPP", "ENOTSUP"), error.path) == (
        "protect",
        errno,
        ".git/config",
    )
    assert "cp NAME" in (error.remedy or "")
    # The control: without protection the command runs, and can write there.
    assert (await shell(launcher, terms(workspace), "rm .git/config")).exit.command_code == 0
    assert (await shell(launcher, terms(workspace, protect=PROTECT), "true")).exit.command_code == 0


async def test_a_file_where_an_ancestor_should_be_leaves_the_name_alone(
    launcher: LinuxSandboxLauncher, workspace: str
) -> None:
    await asyncio.to_thread(Path(workspace, ".git").write_text, "gitdir: elsewhere\n")
    assert (await shell(launcher, terms(workspace, protect=PROTECT), "cat .git")).output == "gitdir: elsewhere\n"


@pytest.mark.parametrize("replaced", [".git/config", ".git/hooks", ".git"])
async def test_a_name_that_is_replaced_from_outside_ends_the_command_and_says_why(
    launcher: LinuxSandboxLauncher, workspace: str, replaced: str
) -> None:
    await prepare(launcher, workspace)
    process = await start(launcher, terms(workspace, protect=PROTECT), ("/bin/sh", "-c", "echo up; read x"))
    await read_until(process, b"up\n")
    await asyncio.to_thread(os.rename, f"{workspace}/{replaced}", f"{workspace}/aside")
    await asyncio.to_thread(Path(workspace, replaced).touch)
    ended = (await finish(process)).exit
    assert ended.signal == 9
    assert ended.note is not None
    assert replaced in ended.note


def by_its_second_name(name: str) -> None:
    os.link(name, f"{name}.second")
    os.unlink(name)
    os.rename(f"{name}.second", name)


def there_and_back(name: str) -> None:
    os.rename(name, f"{name}.aside")
    os.rename(f"{name}.aside", name)


@pytest.mark.parametrize(
    ("name", "replace"), [(".git/config", by_its_second_name), (".git/hooks", there_and_back), (".git", there_and_back)]
)
async def test_a_name_that_was_moved_or_made_anew_ends_the_command_though_it_is_the_same_object_again(
    launcher: LinuxSandboxLauncher, workspace: str, name: str, replace: Callable[[str], None]
) -> None:
    await prepare(launcher, workspace)
    place = f"{workspace}/{name}"
    process = await start(launcher, terms(workspace, protect=PROTECT), ("/bin/sh", "-c", "echo up; read x"))
    await read_until(process, b"up\n")
    await asyncio.sleep(0)  # the watch begins in the next turn of the loop
    before = await asyncio.to_thread(os.stat, place)
    # Not in a thread: a look in between would see another object.
    replace(place)
    after = await asyncio.to_thread(os.stat, place)
    assert (before.st_dev, before.st_ino) == (after.st_dev, after.st_ino)
    ended = (await finish(process)).exit
    assert ended.note is not None
    assert name in ended.note


async def test_a_machine_without_inotify_looks_now_and_then(
    launcher: LinuxSandboxLauncher, workspace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CoverWatch, "_open", lambda _watch: -1)
    await prepare(launcher, workspace)
    process = await start(launcher, terms(workspace, protect=PROTECT), ("/bin/sh", "-c", "echo up; read x"))
    await read_until(process, b"up\n")
    await asyncio.to_thread(os.rename, f"{workspace}/.git", f"{workspace}/aside")
    assert (await finish(process)).exit.note is not None


async def test_a_placeholder_that_is_replaced_from_outside_ends_the_command_and_stays(
    launcher: LinuxSandboxLauncher, workspace: str
) -> None:
    process = await start(launcher, terms(workspace, protect=(".codex",)), ("/bin/sh", "-c", "echo up; read x"))
    await read_until(process, b"up\n")
    await asyncio.to_thread(Path(workspace, "mine").write_text, "mine")
    await asyncio.to_thread(os.rename, f"{workspace}/mine", f"{workspace}/.codex")
    ended = (await finish(process)).exit
    assert ended.note is not None
    assert await asyncio.to_thread(Path(workspace, ".codex").read_text) == "mine"


async def test_what_is_only_written_outside_or_busy_beside_ends_nothing(
    launcher: LinuxSandboxLauncher, workspace: str
) -> None:
    await prepare(launcher, workspace)
    script = (
        f"read x; for i in 1 2 3 4 5 6 7 8; do echo $i > f; {GIT} add f; {GIT} commit -q -m $i; done; cat .git/config"
    )
    process = await start(launcher, terms(workspace, protect=PROTECT), ("/bin/sh", "-c", script))
    with open(f"{workspace}/.git/config", "a", encoding="utf-8") as config:  # noqa: ASYNC230 - a line for a small file
        config.write("# from outside\n")
    process.close_stdin()
    ended = await finish(process)
    assert ended.exit.command_code == 0
    assert ended.exit.note is None
    assert "# from outside" in ended.output


async def test_what_a_crash_left_is_tidied_without_a_command_and_not_under_one(
    launcher: LinuxSandboxLauncher, workspace: str
) -> None:
    what = terms(workspace, protect=(".codex", ".mine"))
    await asyncio.to_thread(Path(workspace, ".mine").write_text, "")
    process = await start(launcher, what, ("/bin/cat",))
    crashed = LinuxSandboxLauncher()  # another runner, as after a restart: it knows of no command here
    try:
        assert await launcher.tidy(workspace, what.protect) == (), "the command is covered by it"
        assert sorted(os.listdir(workspace)) == [".codex", ".mine"]
        process.kill()
        await finish(process)
        assert os.listdir(workspace) == [".mine"]
        os.close(os.open(f"{workspace}/.codex", os.O_CREAT, 0))
        os.utime(f"{workspace}/.codex", (PLACEHOLDER_MTIME_S, PLACEHOLDER_MTIME_S))
        assert await crashed.tidy(workspace, what.protect) == (".codex",)
        assert os.listdir(workspace) == [".mine"], "nothing but the placeholder"
        assert await crashed.tidy(workspace, what.protect) == ()
    finally:
        await crashed.close()


async def test_commands_that_end_and_start_at_once_never_lose_a_cover(
    launcher: LinuxSandboxLauncher, workspace: str
) -> None:
    what = terms(workspace, protect=(".codex",))

    async def commands() -> list[tuple[int | None, str | None]]:
        ends = [(await shell(launcher, what, "! echo x > .codex")).exit for _ in range(12)]
        return [(end.command_code, end.note) for end in ends]

    ended = await asyncio.gather(*(commands() for _ in range(3)))
    assert {end for ends in ended for end in ends} == {(0, None)}
    assert os.listdir(workspace) == []
