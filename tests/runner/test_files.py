"""File requests in the thread pool: what one workspace does to another's, and what a cancelled request leaves."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from runner.api import (
    EnvironmentSupport,
    FileContent,
    FindFiles,
    FindPage,
    GrepFiles,
    GrepPage,
    ReadFile,
    WorkspaceRef,
)
from runner.files import FILE_THREADS, Files
from runner.watch import WatchHints
from runner.workspace import Environment

BOUND_S = 10


class HeldFileSystem:
    """Reads wait until the test opens the gate; finds answer at once."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.reading = threading.Semaphore(0)
        self.running = 0
        self.most_running = 0
        self._lock = threading.Lock()

    def read_file(self, request: ReadFile) -> FileContent:
        with self._lock:
            self.running += 1
            self.most_running = max(self.most_running, self.running)
        self.reading.release()
        assert self.gate.wait(BOUND_S)
        with self._lock:
            self.running -= 1
        return FileContent(path=request.path, content="", encoding="utf-8", size=0, truncated=False)

    def find_files(self, request: FindFiles) -> FindPage:
        return FindPage(matches=(), truncated=False)

    def close(self) -> None:
        self.gate.set()


@pytest.fixture
def held() -> HeldFileSystem:
    return HeldFileSystem()


@pytest.fixture
async def files(held: HeldFileSystem) -> AsyncIterator[Files]:
    made = Files(WatchHints(None, lambda *_, **__: None))
    yield made
    held.gate.set()
    await made.close()


def environment(held: HeldFileSystem) -> Environment:
    support = EnvironmentSupport(
        kind="host", exec_supported=False, file_read_supported=True, file_write_supported=False
    )
    return Environment(support=support, filesystem=held, search=None, patch_engine=None, launcher=None)


def ref(name: str) -> WorkspaceRef:
    return WorkspaceRef(workspace_id=name, root=f"/nowhere/{name}")


@pytest.mark.covers("FS-1")
async def test_reads_that_take_long_leave_threads_to_another_workspace(files: Files, held: HeldFileSystem) -> None:
    place = environment(held)
    reads = [
        asyncio.create_task(files.read_file(place, ReadFile(workspace=ref("busy"), path="big")))
        for _ in range(2 * FILE_THREADS)
    ]
    assert await asyncio.to_thread(held.reading.acquire, timeout=BOUND_S)
    async with asyncio.timeout(BOUND_S):
        page = await files.find_files(place, FindFiles(workspace=ref("other"), pattern="*"))
    assert page.matches == ()
    held.gate.set()
    async with asyncio.timeout(BOUND_S):
        assert len(await asyncio.gather(*reads)) == 2 * FILE_THREADS
    assert 1 < held.most_running < FILE_THREADS


async def test_a_cancelled_read_keeps_its_turn_until_its_thread_is_free(files: Files, held: HeldFileSystem) -> None:
    place = environment(held)
    for _ in range(FILE_THREADS):
        read = asyncio.create_task(files.read_file(place, ReadFile(workspace=ref("busy"), path="big")))
        await asyncio.sleep(0)
        read.cancel()
        await asyncio.wait({read}, timeout=BOUND_S)
        assert read.cancelled()
    async with asyncio.timeout(BOUND_S):
        await files.find_files(place, FindFiles(workspace=ref("other"), pattern="*"))
    assert held.most_running < FILE_THREADS
    held.gate.set()
    async with asyncio.timeout(BOUND_S):
        await files.read_file(place, ReadFile(workspace=ref("busy"), path="small"))


class HeldSearch:
    """Searches of the workspace `busy` wait for the gate; two run at once."""

    available = True

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.started = asyncio.Event()
        self._places = asyncio.Semaphore(2)

    async def grep_files(self, request: GrepFiles) -> GrepPage:
        async with self._places:
            if request.workspace.workspace_id == "busy":
                self.started.set()
                await self.gate.wait()
        return GrepPage(matches=(), truncated=False)

    async def close(self) -> None:
        self.gate.set()


@pytest.mark.covers("FS-6")
async def test_searches_that_take_long_leave_a_place_to_another_workspace(files: Files, held: HeldFileSystem) -> None:
    search = HeldSearch()
    place = replace(environment(held), search=search)
    busy = [
        asyncio.create_task(files.grep_files(place, GrepFiles(workspace=ref("busy"), pattern="x"))) for _ in range(4)
    ]
    async with asyncio.timeout(BOUND_S):
        await search.started.wait()
        busy.pop().cancel()  # one that waits for its turn takes none along
        assert (await files.grep_files(place, GrepFiles(workspace=ref("other"), pattern="x"))).matches == ()
        search.gate.set()
        assert len(await asyncio.gather(*busy)) == 3
