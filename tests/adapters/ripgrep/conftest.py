"""A workspace on the real disk and the search adapter with the real program."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from adapters.ripgrep.program import find_program
from adapters.ripgrep.search import RipgrepSearch
from runner.api import GrepFiles, GrepPage, WorkspaceRef

MakeSearch = Callable[..., RipgrepSearch]


@dataclass
class Searched:
    """A workspace and the adapter bound to it. `grep` takes the request's fields."""

    root: Path
    outside: Path
    search: RipgrepSearch

    @property
    def workspace(self) -> WorkspaceRef:
        return WorkspaceRef(workspace_id="demo", root=str(self.root))

    def put(self, path: str, content: str | bytes) -> Path:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content.encode() if isinstance(content, str) else content)
        return target

    async def grep(self, pattern: str, **fields: Any) -> GrepPage:
        request = GrepFiles(workspace=self.workspace, pattern=pattern, **fields)
        return await asyncio.wait_for(self.search.grep_files(request), 15)

    async def hits(self, pattern: str, **fields: Any) -> list[tuple[str, int]]:
        page = await self.grep(pattern, **fields)
        assert not page.truncated
        assert page.unreadable is None
        return [(match.path, match.line) for match in page.matches]

    async def pages(self, pattern: str, **fields: Any) -> list[GrepPage]:
        """All pages, following cursors; bounded."""
        found: list[GrepPage] = []
        cursor = None
        for _ in range(500):
            page = await self.grep(pattern, cursor=cursor, **fields)
            assert page.truncated == (page.next_cursor is not None)
            found.append(page)
            cursor = page.next_cursor
            if cursor is None:
                return found
        raise AssertionError("the cursor does not end")


@pytest.fixture
def rg() -> str:
    program = find_program()
    if program is None:
        pytest.skip("rg is not installed here")
    return program


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """A root, and a folder outside of it."""
    root, outside = tmp_path.resolve() / "root", tmp_path.resolve() / "outside"
    for folder in (root, outside):
        folder.mkdir()
    (outside / "secret.txt").write_text("needle SECRET\n")
    return root, outside


@pytest.fixture
async def searched(folders: tuple[Path, Path], rg: str) -> AsyncIterator[Searched]:
    case = Searched(*folders, RipgrepSearch(program=rg))
    yield case
    await case.search.close()


@pytest.fixture
async def make_search(rg: str) -> AsyncIterator[MakeSearch]:
    """Adapters with other bounds; all are closed at the end."""
    made: list[RipgrepSearch] = []

    def make(**options: Any) -> RipgrepSearch:
        made.append(RipgrepSearch(**{"program": rg, **options}))
        return made[-1]

    yield make
    for search in made:
        await search.close()


@pytest.fixture
def program_script(tmp_path: Path, rg: str) -> Callable[[str], str]:
    """A program in rg's place: a shell script that may look at its input as $text, and else becomes rg."""

    def write(body: str) -> str:
        path = tmp_path / "rg-double"
        path.write_text(
            "#!/bin/sh\nexec 9<&0\nfor last; do :; done\n"
            'case $last in -) text=$(tr -d "\\0" <&9);; *) text=$(tr -d "\\0" <"$last");; esac\n'
            f'{body}\nprintf "%s\\n" "$text" | {rg} "$@"\n'
        )
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return str(path)

    return write
