"""The whole of it, gateway to helpers, for as long as an attacker says: reads and patches together while directories,
files and links that lead outside change places without pause."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import shutil
import stat
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gateway.application import Application
from gateway.errors import Code, ToolError
from tests.adapters.filesystem.swapper import PATHS, SECRET, make_bait, naive_read, naive_write, swapping
from tests.adapters.patch_helper.workspaces import patch, snapshot, update
from tests.gateway.core.crash_program import application
from tests.gateway.core.support import write_registry

ATTACK_S = 5.0
"""How long the attacker works at least; it tells, and nothing here looks at a clock."""
TURNED_AWAY = {Code.SYMLINK_REJECTED, Code.FILE_NOT_FOUND, Code.PATH_NOT_DIRECTORY, Code.VERSION_CONFLICT}
"""What an answer may be while names change places: the thing at the path is a link, or is not there just now."""


@pytest.fixture
def base() -> Iterator[Path]:
    made = os.path.realpath(tempfile.mkdtemp(prefix="codespace-race-"))
    yield Path(made)
    shutil.rmtree(made)


def lay_out(base: Path) -> tuple[Path, Path]:
    """(root, what is outside)."""
    root, outside = base / "ws" / "demo", base / "outside"
    root.mkdir(parents=True)
    make_bait(root, outside)
    (root / "real/count").write_text("0\n")
    (outside / "count").write_text("0\n")
    (outside / "only-outside.txt").write_text(SECRET)
    return root, outside


@dataclass
class Seen:
    """What came of it, by kind of answer."""

    read: Counter[str] = field(default_factory=Counter)
    patched: Counter[str] = field(default_factory=Counter)
    enough: bool = False

    @property
    def count(self) -> int:
        """What the counted file is at."""
        return self.patched["counted"]

    @property
    def both_ways(self) -> bool:
        """Every kind of call got through and was turned away, so that the attacker did meet it."""
        return min(
            self.read["text"], self.read["found"], self.read["searched"], self.read[Code.SYMLINK_REJECTED],
            self.patched["counted"], self.patched["moved"], self.patched[Code.SYMLINK_REJECTED],
        ) > 0  # fmt: skip


def turned_away(error: ToolError) -> str:
    """Its code, if it is one that is right here and nothing was left of it."""
    assert error.code in TURNED_AWAY, error
    assert error.details.get("status", "failed_rolled_back") in ("failed_rolled_back", "rejected"), error
    assert SECRET not in str(error)
    return error.code


async def read_on(gateway: Application, seen: Seen) -> None:
    for path in itertools.cycle(PATHS):
        if seen.enough:
            return
        try:
            got = await gateway.read_file("demo", path)
        except ToolError as error:
            seen.read[turned_away(error)] += 1
        else:
            assert got.content == "needle inside\n"
            seen.read["text"] += 1


async def look_on(gateway: Application, seen: Seen) -> None:
    while not seen.enough:
        page = await gateway.find_files("demo", "**/*.txt")
        assert not [match.path for match in page.matches if "only-outside" in match.path]
        seen.read["found"] += len(page.matches)
        lines = await gateway.grep_files("demo", "needle")
        assert {match.text for match in lines.matches} <= {"needle inside"}
        seen.read["searched"] += len(lines.matches)


async def patch_on(gateway: Application, seen: Seen) -> None:
    """Counts a file up; and has one come to be behind a name that changes places, move to another, and go again."""
    while not seen.enough:
        for path in ("real/count", "link/count"):
            await applied(gateway, seen, "counted", update(path, "@@", f"-{seen.count}", f"+{seen.count + 1}"))
        if await applied(gateway, seen, "added", ("*** Add File: real/new", "+needle inside")):
            for path in itertools.cycle(("real/new", "link/new")):
                move = update(path, "*** Move to: deep/real/new", "@@", " needle inside")
                if await applied(gateway, seen, "moved", move):
                    break
            for path in itertools.cycle(("deep/real/new", "deep/link/new")):
                if await applied(gateway, seen, "deleted", (f"*** Delete File: {path}",)):
                    break


async def applied(gateway: Application, seen: Seen, kind: str, lines: Sequence[str]) -> bool:
    try:
        answer = await gateway.apply_patch("demo", patch(*lines))
    except ToolError as error:
        seen.patched[turned_away(error)] += 1
        return False
    assert answer.status == "applied"
    seen.patched[kind] += 1
    return True


@pytest.mark.timeout(120)
@pytest.mark.covers("FS-1", "FS-6", "PATCH-1", "PATCH-2", "PATCH-5")
async def test_reads_and_patches_together_never_leave_the_root_while_its_names_change_places(base: Path) -> None:
    root, outside = lay_out(base)
    before = snapshot(outside, times=True)
    write_registry(base / "registry.json", {"demo": {"root": str(root), "profile": "workspace-write"}})
    gateway, _ = application(base)
    seen = Seen()
    try:
        await gateway.start()
        with swapping(root, seconds=ATTACK_S) as attacker:
            assert attacker.stdout is not None
            async with asyncio.TaskGroup() as work:
                for call in (read_on, look_on, patch_on):
                    work.create_task(call(gateway, seen))
                assert await asyncio.to_thread(attacker.stdout.readline) == "long enough\n"
                while not seen.both_ways:
                    await gateway.readiness()
                seen.enough = True
    finally:
        await gateway.close()
    assert snapshot(outside, times=True) == before, "something outside was written"
    files = {path.relative_to(root).as_posix(): path for path in root.rglob("*") if stat.S_ISREG(path.lstat().st_mode)}
    counted = [path.read_text() for name, path in files.items() if name.endswith("/count")]
    assert counted == [f"{seen.count}\n"], "each patch was applied once, to the file inside"
    assert not [name for name in files if ".codespace-patch-" in name]
    assert {path.read_text() for name, path in files.items() if not name.endswith("/count")} == {"needle inside\n"}


@pytest.mark.timeout(120)
@pytest.mark.covers("FS-1", "PATCH-1")
def test_code_that_checks_first_and_opens_then_reads_and_writes_outside(base: Path) -> None:
    """The control: the same attacker, the same tree, what careful-looking code makes of it."""
    root, outside = lay_out(base)
    before = snapshot(outside)
    leaked = False
    with swapping(root):
        for path in itertools.islice(itertools.cycle(("real/file.txt", "plain.txt")), 1_000_000):
            with contextlib.suppress(OSError):
                leaked = leaked or SECRET in naive_read(root, path)
            with contextlib.suppress(OSError):
                naive_write(root, path, "NEEDLE")
            if leaked and snapshot(outside) != before:
                return
    raise AssertionError(f"read: {leaked}, written: {snapshot(outside) != before}")
