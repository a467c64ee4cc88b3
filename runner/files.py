"""File requests of one runner: reads and walks in a small thread pool, search through its own program (FS).

Dispatch only: the rules of paths are the adapter's. Called by `runner.service`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from runner.api import (
    ErrorCode,
    FileContent,
    FindFiles,
    FindPage,
    GrepFiles,
    GrepPage,
    ReadFile,
    RunnerError,
    WorkspaceRef,
)
from runner.ports import FileSystem
from runner.shortage import shortage_of, started_pool
from runner.watch import WatchHints
from runner.workspace import Environment, unavailable

FILE_THREADS = 4
"""Hashing and walks run here, so that no large file delays output."""
THREADS_OF_ONE_WORKSPACE = FILE_THREADS // 2
"""So that reads of large files in one workspace leave threads to the others."""
SEARCHES_OF_ONE_WORKSPACE = 1
"""Of the two that its adapter runs at once, each of which may take its whole time bound."""

_Request = TypeVar("_Request")
_Result = TypeVar("_Result")


class Files:
    """One pool for all environments. `watch` is told of each workspace that was read."""

    def __init__(self, watch: WatchHints) -> None:
        self._watch = watch
        self._pool = started_pool(FILE_THREADS, "runner-files")
        self._turns: dict[str, asyncio.Semaphore] = {}
        self._search_turns: dict[str, asyncio.Semaphore] = {}
        self._closed = False

    async def read_file(self, environment: Environment, request: ReadFile) -> FileContent:
        content = await self._in_pool(_filesystem(environment).read_file, request, request.workspace)
        self._watch.touch(request.workspace)
        return content

    async def find_files(self, environment: Environment, request: FindFiles) -> FindPage:
        page = await self._in_pool(_filesystem(environment).find_files, request, request.workspace)
        self._watch.touch(request.workspace)
        return page

    async def grep_files(self, environment: Environment, request: GrepFiles) -> GrepPage:
        if environment.search is None:
            raise unavailable("grep", "install ripgrep (the program rg) beside the runner or on its PATH")
        workspace_id = request.workspace.workspace_id
        turn = self._search_turns.setdefault(workspace_id, asyncio.Semaphore(SEARCHES_OF_ONE_WORKSPACE))
        try:
            async with turn:
                page = await environment.search.grep_files(request)
        except (MemoryError, RuntimeError, OSError) as error:
            raise _told(error) from error
        self._watch.touch(request.workspace)
        return page

    async def close(self) -> None:
        """Waits for the threads: each request they run is bounded by its adapter. Idempotent."""
        self._closed = True
        # shutdown() waits for the threads, so it waits on a thread of its own, not on the loop.
        await asyncio.to_thread(self._pool.shutdown, True, cancel_futures=True)

    async def _in_pool(
        self, call: Callable[[_Request], _Result], request: _Request, workspace: WorkspaceRef
    ) -> _Result:
        """A cancelled request that still waits for a thread never runs; one that runs is left to its end, and keeps
        its workspace's turn until then."""
        loop = asyncio.get_running_loop()
        turn = self._turns.setdefault(workspace.workspace_id, asyncio.Semaphore(THREADS_OF_ONE_WORKSPACE))
        await turn.acquire()
        try:
            if self._closed:
                raise RunnerError(ErrorCode.RUNNER_UNAVAILABLE, "the runner is shutting down; nothing was read")
            job = self._pool.submit(call, request)
        except BaseException:
            turn.release()
            raise
        job.add_done_callback(lambda _: _later(loop, turn.release))
        try:
            return await asyncio.wrap_future(job)
        except (MemoryError, OSError) as error:
            raise _told(error) from error


def _later(loop: asyncio.AbstractEventLoop, act: Callable[[], None]) -> None:
    """From a thread of the pool; a loop that is closed needs nothing any more."""
    try:
        loop.call_soon_threadsafe(act)
    except RuntimeError:
        pass


def _told(error: Exception) -> Exception:
    """A shortage as what it is; any other error, a refusal among them, as it came."""
    name = shortage_of(error)
    if name is None:
        return error
    return RunnerError(
        ErrorCode.FILE_OPERATION_FAILED,
        f"the runner is short of memory, processes or descriptors ({name}), and nothing was read: try again later",
        retryable=True,
        details={"errno": name},
    )


def _filesystem(environment: Environment) -> FileSystem:
    if environment.filesystem is None:
        raise unavailable("file access", "the runner was joined without a file system")
    return environment.filesystem
