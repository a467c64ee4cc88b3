"""File requests of one runner: reads and walks in a small thread pool, search through its own program (FS).

Dispatch only: the rules of paths are the adapter's. Called by `runner.service`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from runner.api import FileContent, FindFiles, FindPage, GrepFiles, GrepPage, ReadFile
from runner.ports import ContentSearch, FileSystem
from runner.watch import WatchHints
from runner.workspace import require_environment, unavailable

FILE_THREADS = 4
"""Hashing and walks run here, so that no large file delays output."""

_Request = TypeVar("_Request")
_Result = TypeVar("_Result")


class Files:
    """`filesystem` or `search` None: this runner has none, and says so on each request."""

    def __init__(self, filesystem: FileSystem | None, search: ContentSearch | None, watch: WatchHints) -> None:
        self._filesystem, self._search, self._watch = filesystem, search, watch
        self._pool = ThreadPoolExecutor(FILE_THREADS, thread_name_prefix="runner-files")

    @property
    def read_available(self) -> bool:
        return self._filesystem is not None

    @property
    def grep_available(self) -> bool:
        return self._search is not None and self._search.available

    async def read_file(self, request: ReadFile) -> FileContent:
        require_environment(request.workspace)
        if self._filesystem is None:
            raise unavailable("file access", "the runner was joined without a file system")
        self._watch.touch(request.workspace)
        return await self._in_pool(self._filesystem.read_file, request)

    async def find_files(self, request: FindFiles) -> FindPage:
        require_environment(request.workspace)
        if self._filesystem is None:
            raise unavailable("file access", "the runner was joined without a file system")
        self._watch.touch(request.workspace)
        return await self._in_pool(self._filesystem.find_files, request)

    async def grep_files(self, request: GrepFiles) -> GrepPage:
        require_environment(request.workspace)
        if self._search is None or not self._search.available:
            raise unavailable("grep", "install ripgrep (the program rg) beside the runner or on its PATH")
        self._watch.touch(request.workspace)
        return await self._search.grep_files(request)

    async def close(self) -> None:
        """Waits for the threads: each request they run is bounded by its adapter. Idempotent."""
        if self._search is not None:
            await self._search.close()
        # shutdown() waits for the threads, so it waits on a thread of its own, not on the loop.
        await asyncio.to_thread(self._pool.shutdown, True, cancel_futures=True)
        if self._filesystem is not None:
            self._filesystem.close()

    async def _in_pool(self, call: Callable[[_Request], _Result], request: _Request) -> _Result:
        """A cancelled request that still waits for a thread never runs; one that runs is left to its end."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, call, request)
