"""Reading, finding and searching beside the ordinary programs: `cat`, `find`, `rg`, on the same files.

Ours are the runner's adapters as its service calls them, in a thread, up to the answer's object. The programs are timed
with their start, since that is what a caller would pay instead. All caches are warm. A quick
run has a tenth of the files.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from adapters.filesystem.openat_filesystem import OpenatFileSystem
from adapters.ripgrep.program import find_program
from adapters.ripgrep.search import RipgrepSearch
from benchmarks.measure import Bound, Contender, Options, Table, interleave
from runner.api import READ_LIMIT_BYTES, FindFiles, GrepFiles, ReadFile, WorkspaceRef

TITLE = "files"
FOLDERS = 2_000
FILES_EACH = 50
SAMPLES = 30
TEXT = "def some_function(argument):\n    return argument + 1\n" * 8
"""About 400 bytes: small, as most source files of a dependency tree are."""


@contextmanager
def tree(folders: int) -> Iterator[WorkspaceRef]:
    """A workspace of `folders` x FILES_EACH files, one in ten a .py, three levels deep."""
    base = Path(tempfile.mkdtemp(prefix="codespace-bench-", dir="/var/tmp"))
    try:
        for number in range(folders):
            folder = base / f"package{number % 40}" / f"module{number // 40}"
            folder.mkdir(parents=True)
            for index in range(FILES_EACH):
                (folder / f"file{index}.{'txt' if index % 10 else 'py'}").write_text(TEXT)
        (base / "rare.txt").write_text("needle\n")
        (base / "large.txt").write_bytes(b"0123456789abcde\n" * (READ_LIMIT_BYTES // 16))
        yield WorkspaceRef(workspace_id="bench", root=str(base))
    finally:
        shutil.rmtree(base)


def program(*argv: str) -> Contender:
    """Runs a program to its end and throws its output away."""

    def run() -> None:
        subprocess.run(argv, stdout=subprocess.DEVNULL, check=False)

    return Contender(os.path.basename(argv[0]), lambda: timed(run))


async def timed(call: Callable[[], None]) -> float:
    """Milliseconds of a blocking call, in a thread."""

    def run() -> float:
        began = time.perf_counter()
        call()
        return (time.perf_counter() - began) * 1000

    return await asyncio.to_thread(run)


async def find_table(files: OpenatFileSystem, workspace: WorkspaceRef, options: Options) -> Table:
    def all_pages() -> None:
        cursor = None
        while True:
            page = files.find_files(FindFiles(workspace=workspace, pattern="**/*.py", limit=1000, cursor=cursor))
            cursor = page.next_cursor
            if cursor is None:
                return

    def first_page() -> None:
        files.find_files(FindFiles(workspace=workspace, pattern="**/*.py"))

    matches = options.samples(FOLDERS) * FILES_EACH // 10
    contenders = [
        program("find", workspace.root, "-name", "*.py"),
        Contender("ours, every page", lambda: timed(all_pages)),
        Contender("ours, first page", lambda: timed(first_page)),
    ]
    return Table(
        f"find **/*.py in {options.samples(FOLDERS) * FILES_EACH} files",
        "ms",
        await interleave(contenders, options.samples(SAMPLES)),
        [Bound("ours, every page", "find", 3), Bound("ours, first page", "find")],
        {"matches": matches, "pages": -(-matches // 1000)},
    )


async def read_table(files: OpenatFileSystem, workspace: WorkspaceRef, options: Options) -> Table:
    request = ReadFile(workspace=workspace, path="large.txt")

    def read() -> None:
        assert files.read_file(request).size == READ_LIMIT_BYTES

    contenders = [program("cat", f"{workspace.root}/large.txt"), Contender("ours", lambda: timed(read))]
    samples = await interleave(contenders, options.samples(SAMPLES))
    return Table("read of 1 MiB, with its version", "ms", samples, [Bound("ours", "cat")])


async def grep_table(search: RipgrepSearch, rg: str, workspace: WorkspaceRef, options: Options) -> Table:
    async def grep(pattern: str, matches: int) -> float:
        began = time.perf_counter()
        page = await search.grep_files(GrepFiles(workspace=workspace, pattern=pattern))
        assert len(page.matches) == matches
        return (time.perf_counter() - began) * 1000

    contenders = [
        program(rg, "--no-config", "--hidden", "--no-ignore", "-n", "needle", workspace.root),
        Contender("ours, whole tree", lambda: grep("needle", 1)),
        Contender("ours, a full page", lambda: grep("argument", 200)),
    ]
    samples = await interleave(contenders, options.samples(SAMPLES))
    bounds = [Bound("ours, whole tree", "rg"), Bound("ours, a full page", "rg")]
    title = f"grep over {options.samples(FOLDERS // 2) * FILES_EACH} files"
    return Table(title, "ms", samples, bounds)


async def measure(options: Options) -> list[Table]:
    """Raises `RuntimeError` where rg is not installed."""
    rg = find_program()
    if rg is None:
        raise RuntimeError("the files benchmark needs rg: install ripgrep")
    files, search = OpenatFileSystem(), RipgrepSearch(program=rg)
    tables = []
    try:
        with tree(options.samples(FOLDERS)) as workspace:
            tables += [await find_table(files, workspace, options), await read_table(files, workspace, options)]
        with tree(options.samples(FOLDERS // 2)) as workspace:
            tables.append(await grep_table(search, rg, workspace, options))
    finally:
        files.close()
        await search.close()
    return tables
