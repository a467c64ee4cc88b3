"""The container environment, which is a type without a backend."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from adapters.container.backend import ContainerBackend
from runner.api import (
    ApplyPatch,
    ErrorCode,
    FindFiles,
    GrepFiles,
    ReadFile,
    RecoverPatches,
    RunnerError,
    WorkspaceRef,
    WorkspaceTerms,
)
from runner.ports import ContentSearch, FileSystem, LaunchRequest, PatchEngine, SandboxLauncher

BACKEND = ContainerBackend()
FILES: FileSystem = BACKEND.filesystem
SEARCH: ContentSearch = BACKEND.search
PATCHES: PatchEngine = BACKEND.patch_engine
LAUNCHER: SandboxLauncher = BACKEND.launcher


def workspace(root: Path) -> WorkspaceRef:
    return WorkspaceRef(workspace_id="boxed", root=str(root), environment="linux-container")


def terms(root: Path) -> WorkspaceTerms:
    return WorkspaceTerms(workspace_id="boxed", root=str(root), environment="linux-container", sandbox="off")


async def read(root: Path) -> object:
    return FILES.read_file(ReadFile(workspace=workspace(root), path="a.txt"))


async def find(root: Path) -> object:
    return FILES.find_files(FindFiles(workspace=workspace(root), pattern="**"))


async def grep(root: Path) -> object:
    return await SEARCH.grep_files(GrepFiles(workspace=workspace(root), pattern="a"))


async def patch(root: Path) -> object:
    return await PATCHES.apply_patch(ApplyPatch(workspace=workspace(root), patch="", journal_dir=str(root)))


async def recover(root: Path) -> object:
    return await PATCHES.recover_patches(RecoverPatches(workspace=workspace(root), journal_dir=str(root)))


async def launch(root: Path) -> object:
    return await LAUNCHER.launch(LaunchRequest("proc_1", terms(root), ("touch", "made"), None))


@pytest.mark.covers("ENV-1")
@pytest.mark.parametrize("call", [read, find, grep, patch, recover, launch])
async def test_every_request_is_environment_unavailable_and_touches_nothing(
    tmp_path: Path, call: Callable[[Path], Awaitable[object]]
) -> None:
    (tmp_path / "a.txt").write_text("a")
    with pytest.raises(RunnerError) as caught:
        await call(tmp_path)
    assert caught.value.code is ErrorCode.ENVIRONMENT_UNAVAILABLE
    assert "boxed" in caught.value.message
    assert not caught.value.retryable
    assert os.listdir(tmp_path) == ["a.txt"]


@pytest.mark.covers("ENV-1")
async def test_its_absence_is_reported_as_it_is() -> None:
    await LAUNCHER.start()
    report = await LAUNCHER.report(None)
    assert not report.available
    assert not SEARCH.available
    assert not PATCHES.available
    assert not BACKEND.support.exec_supported
    assert not BACKEND.support.file_read_supported
    FILES.close()
    for port in (SEARCH, PATCHES, LAUNCHER):
        await port.close()
