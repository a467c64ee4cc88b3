"""The attack corpus, run by the real launcher, meets its targets; each probe has its own control outside."""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from adapters.linux_sandbox.launcher import LinuxSandboxLauncher
from tests.adapters.linux_sandbox.support import run, terms

CORPUS = Path(__file__).resolve().parents[3].parent / "shared" / "sandbox" / "attacks"
pytestmark = pytest.mark.skipif(not CORPUS.is_dir(), reason=f"the attack corpus is not at {CORPUS}")


@pytest.fixture
def secret_place() -> Iterator[str]:
    place = tempfile.mkdtemp(prefix="codespace-secret-", dir="/var/tmp")
    Path(place, "secret").write_text("secret", encoding="utf-8")
    Path(place, "canary").write_text("canary", encoding="utf-8")
    yield place
    shutil.rmtree(place)


@pytest.mark.timeout(120)
@pytest.mark.covers("BOX-1", "BOX-5", "BOX-6", "BOX-7", "NET-1")
async def test_every_attack_meets_its_target(launcher: LinuxSandboxLauncher, workspace: str, secret_place: str) -> None:
    place = (workspace, f"{secret_place}/secret", "--canary", f"{secret_place}/canary")
    bait = await asyncio.create_subprocess_exec(
        sys.executable, str(CORPUS / "attacks.py"), *place, "--bait",
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert bait.stdin is not None
    assert bait.stdout is not None
    try:
        async with asyncio.timeout(20):
            assert await bait.stdout.readline() == b"ready\n"
        what = terms(
            workspace,
            protect=(".git", "sub/.git", ".codex"),
            mounts_read_only=(str(CORPUS),),
        )
        ended = await run(launcher, what, "/usr/bin/python3", str(CORPUS / "attacks.py"), *place)
    finally:
        bait.stdin.close()
        await bait.wait()
    check = await asyncio.create_subprocess_exec(
        sys.executable, str(CORPUS / "attacks.py"), "--check", str(CORPUS / "targets.json"),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    differences, _ = await check.communicate(ended.output.encode())
    assert check.returncode == 0, differences.decode() + ended.output
    assert not await asyncio.to_thread(Path(workspace, ".codex").exists), "a placeholder stayed in the workspace"
