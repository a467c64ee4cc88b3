"""Real workspaces for patch tests: made from a case, compared byte for byte, asked through the real engine."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from adapters.patch_helper.engine import PatchHelperEngine
from runner.api import ApplyPatch, PatchApplied, RecoverPatches, RunnerError, WorkspaceRef
from tests.adapters.v4a.memory import content

MEMORY = "/dev/shm"
Snapshot = dict[str, tuple[Any, ...]]


class Workspace:
    """A root and a journal directory beside it, not inside."""

    def __init__(self, directory: Path) -> None:
        self.root = directory / "root"
        self.journal_dir = directory / "journal"
        self.root.mkdir()
        self.ref = WorkspaceRef(workspace_id="demo", root=str(self.root))
        self._count = 0

    def fill(self, case: Mapping[str, Any]) -> None:
        for path, value in case["files"].items():
            self.put(path, content(value))
        for name in case.get("dirs", ()):
            (self.root / name).mkdir(parents=True)
        for name, target in case.get("links", {}).items():
            (self.root / name).symlink_to(target)
        for name, existing in case.get("hard_links", {}).items():
            os.link(self.root / existing, self.root / name)
        for name in case.get("fifos", ()):
            os.mkfifo(self.root / name)
        for path, mode in case.get("modes", {}).items():
            (self.root / path).chmod(int(mode, 8))

    def clear(self) -> None:
        """Empties the root, which stays the same directory."""
        for path in self.root.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()

    def put(self, path: str, data: str | bytes, mode: int | None = None) -> Path:
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data.encode() if isinstance(data, str) else data)
        if mode is not None:
            place.chmod(mode)
        return place

    def files(self) -> dict[str, bytes]:
        """Regular files alone, by relative path."""
        return {path: entry[-1] for path, entry in snapshot(self.root).items() if entry[0] == stat.S_IFREG}

    def request(self, patch: str, **arguments: Any) -> ApplyPatch:
        if not arguments.get("check_only") and "operation_id" not in arguments:
            self._count += 1
            arguments["operation_id"] = f"op_{self._count}"
        return ApplyPatch(workspace=self.ref, patch=patch, journal_dir=str(self.journal_dir), **arguments)

    def recovery(self) -> RecoverPatches:
        return RecoverPatches(workspace=self.ref, journal_dir=str(self.journal_dir))


@contextmanager
def workspace(*, in_memory: bool = False) -> Iterator[Workspace]:
    """`in_memory`: on tmpfs where there is one, for tests of many commits whose fsyncs need not reach a disk."""
    place = MEMORY if in_memory and os.access(MEMORY, os.W_OK) else None
    directory = tempfile.mkdtemp(prefix="codespace-patch-", dir=place)
    try:
        yield Workspace(Path(directory))
    finally:
        shutil.rmtree(directory)


def snapshot(root: Path, *, times: bool = False) -> Snapshot:
    """Every name below `root`: type, mode, owner, links or content; with `times` also when it was modified."""
    found: Snapshot = {}
    for directory, names, files in os.walk(root):
        for name in [".", *names, *files] if directory == str(root) else [*names, *files]:
            path = os.path.join(directory, name)
            status = os.lstat(path)
            kind = stat.S_IFMT(status.st_mode)
            data: Any = None
            if kind == stat.S_IFREG:
                data = Path(path).read_bytes()
            elif kind == stat.S_IFLNK:
                data = os.readlink(path)
            modified = status.st_mtime_ns if times else None
            relative = os.path.relpath(path, root)
            found[relative] = (kind, stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid, modified, data)
    return found


async def outcome(engine: PatchHelperEngine, request: ApplyPatch) -> PatchApplied | RunnerError:
    try:
        return await engine.apply_patch(request)
    except RunnerError as error:
        return error


def patch(*lines: str) -> str:
    return "\n".join(["*** Begin Patch", *lines, "*** End Patch"]) + "\n"


def update(path: str, *lines: str) -> Sequence[str]:
    return (f"*** Update File: {path}", *lines)
