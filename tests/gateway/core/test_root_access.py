"""A root that was closed to its owner, as a command can do: its own calls fail, not a start, not its neighbours."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from gateway.errors import Code, RegistryRefused, StartFailed, ToolError
from gateway.image import check_root_inside
from gateway.locks import lock_directory
from gateway.registry import Guarded, effective_permissions, load_registry
from gateway.root_access import open_to_owner
from tests.gateway.core.application_rig import Core, core
from tests.gateway.core.support import write_registry
from tests.privileges import ORDINARY_UID, run_as
from tests.program import running_program

MODES = [owner << 6 | rest for owner in range(8) for rest in (0o000, 0o055)]
T = TypeVar("T")
WRITE: dict[str, object] = {"profile": "workspace-write"}


@pytest.fixture
def base() -> Iterator[Path]:
    """Reachable by the ordinary user, and that user's."""
    path = Path(tempfile.mkdtemp(prefix="cs"))
    os.chown(path, ORDINARY_UID, ORDINARY_UID)
    yield path
    shutil.rmtree(path)


def as_user(body: Callable[[], T]) -> T:
    return run_as(ORDINARY_UID, body, timeout_s=60)


@pytest.mark.covers("POL-5", "LEASE-2")
@pytest.mark.parametrize("profile", ["read-only", "workspace-write"])
def test_no_mode_of_one_root_keeps_an_appliance_from_starting_or_reloading(base: Path, profile: str) -> None:
    async def modes_after() -> list[tuple[int, int, int]]:
        found = []
        for mode in MODES:
            place = base / f"{mode:o}"
            place.mkdir()
            (place / "ws/bad").mkdir(parents=True)
            (place / "ws/bad").chmod(mode)
            async with core(place, {"bad": {"profile": profile}, "good": WRITE}) as one:
                started = (place / "ws/bad").stat().st_mode & 0o777
                (place / "ws/bad").chmod(mode)
                await one.application.reload()
                reloaded = (place / "ws/bad").stat().st_mode & 0o777
                assert await one.is_free("good")
                await one.application.find_files("bad", "*")
                found.append((mode, started, reloaded))
        return found

    found = as_user(lambda: asyncio.run(modes_after()))
    expected = [mode if mode & 0o500 == 0o500 else mode | 0o700 for mode in MODES]
    assert found == [(mode, after, after) for mode, after in zip(MODES, expected, strict=True)]


@pytest.mark.covers("FS-1", "PROC-1")
@pytest.mark.parametrize("mode", [0o000, 0o200, 0o600])
def test_calls_on_a_root_closed_while_it_is_served_name_the_remedy_and_others_go_on(base: Path, mode: int) -> None:
    async def refusals(one: Core) -> list[tuple[str, str, bool]]:
        told = []
        for call in (
            one.application.find_files("bad", "*"),
            one.application.apply_patch("bad", "*** Begin Patch\n*** Add File: a\n+x\n*** End Patch\n"),
            one.application.exec_command("bad", ("true",)),
        ):
            with pytest.raises(ToolError) as error:
                await call
            told.append((error.value.code.value, error.value.details["reason"], "chmod u+rwx" in error.value.message))
        return told

    async def served() -> list[tuple[str, str, bool]]:
        async with core(base, {"bad": WRITE, "good": WRITE}) as one:
            one.root("bad").chmod(mode)
            told = await refusals(one)
            assert await one.is_free("good")
            one.root("bad").chmod(0o700)
            assert await one.is_free("bad"), "repaired, without a reload"
            return told

    files, run = Code.FILE_OPERATION_FAILED.value, Code.PROCESS_SPAWN_FAILED.value
    expected = [(files, "root_unreadable", True)] * 2 + [(run, "root_unreadable", True)]
    assert as_user(lambda: asyncio.run(served())) == expected


@pytest.mark.skipif(os.geteuid() != 0, reason="about an appliance that runs as root")
async def test_an_appliance_run_as_root_reads_a_closed_root_and_refuses_commands_that_cannot_enter(
    tmp_path: Path,
) -> None:
    async with core(tmp_path, {"bad": WRITE, "plain": {**WRITE, "sandbox": "off"}}) as one:
        for name in ("bad", "plain"):
            one.root(name).chmod(0)
        await one.refused(one.application.exec_command("bad", ("true",)), Code.PROCESS_SPAWN_FAILED)
        assert await one.is_free("plain"), "such a command is root itself"
        await one.application.find_files("bad", "*")


@pytest.mark.covers("POL-5", "PROC-1")
@pytest.mark.parametrize("user", [os.geteuid(), ORDINARY_UID])
def test_the_program_starts_again_after_a_command_closed_its_root(user: int) -> None:
    def restarted() -> tuple[dict[str, object], list[object]]:
        with running_program() as program:
            program.run("chmod", "000", ".")
            program.restart(signal.SIGTERM)
            warned = [line["workspace_id"] for line in program.log if line["event"] == "root_permission_restored"]
            return program.run("touch", "again")["command_exit"], warned

    assert run_as(user, restarted, timeout_s=60) == ({"code": 0}, ["demo"])


@pytest.mark.covers("POL-5")
def test_a_check_of_the_registry_warns_and_changes_nothing(base: Path) -> None:
    def checked() -> tuple[str, int]:
        (base / "ws").mkdir(mode=0o000)
        registry = write_registry(base / "r.json", {"w": {"root": str(base / "ws")}})
        text = effective_permissions(load_registry(registry, Guarded()))
        return text, (base / "ws").stat().st_mode & 0o777

    text, mode = as_user(checked)
    assert f"WARNING      its owner lacks permission on the root: chmod u+rwx {base}/ws" in text
    assert mode == 0


@pytest.mark.covers("POL-5")
@pytest.mark.skipif(os.geteuid() != 0, reason="needs directories of two users")
def test_a_closed_root_of_somebody_else_is_the_operators_mistake_and_refused(base: Path) -> None:
    (base / "ws").mkdir(mode=0o700)
    registry = write_registry(base / "r.json", {"w": {"root": str(base / "ws")}})
    os.chown(registry, ORDINARY_UID, -1)

    def refused() -> str:
        with pytest.raises(RegistryRefused) as error:
            load_registry(registry, Guarded())
        return str(error.value)

    assert "workspaces.w.root" in as_user(refused)


@pytest.mark.covers("IMG-3")
def test_in_the_image_a_root_without_its_owners_write_permission_is_given_back_too(base: Path) -> None:
    def locked() -> int:
        root = base / "ws"
        root.mkdir(mode=0o500)
        status = os.stat(root)
        if status.st_dev != os.stat("/").st_dev:  # as in the image; elsewhere that check comes first
            check_root_inside("f", "k", str(root), "workspace-write", shut=True)
        assert open_to_owner(str(root), status.st_dev, status.st_ino, "root", shut=True)
        lock_directory(str(root), "root").release()
        return root.stat().st_mode & 0o777

    assert as_user(locked) == 0o700


def test_only_the_directory_that_was_checked_is_opened(tmp_path: Path) -> None:
    (tmp_path / "ws").mkdir(mode=0o000)
    (tmp_path / "link").symlink_to("ws")
    status = os.stat(tmp_path / "ws")
    for name, inode in (("ws", status.st_ino + 1), ("link", status.st_ino), ("nope", status.st_ino)):
        with pytest.raises(StartFailed):
            open_to_owner(str(tmp_path / name), status.st_dev, inode, "root", shut=True)
    assert (tmp_path / "ws").stat().st_mode & 0o777 == 0
