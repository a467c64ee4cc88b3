"""Directories whose permissions a command took away: covers hold, nobody is killed for it, no placeholder stays.

Run as root, who may look everywhere, and once more as an ordinary user, who may not (test_ordinary_user).
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from adapters.linux_sandbox.cover_watch import CoverWatch
from adapters.linux_sandbox.launcher import LinuxSandboxLauncher
from adapters.linux_sandbox.placeholders import sweep
from runner.ports import LaunchFailed
from sandbox_helper.protocol import PLACEHOLDER_MTIME_S
from tests.adapters.linux_sandbox.support import Ended, finish, read_until, shell, start, terms

PROTECT = (".codex", ".git/config", ".git/hooks")
MODES = (0o000, 0o111, 0o222, 0o333, 0o444, 0o555, 0o666)
pytestmark = pytest.mark.covers("BOX-7")


@pytest.fixture
async def repository(workspace: str) -> AsyncIterator[str]:
    os.mkdir(f"{workspace}/.git")
    yield workspace
    for place in (workspace, f"{workspace}/.git"):
        os.chmod(place, 0o755)


def opened(root: str, place: str) -> list[str]:
    """What stands in `place`, whose mode is put to an ordinary one."""
    os.chmod(root, 0o755)
    os.chmod(os.path.join(root, place), 0o755)
    return sorted(os.listdir(os.path.join(root, place)))


def mode_of(path: str) -> int:
    return stat.S_IMODE(os.stat(path).st_mode)


async def guarded(launcher: LinuxSandboxLauncher, root: str, script: str) -> Ended:
    return await shell(launcher, terms(root, protect=PROTECT), script)


@pytest.mark.parametrize("mode", MODES, ids=oct)
async def test_names_in_a_directory_that_was_closed_before_are_covered_and_tidied(
    launcher: LinuxSandboxLauncher, repository: str, mode: int
) -> None:
    os.chmod(f"{repository}/.git", mode)
    attack = "echo up; chmod 755 .git; ls .git; echo x > .git/config || mkdir .git/hooks || mv .git a || touch .codex"
    ended = await guarded(launcher, repository, f"{attack}; chmod {mode:o} .git")
    assert ended.exit.note is None
    assert ended.exit.command_code == 0, "the command ran to its end"
    assert ended.output.startswith("up\nconfig\nhooks\n")
    assert mode_of(f"{repository}/.git") == mode, "as the command left it"
    assert opened(repository, ".git") == []
    assert os.listdir(repository) == [".git"]


@pytest.mark.parametrize("place", [".", ".git"])
@pytest.mark.parametrize("mode", MODES, ids=oct)
async def test_a_directory_that_is_closed_meanwhile_ends_nothing_and_is_tidied(
    launcher: LinuxSandboxLauncher, repository: str, mode: int, place: str
) -> None:
    there = os.path.join(repository, place).removesuffix("/.")
    script = f"chmod {mode:o} {there}; echo up; read x; chmod 755 {there}; read x; chmod {mode:o} {there}; echo done"
    process = await start(launcher, terms(repository, protect=PROTECT), ("/bin/sh", "-c", script))
    await read_until(process, b"up\n")
    assert process.stdin_fd is not None
    os.write(process.stdin_fd, b"\n\n")
    ended = await finish(process)
    assert ended.exit.note is None
    assert (ended.exit.command_code, ended.output) == (0, "done\n")
    assert mode_of(there) == mode
    assert opened(repository, ".git") == []
    assert os.listdir(repository) == [".git"]


async def test_a_name_that_is_replaced_is_noticed_once_its_directory_is_open_again(
    launcher: LinuxSandboxLauncher, repository: str
) -> None:
    await asyncio.to_thread(Path(repository, ".git/config").write_text, "real")
    script = "chmod 000 .git; echo up; read x; chmod 755 .git; read x"
    process = await start(launcher, terms(repository, protect=PROTECT), ("/bin/sh", "-c", script))
    await read_until(process, b"up\n")
    os.chmod(f"{repository}/.git", 0o755)
    os.rename(f"{repository}/.git/config", f"{repository}/aside")
    os.chmod(f"{repository}/.git", 0)
    assert process.stdin_fd is not None
    os.write(process.stdin_fd, b"\n")
    ended = (await finish(process)).exit
    assert ended.note is not None
    assert ".git/config" in ended.note


async def test_without_inotify_a_closed_directory_ends_nothing_either(
    launcher: LinuxSandboxLauncher, repository: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = asyncio.Event()
    look = CoverWatch._lost
    loop = asyncio.get_running_loop()
    count = 0

    def counted(watch: CoverWatch) -> str | None:
        nonlocal count
        count += 1
        if count == 3:
            loop.call_soon_threadsafe(looks.set)
        return look(watch)

    monkeypatch.setattr(CoverWatch, "_open", lambda _watch: -1)
    monkeypatch.setattr(CoverWatch, "_lost", counted)
    what = terms(repository, protect=PROTECT)
    process = await start(launcher, what, ("/bin/sh", "-c", "chmod 000 .git; echo up; read x; echo done"))
    await read_until(process, b"up\n")
    async with asyncio.timeout(10):
        await looks.wait()
    process.close_stdin()
    ended = await finish(process)
    assert (ended.exit.command_code, ended.exit.note) == (0, None)


@pytest.mark.parametrize("mode", [0o000, 0o444, 0o666], ids=oct)
async def test_a_root_that_lets_nobody_in_is_said_to_be_the_cause(
    launcher: LinuxSandboxLauncher, repository: str, mode: int
) -> None:
    os.chmod(repository, mode)
    with pytest.raises(LaunchFailed) as failed:
        await guarded(launcher, repository, "true")
    error = failed.value
    assert (error.stage, error.errno, error.path) == ("chdir", "EACCES", repository)
    assert "permissions of the workspace's root" in (error.remedy or "")
    assert mode_of(repository) == mode
    assert opened(repository, ".git") == []
    assert (await guarded(launcher, repository, "true")).exit.command_code == 0, "opened, it works"


@pytest.mark.parametrize("mode", MODES, ids=oct)
def test_a_sweep_removes_only_placeholders_and_leaves_every_mode_as_it_was(repository: str, mode: int) -> None:
    for name in (".git/hooks", ".codex"):
        os.close(os.open(f"{repository}/{name}", os.O_CREAT, 0))
        os.utime(f"{repository}/{name}", (PLACEHOLDER_MTIME_S, PLACEHOLDER_MTIME_S))
    Path(repository, ".git/config").touch(0)
    os.chmod(f"{repository}/.git", mode)
    os.chmod(repository, mode)
    assert sweep(repository, (*PROTECT, "absent/name")) == [".codex", ".git/hooks"]
    assert mode_of(repository) == mode
    os.chmod(repository, 0o755)
    assert mode_of(f"{repository}/.git") == mode
    assert opened(repository, ".git") == ["config"]
