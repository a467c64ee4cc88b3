"""Reads and finds through the runner, while commands run (FS-1); the rules of paths are the adapter's tests."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from runner.api import ApplyPatch, ErrorCode, FindFiles, ReadFile, RecoverPatches, RunnerError, TidyWorkspace
from sandbox_helper.protocol import PLACEHOLDER_MTIME_S
from tests.contract.conftest import SANDBOXED
from tests.contract.rig import Rig

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.covers("FS-1", "FS-3")
async def test_a_file_a_command_wrote_is_read_while_the_command_still_runs(rig: Rig) -> None:
    process_id = await rig.sh("printf 'héllo' > made.txt; echo ready; exec sleep 86400")
    await rig.until(process_id, "ready")
    got = await rig.runner.read_file(ReadFile(workspace=rig.ref(), path="made.txt"))
    assert (got.content, got.encoding, got.size) == ("héllo", "utf-8", 6)
    assert got.version == "sha256:" + hashlib.sha256("héllo".encode()).hexdigest()
    assert (await rig.status(process_id)).state == "running"


@pytest.mark.covers("FS-4", "FS-1")
async def test_a_find_sees_what_a_running_command_made(rig: Rig) -> None:
    process_id = await rig.sh("mkdir -p found; : > found/b; : > found/a; echo ready; exec sleep 86400")
    await rig.until(process_id, "ready")
    page = await rig.runner.find_files(FindFiles(workspace=rig.ref(), pattern="found/*"))
    assert [match.path for match in page.matches] == ["found/a", "found/b"]


@pytest.mark.covers("PATCH-4")
@pytest.mark.parametrize("shared_rig", SANDBOXED, indirect=True)
async def test_a_patch_is_checked_applied_and_seen_by_a_command(rig: Rig, tmp_path: Path) -> None:
    patch = "*** Begin Patch\n*** Add File: patched.txt\n+from a patch\n*** End Patch\n"
    request = ApplyPatch(workspace=rig.ref(), patch=patch, check_only=True, journal_dir=str(tmp_path))
    checked = await rig.runner.apply_patch(request)
    assert (checked.status, checked.files) == ("checked", ("patched.txt",))
    assert (await rig.run("test -e patched.txt || echo absent"))[0] == "absent\n"
    applied = await rig.runner.apply_patch(request.model_copy(update={"check_only": False, "operation_id": "op_1"}))
    assert (applied.status, applied.files) == ("applied", ("patched.txt",))
    assert (await rig.run("cat patched.txt"))[0] == "from a patch\n"
    recovered = await rig.runner.recover_patches(RecoverPatches(workspace=rig.ref(), journal_dir=str(tmp_path)))
    assert {operation.status for operation in recovered.recovered} <= {"applied"}


@pytest.mark.covers("BOX-7")
@pytest.mark.parametrize("shared_rig", SANDBOXED, indirect=True)
async def test_a_workspace_is_tidied_of_placeholders_alone(rig: Rig) -> None:
    for name in (".left", ".own"):
        os.close(os.open(f"{rig.root}/{name}", os.O_CREAT, 0))
    os.utime(f"{rig.root}/.left", (PLACEHOLDER_MTIME_S, PLACEHOLDER_MTIME_S))
    request = TidyWorkspace(workspace=rig.ref(), protect=(".left", ".own", ".absent"))
    assert (await rig.runner.tidy_workspace(request)).removed == (".left",)
    assert (await rig.runner.tidy_workspace(request)).removed == ()
    assert (await rig.run("ls -A .left .own 2>/dev/null"))[0] == ".own\n"
    os.unlink(f"{rig.root}/.own")


@pytest.mark.covers("FS-2")
@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("../x", ErrorCode.PATH_ESCAPE),
        ("/etc/passwd", ErrorCode.PATH_ESCAPE),
        ("nowhere", ErrorCode.FILE_NOT_FOUND),
    ],
)
async def test_the_adapter_s_refusal_arrives_with_its_code(rig: Rig, path: str, code: ErrorCode) -> None:
    with pytest.raises(RunnerError) as caught:
        await rig.runner.read_file(ReadFile(workspace=rig.ref(), path=path))
    assert caught.value.code is code
