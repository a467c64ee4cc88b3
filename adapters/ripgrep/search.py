"""`runner.ports.ContentSearch` with ripgrep underneath (FS-6), confined on every kernel.

The walk and every open are ours, below the root's held descriptor; `rg` sees open files only. Files come in the order
of their paths, so a page is the same whoever asks, and a cursor is a place in that order. Hidden files are searched;
ignore files count only when asked for (`gitignore`); a file with a NUL byte is binary, and gives no match from the
first buffer that holds one. Joined in `runner.__main__`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from adapters.filesystem.beneath import Method, choose_opener
from adapters.filesystem.cursor import Place, decode_cursor
from adapters.filesystem.glob import Glob
from adapters.filesystem.paths import displayed
from adapters.filesystem.roots import Roots
from adapters.filesystem.tree import UNREADABLE_SHOWN, Entry, TreeWalk
from adapters.ripgrep.batches import MAX_BATCH_FILES, Batch, Batches, held_limit
from adapters.ripgrep.gitignore import GitIgnore
from adapters.ripgrep.output import RawMatch
from adapters.ripgrep.page import Page
from adapters.ripgrep.program import (
    Found,
    ProgramDied,
    Programs,
    Query,
    Stopped,
    check,
    find_program,
    query_for,
    search_batch,
)
from runner.api import ErrorCode, GrepFiles, GrepPage, RunnerError

MAX_ENTRIES = 500_000
"""Directory entries that one page looks at."""
DEADLINE_S = 15.0
"""For one page. What is done by then is given, with a cursor."""
_REQUESTS = 2
_PROGRAMS_EACH = 2


class RipgrepSearch:
    """`program`: path of `rg`; by default the installation's own, else the system's. The other arguments are for tests.

    At most two searches run at once; others wait for their turn.
    """

    def __init__(
        self,
        *,
        program: str | None = None,
        method: Method | None = None,
        max_entries: int = MAX_ENTRIES,
        deadline_s: float = DEADLINE_S,
        max_batch_files: int = MAX_BATCH_FILES,
    ) -> None:
        self._program = program or find_program()
        self._opener = choose_opener(method)
        self._roots = Roots(self._opener)
        self._max_entries = max_entries
        self._deadline_s = deadline_s
        self._max_files = max_batch_files
        self._max_held = held_limit(_REQUESTS * (_PROGRAMS_EACH + 1))
        self._requests = ThreadPoolExecutor(_REQUESTS, "grep")
        self._readers = ThreadPoolExecutor(_REQUESTS * _PROGRAMS_EACH, "rg")
        self._active: set[Programs] = set()

    @property
    def available(self) -> bool:
        """Whether the program was found when this object was made."""
        return self._program is not None

    async def grep_files(self, request: GrepFiles) -> GrepPage:
        """One page of matches. Idempotent; cancelling it ends its programs first.

        Raises `RunnerError`: INVALID_ARGUMENT for a pattern (with rg's own words), glob or cursor that is malformed,
        PATH_ESCAPE for a glob that leaves the root, FILE_OPERATION_FAILED for a root that cannot be listed or a file
        that alone takes longer than the deadline, RUNNER_UNAVAILABLE without the program.
        """
        if self._program is None:
            raise RunnerError(
                ErrorCode.RUNNER_UNAVAILABLE, "grep is not available: rg was not found; install ripgrep on its PATH"
            )
        programs = Programs()
        self._active.add(programs)
        try:
            try:
                job = self._requests.submit(self._grep, self._program, request, programs)
            except BaseException:
                programs.stop()  # as below, where a batch gets no thread
                raise
            done = asyncio.wrap_future(job)
            try:
                return await asyncio.shield(done)
            except asyncio.CancelledError:
                programs.stop()
                if not job.cancel():
                    await asyncio.wait([done])
                raise
        finally:
            self._active.discard(programs)

    async def close(self) -> None:
        """Ends every search and its programs. Idempotent."""
        for programs in list(self._active):
            programs.stop()
        for pool in (self._requests, self._readers):
            await asyncio.to_thread(pool.shutdown, cancel_futures=True)
        self._roots.close()

    # --- in a thread of its own ---------------------------------------------------------------------------------------
    def _grep(self, program: str, request: GrepFiles, programs: Programs) -> GrepPage:
        query = query_for(program, request)
        start = decode_cursor(request.cursor) if request.cursor is not None else None
        glob = Glob("**" if request.glob is None else request.glob)
        try:
            check(programs, query)
            with self._roots.root_fd(request.workspace) as root_fd:
                deadline = time.monotonic() + self._deadline_s

                def past(moment: float) -> bool:
                    if programs.stopped:
                        raise Stopped
                    return time.monotonic() > moment

                walk = TreeWalk(
                    self._opener,
                    root_fd,
                    glob,
                    start,
                    self._max_entries,
                    # Half of the time is left to search what the walk has found.
                    expired=lambda: past(deadline - self._deadline_s / 2),
                    overdue=lambda: past(deadline),
                    rules=GitIgnore() if request.gitignore else None,
                )
                return _Search(self, request, programs, query, walk, root_fd, deadline).run()
        except Stopped:
            raise RunnerError(ErrorCode.RUNNER_UNAVAILABLE, "the search was ended", retryable=True) from None
        except OSError as error:
            raise RunnerError(
                ErrorCode.FILE_OPERATION_FAILED, f"search failed: {error.strerror}; try again", retryable=True
            ) from error
        finally:
            programs.stop()


class _Search:
    """One search while it runs: programs work on the next batches while the page takes the results in order."""

    def __init__(
        self,
        owner: RipgrepSearch,
        request: GrepFiles,
        programs: Programs,
        query: Query,
        walk: TreeWalk,
        root_fd: int,
        deadline: float,
    ) -> None:
        self._request, self._programs, self._query, self._walk = request, programs, query, walk
        self._readers = owner._readers
        self._deadline = deadline
        self._page = Page(request)
        self._files = Batches(
            owner._opener, root_fd, self._entries(), max_files=owner._max_files, max_held=owner._max_held
        )
        self._unreadable = self._files.unreadable
        self._ahead: deque[tuple[Batch, Future[Found]]] = deque()
        self._start = walk.place

    def run(self) -> GrepPage:
        try:
            with contextlib.closing(iter(self._files)) as batches:
                more = self._gather(batches)
        finally:
            self._programs.stop()
            for batch, job in self._ahead:
                if not job.cancel():
                    concurrent.futures.wait([job])
                batch.close()
        unreadable = [*self._walk.unreadable, *map(displayed, self._unreadable)][:UNREADABLE_SHOWN]
        return GrepPage(
            matches=tuple(self._page.matches),
            truncated=more is not None,
            next_cursor=more.encode() if more else None,
            unreadable=tuple(unreadable) or None,
        )

    def _gather(self, batches: Iterator[Batch]) -> Place | None:
        """Fills the page. Returns where the next one begins, None if there is none."""
        done: Place | None = None
        while self._look_ahead(batches):
            batch, job = self._ahead[0]
            try:
                found = job.result(max(0.0, self._deadline - time.monotonic()))
            except concurrent.futures.TimeoutError:
                if done is None:
                    raise self._too_slow(batch) from None
                return done
            except ProgramDied:
                found = self._one_by_one(batch)
            self._unreadable += [batch.paths[file] for file in found.unreadable]
            for match in found.matches:
                if not self._page.add(batch.paths[match.file], match):
                    return self._page.next_place
            done = Place(batch.paths[-1], "after")
            self._ahead.popleft()
            batch.close()
        return self._walk.place if self._walk.exhausted else None

    def _look_ahead(self, batches: Iterator[Batch]) -> bool:
        while len(self._ahead) < _PROGRAMS_EACH:
            batch = next(batches, None)
            if batch is None:
                break
            try:
                job = self._readers.submit(self._search, batch)
            except BaseException:
                # Without a thread for it the job still waits in the pool: it must find the search over.
                self._programs.stop()
                batch.close()
                raise
            self._ahead.append((batch, job))
        return bool(self._ahead)

    def _entries(self) -> Iterator[Entry]:
        for entry in self._walk:
            if self._programs.stopped:
                raise Stopped
            yield entry

    def _search(self, batch: Batch) -> Found:
        skip = None
        if self._start and self._start.edge == "within" and self._start.path in batch.paths:
            skip = batch.paths.index(self._start.path), self._start.line
        return search_batch(self._programs, self._query, batch, self._page.needed, skip)

    def _one_by_one(self, batch: Batch) -> Found:
        """After a program died: the file that ended it is unreadable, the others are searched."""
        matches: list[RawMatch] = []
        unreadable: list[int] = []
        for file in range(len(batch.paths)):
            if time.monotonic() > self._deadline:
                raise self._too_slow(batch)
            small = {file: batch.small[file]} if file in batch.small else {}
            held = {file: batch.held[file]} if file in batch.held else {}
            try:
                found = self._search(Batch(batch.paths, small, held))
            except ProgramDied:
                unreadable.append(file)
            else:
                matches += found.matches
                unreadable += found.unreadable
        return Found(tuple(matches), tuple(unreadable))

    def _too_slow(self, batch: Batch) -> RunnerError:
        path, size = displayed(batch.paths[0]), batch.small_bytes + batch.held_bytes
        return RunnerError(
            ErrorCode.FILE_OPERATION_FAILED,
            f"search did not get through {path!r} and what follows ({size} bytes) in time; "
            "narrow it by glob, or search with a command",
            retryable=True,
            details={"path": path, "size": size},
        )
