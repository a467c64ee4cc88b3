"""A workspace on the real disk, and the file adapter with each of its two ways to open."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from adapters.filesystem.beneath import Method
from adapters.filesystem.openat_filesystem import OpenatFileSystem
from runner.api import FileContent, FindFiles, FindPage, ReadFile, WorkspaceRef


@dataclass(frozen=True)
class Files:
    """The adapter bound to one workspace, and the disk beneath it."""

    adapter: OpenatFileSystem
    root: Path
    outside: Path

    @property
    def workspace(self) -> WorkspaceRef:
        return WorkspaceRef(workspace_id="demo", root=str(self.root))

    def put(self, path: str, content: str | bytes = "") -> Path:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content.encode() if isinstance(content, str) else content)
        return target

    def read(self, path: str, *, offset: int | None = None, limit: int | None = None) -> FileContent:
        return self.adapter.read_file(ReadFile(workspace=self.workspace, path=path, offset=offset, limit=limit))

    def find(self, pattern: str, *, limit: int = 200, cursor: str | None = None) -> FindPage:
        return self.adapter.find_files(FindFiles(workspace=self.workspace, pattern=pattern, limit=limit, cursor=cursor))

    def find_paths(self, pattern: str) -> list[str]:
        page = self.find(pattern)
        assert not page.truncated
        return [match.path for match in page.matches]


@pytest.fixture(params=["openat2", "walk"])
def method(request: pytest.FixtureRequest) -> Method:
    chosen: Method = request.param
    return chosen


@pytest.fixture
def files(tmp_path: Path, method: Method) -> Iterator[Files]:
    root, outside = tmp_path.resolve() / "root", tmp_path.resolve() / "outside"
    root.mkdir()
    outside.mkdir()
    (outside / "secret.txt").write_text("SECRET needle\n")
    adapter = OpenatFileSystem(method=method)
    yield Files(adapter, root, outside)
    adapter.close()
