"""kill -9 of worker and gateway in the middle of patches: the tree is whole, and the ledger tells which it is."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.application import Application
from gateway.errors import Code, ToolError
from tests.gateway.core.crash_program import FILES, application, step, values
from tests.gateway.core.support import write_registry

REPOSITORY = Path(__file__).resolve().parents[3]
TEMPORARY = ".codespace-patch-"


async def soon(awaitable: Awaitable[Any]) -> Any:
    return await asyncio.wait_for(awaitable, 30)


def prepare(base: Path) -> Path:
    root = base / "ws" / "demo"
    root.mkdir(parents=True)
    for name in [*(f"f{number}" for number in range(FILES)), "m0"]:
        (root / name).write_text("0\n")
    write_registry(base / "registry.json", {"demo": {"root": str(root), "profile": "workspace-write"}})
    return root


class Trigger:
    """Calls `act` in a thread of its own once a patch has come as far as `progress` steps that can be seen from
    outside: names of new files that appeared, then files that were exchanged."""

    def __init__(self, root: Path, progress: int, act: Callable[[], None]) -> None:
        self._root, self._progress, self._act = root, progress, act
        self._inodes = self._seen()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def _seen(self) -> dict[str, int]:
        found: dict[str, int] = {}
        with os.scandir(self._root) as entries:
            for entry in entries:
                found[entry.name] = entry.inode()
        return found

    def _watch(self) -> None:
        while not self._stop.is_set():
            now = self._seen()
            made = sum(name.startswith(TEMPORARY) for name in now)
            exchanged = sum(inode != self._inodes.get(name) for name, inode in now.items() if name[0] == "f")
            if made + exchanged >= self._progress:
                self._act()
                return

    def __enter__(self) -> Trigger:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


async def whole(gateway: Application, root: Path, operation_id: str, before: int) -> int:
    """Waits for the end of the operation, checks that tree and ledger agree, and returns the number it is at."""

    async def ended() -> Any:
        while True:
            found = await gateway.operation_status(operation_id=operation_id)
            if found.finished_at is not None:
                return found
            await asyncio.to_thread(os.sched_yield)

    found = await soon(ended())
    at = before + 1 if found.status == "applied" else before
    # `rejected`: the worker was gone before the frame left.
    assert found.status in ("applied", "failed_rolled_back", "rejected"), found
    names = {f"f{number}" for number in range(FILES)} | {f"m{at}"}
    assert set(os.listdir(root)) == names, (found, os.listdir(root))
    assert values(root) == {f"{at}\n"}, found
    assert (root / f"m{at}").read_text() == f"{at}\n"
    if found.status == "applied":
        assert len(found.changes) == FILES + 1
    return at


@pytest.mark.timeout(120)
@pytest.mark.covers("PATCH-6", "OP-4", "UDS-2", "LEASE-2")
async def test_a_worker_killed_during_patches_leaves_whole_trees_and_true_records(tmp_path: Path) -> None:
    root = prepare(tmp_path)
    chance = random.Random(1)
    gateway, link = application(tmp_path)
    await soon(gateway.start())
    try:
        at, lost = 0, 0
        for progress in [0, FILES, 2 * FILES, *(chance.randrange(2 * FILES) for _ in range(2))]:
            worker = link._worker
            assert worker is not None

            def kill(pid: int = worker.child.pid) -> None:
                os.kill(pid, signal.SIGKILL)

            with Trigger(root, progress, kill):
                try:
                    operation_id = (await soon(gateway.apply_patch("demo", step(at)))).operation_id
                except ToolError as error:
                    operation_id = error.operation_id
                    lost += operation_id is not None
                    if operation_id is None:  # killed before it was minted: nothing is recorded and nothing changed
                        assert values(root) == {f"{at}\n"}
            if operation_id is not None:
                at = await whole(gateway, root, operation_id, at)
            await soon(until_served(gateway))
        assert lost > 0, "no kill struck a patch: the test has lost its aim"
    finally:
        await soon(gateway.close())


async def until_served(gateway: Application) -> None:
    """A new worker is up and the root is free."""
    while not (await gateway.readiness()).ready or gateway._services.leases.held():
        await asyncio.to_thread(os.sched_yield)


@pytest.mark.timeout(120)
@pytest.mark.covers("PATCH-6", "OP-4", "OP-5", "PROC-7")
async def test_a_gateway_killed_during_patches_leaves_its_successor_a_whole_tree_and_true_records(
    tmp_path: Path,
) -> None:
    root = prepare(tmp_path)
    chance = random.Random(2)
    started = 0
    for run, progress in enumerate(chance.randrange(2 * FILES) for _ in range(2)):
        program = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.gateway.core.crash_program", str(tmp_path), str(run)),
            stdout=subprocess.PIPE,
            cwd=REPOSITORY,
        )
        assert program.stdout is not None
        assert await soon(program.stdout.readline()) == b"ready\n"
        with Trigger(root, progress, program.kill):
            await soon(program.wait())
        gateway, _ = application(tmp_path)
        await soon(gateway.start())
        try:
            at = int((root / "f0").read_text())
            recorded = [await of_key(gateway, f"{run}-{number}") for number in range(started + 1, at + 3)]
            assert [found.status for found in recorded[: at - started]] == ["applied"] * (at - started)
            for found in (recorded[at - started], recorded[at - started + 1]):
                assert found is None or found.status == "failed_rolled_back"
            for found in recorded[max(0, at - started - 1) :]:
                if found is not None:
                    await whole(gateway, root, found.operation_id, at if found.status != "applied" else at - 1)
            assert (await soon(gateway.apply_patch("demo", step(at)))).status == "applied"
            started = at + 1
        finally:
            await soon(gateway.close())


async def of_key(gateway: Application, key: str) -> Any:
    """The recorded operation, None if it was never minted."""
    try:
        return await gateway.operation_status(operation_key=key, workspace_id="demo")
    except ToolError as error:
        if error.code is not Code.OPERATION_NOT_FOUND:
            raise
        return None
