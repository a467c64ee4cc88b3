"""Patches while somebody swaps a directory for a link that leads out of the root, without pause."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from adapters.patch_helper import syscalls
from adapters.patch_helper.engine import PatchHelperEngine
from runner.api import PatchApplied
from tests.adapters.patch_helper.workspaces import Workspace, outcome, patch, snapshot, update, workspace

ROUNDS = 100


@contextmanager
def swapping(root: Path, one: str, two: str) -> Iterator[None]:
    """A process that exchanges two names of `root` over and over; it has begun when the block is entered."""
    ready, begun = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            directory = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
            syscalls.rename_exchange(directory, one, directory, two)
            os.write(begun, b"!")
            while os.getppid() != 1:
                syscalls.rename_exchange(directory, one, directory, two)
        finally:
            os._exit(1)
    try:
        os.read(ready, 1)
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(ready)
        os.close(begun)


@pytest.mark.timeout(120)
@pytest.mark.covers("FS-1", "PATCH-1", "PATCH-2", "PATCH-5")
async def test_no_byte_outside_the_root_is_read_or_written(engine: PatchHelperEngine) -> None:
    # In memory: a disk's journal would make every fsync wait for the renames of the other process.
    with workspace(in_memory=True) as made:
        await patch_while_swapping(engine, made)
        await engine.close()


async def patch_while_swapping(engine: PatchHelperEngine, demo: Workspace) -> None:
    outside = demo.root.parent / "outside"
    outside.mkdir()
    (outside / "a").write_bytes(b"0\nsecret\n")
    demo.put("real/a", "0\n")
    (demo.root / "link").symlink_to(outside)
    before = snapshot(outside, times=True)
    found: Counter[str] = Counter()
    count = 0
    with swapping(demo.root, "real", "link"):
        for _ in range(ROUNDS):
            # With `secret` as context it could only match outside.
            text = patch(*update("real/a", "@@", f"-{count}", f"+{count + 1}"))
            for request in (
                demo.request(text),
                demo.request(patch(*update("real/a", "@@", " secret", "+read"))),
                demo.request(patch("*** Add File: real/new", "+x", "*** Delete File: real/new"), check_only=True),
            ):
                got = await outcome(engine, request)
                if not isinstance(got, PatchApplied):
                    found[got.code] += 1
                    assert got.details.get("status", "failed_rolled_back") == "failed_rolled_back", got
                    assert "secret" not in got.message.replace("`secret`", "")
                elif got.status == "applied":
                    found["applied"] += 1
                    assert request.patch == text
                    count += 1
    assert snapshot(outside, times=True) == before
    assert found["SYMLINK_REJECTED"] > 0
    assert found["applied"] == count
    names = {name: entry[-1] for name, entry in snapshot(demo.root).items() if entry[-1] is not None}
    assert sorted(names.values(), key=str) == sorted([f"{count}\n".encode(), str(outside)], key=str)
