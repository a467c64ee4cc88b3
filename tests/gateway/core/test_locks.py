"""Locks on directories: real flocks, held by real second processes."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gateway.data_directory import open_data_directory
from gateway.errors import AlreadyServed, Code, StartFailed, ToolError
from gateway.liveness import LivenessDirectory
from gateway.locks import LockSet, lock_directory

HOLD = "import fcntl,os,sys; d=os.open(sys.argv[1],os.O_RDONLY); fcntl.flock(d,2); print('held',flush=True); input()"


@contextmanager
def another_program_on(path: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        yield holder
        holder.kill()


@pytest.mark.covers("LEASE-2")
def test_a_directory_that_another_program_serves_is_refused_until_that_one_dies(tmp_path: Path) -> None:
    with another_program_on(tmp_path) as holder:
        with pytest.raises(
            AlreadyServed, match=rf"root of workspace demo is locked \(flock\) by process {holder.pid}"
        ) as error:
            lock_directory(str(tmp_path), "root of workspace demo")
        assert str(tmp_path) in str(error.value)
        assert "already served" not in str(error.value), "the holder here is no codespace program"
        assert f"ps -p {holder.pid}" in error.value.remedy
    lock_directory(str(tmp_path), "root").release()


@pytest.mark.covers("LEASE-2")
def test_this_program_cannot_hold_one_directory_under_two_locks_either(tmp_path: Path) -> None:
    lock = lock_directory(str(tmp_path), "root")
    with pytest.raises(AlreadyServed):
        lock_directory(str(tmp_path), "root")
    lock.release()
    lock_directory(str(tmp_path), "root").release()


def test_what_is_no_directory_or_a_link_is_not_locked(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(".")
    for name in ("file", "link", "missing"):
        with pytest.raises(StartFailed, match=name):
            lock_directory(str(tmp_path / name), "root")


@pytest.mark.covers("LEASE-2")
@pytest.mark.parametrize("replacement", ["directory", "link", "nothing"])
def test_a_root_that_was_replaced_is_noticed_and_the_error_says_so(tmp_path: Path, replacement: str) -> None:
    root = tmp_path / "root"
    root.mkdir()
    lock = lock_directory(str(root), "root")
    try:
        lock.verify("demo")
        root.rename(tmp_path / "moved")
        if replacement == "directory":
            root.mkdir()
        elif replacement == "link":
            root.symlink_to("moved")
        with pytest.raises(ToolError, match="moved or replaced") as error:
            lock.verify("demo")
        assert error.value.code is Code.FILE_OPERATION_FAILED
        assert error.value.details["reason"] == "root_replaced"
    finally:
        lock.release()


def test_a_set_keeps_what_it_holds_and_follows_a_new_name_of_the_same_directory(tmp_path: Path) -> None:
    root = tmp_path / "a"
    root.mkdir()
    other = tmp_path / "other"
    other.mkdir()
    status = os.stat(root)
    held = LockSet()
    try:
        assert held.acquire(str(root), status.st_dev, status.st_ino, "root") is True
        assert held.acquire(str(root), status.st_dev, status.st_ino, "root") is False
        root.rename(tmp_path / "b")
        assert held.acquire(str(tmp_path / "b"), status.st_dev, status.st_ino, "root") is False
        lock = held.get(status.st_dev, status.st_ino)
        assert lock is not None
        lock.verify("demo")
        with pytest.raises(StartFailed, match="replaced"):
            held.acquire(str(other), status.st_dev, 0, "root")
    finally:
        held.close()
        held.close()
    lock_directory(str(tmp_path / "b"), "root").release()


@pytest.mark.covers("LEASE-2", "OP-5")
def test_the_data_directory_is_made_private_and_refused_when_shared_or_taken(tmp_path: Path) -> None:
    made = tmp_path / "state" / "data"
    lock = open_data_directory(made)
    assert made.stat().st_mode & 0o777 == 0o700
    with pytest.raises(AlreadyServed, match="data directory"):
        open_data_directory(made)
    lock.release()
    made.chmod(0o750)
    with pytest.raises(StartFailed, match="chmod 700"):
        open_data_directory(made)
    (tmp_path / "file").write_text("")
    with pytest.raises(StartFailed):
        open_data_directory(tmp_path / "file")
    if os.geteuid() == 0:
        made.chmod(0o700)
        os.chown(made, 12345, -1)
        with pytest.raises(StartFailed, match="uid 12345"):
            open_data_directory(made)


# --- proof of death ---------------------------------------------------------------------------------------------------
async def child_with(descriptor: int) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec("sleep", "1000", pass_fds=(descriptor,))


@pytest.mark.covers("LEASE-2")
async def test_death_is_proved_by_the_last_writer_and_not_before(tmp_path: Path) -> None:
    liveness, write_end = await LivenessDirectory(tmp_path / "l").create()
    first, second = await child_with(write_end), await child_with(write_end)
    os.write(write_end, b"noise")
    os.close(write_end)
    first.kill()
    await first.wait()
    proof = asyncio.ensure_future(liveness.dead())
    _, pending = await asyncio.wait({proof}, timeout=0)
    assert pending, "one writer is alive"
    second.kill()
    await asyncio.wait_for(proof, 5)
    assert list((tmp_path / "l").iterdir()) == []
    await second.wait()


@pytest.mark.covers("LEASE-2", "PROC-7")
async def test_a_later_start_waits_for_what_an_earlier_one_left(tmp_path: Path) -> None:
    left, write_end = await LivenessDirectory(tmp_path / "l").create()
    child = await child_with(write_end)
    os.close(write_end)
    left.give_up()
    left.give_up()
    later = LivenessDirectory(tmp_path / "l")
    with pytest.raises(StartFailed, match="still ending"):
        await later.await_the_dead(within_s=0)
    waiting = asyncio.create_task(later.await_the_dead(within_s=10))
    await asyncio.wait({waiting}, timeout=0)
    child.kill()
    await asyncio.wait_for(waiting, 5)
    assert list((tmp_path / "l").iterdir()) == []
    await later.await_the_dead(within_s=0)
    await child.wait()


async def test_a_first_start_has_nobody_to_wait_for(tmp_path: Path) -> None:
    await LivenessDirectory(tmp_path / "none").await_the_dead(within_s=0)
