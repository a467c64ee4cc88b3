"""A worker that runs out of processes, memory or descriptors: errors for the requests that need them, no other harm.

As an ordinary user, since the kernel does not count root's processes. Each limit is set on the running worker and its
helper from outside, and lifted again.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import resource
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from runner.api import (
    ApplyPatch,
    Describe,
    ErrorCode,
    FindFiles,
    GrepFiles,
    ListProcesses,
    ReadFile,
    RunnerError,
    TerminateProcess,
)
from runner.shortage import shortage_of, started_pool
from tests.runner.real_worker import Session, session

CALL_BOUND_S = 10.0
BIG = 900_000
"""Bytes of a file whose answer takes more memory than is left."""
PATCH = "*** Begin Patch\n*** Add File: new\n+x\n*** End Patch\n"
LIMITS: Mapping[str, int] = {
    "processes": resource.RLIMIT_NPROC,
    "memory": resource.RLIMIT_AS,
    "descriptors": resource.RLIMIT_NOFILE,
    "few descriptors": resource.RLIMIT_NOFILE,
}
MUST_FAIL: Mapping[tuple[str, bool], Sequence[str]] = {
    ("processes", False): ("grep", "patch", "start"),
    ("processes", True): ("start",),
    ("memory", False): ("read",),
    ("memory", True): ("read",),
    ("descriptors", False): ("read", "find", "grep", "patch", "start"),
    ("descriptors", True): ("read", "find", "grep", "start"),
    ("few descriptors", False): ("start",),
    ("few descriptors", True): ("start",),
}
"""Which requests cannot be done, by a worker that never did them and by one that has: the proof that it was short."""
FEW = 2
"""Free descriptors: enough to open a file, too few to start a command."""
CODES: Mapping[str, ErrorCode] = {
    "start": ErrorCode.PROCESS_SPAWN_FAILED,
    "patch": ErrorCode.RUNNER_UNAVAILABLE,
}
"""Where it is one code; a read is either FILE_OPERATION_FAILED or RUNNER_UNAVAILABLE, by where the shortage struck."""

Requests = Mapping[str, Callable[[], Awaitable[Any]]]


def requests(s: Session, journal: str) -> Requests:
    """One of each kind. Starting comes last, since its command runs in the background."""
    runner, here = s.rig.runner, s.rig.ref()
    patch = ApplyPatch(workspace=here, patch=PATCH, check_only=True, journal_dir=journal)
    return {
        "read": lambda: runner.read_file(ReadFile(workspace=here, path="big")),
        "find": lambda: runner.find_files(FindFiles(workspace=here, pattern="*")),
        "grep": lambda: runner.grep_files(GrepFiles(workspace=here, pattern="x")),
        "patch": lambda: runner.apply_patch(patch),
        "describe": lambda: runner.describe(Describe(terms=s.rig.terms())),
        "list": lambda: runner.list_processes(ListProcesses()),
        "start": lambda: s.rig.run("true"),
    }


def shorten(limit: str, pid: int) -> tuple[int, int]:
    """Leaves the process next to nothing of it; the limit before."""
    before = resource.prlimit(pid, LIMITS[limit])
    if limit == "processes":
        left = 1
    elif limit == "memory":
        size_pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
        left = size_pages * resource.getpagesize() + BIG // 2
    elif limit == "descriptors":
        left = 3
    else:
        left = _lowest_free(pid, FEW) + 1
    resource.prlimit(pid, LIMITS[limit], (left, before[1]))
    return before


def _lowest_free(pid: int, count: int) -> int:
    """The number of the last one of `count` descriptors that it may still open: the limit is on the number, not on how
    many are open, so the gaps below the highest one count as free.
    """
    taken = {int(name) for name in os.listdir(f"/proc/{pid}/fd")}
    free = (number for number in itertools.count() if number not in taken)
    return next(itertools.islice(free, count - 1, None))


async def outcomes(asked: Requests) -> dict[str, RunnerError | None]:
    """Name to the error it met. Raises TimeoutError for a request that has no answer."""
    found: dict[str, RunnerError | None] = {}
    for name, ask in asked.items():
        try:
            await asyncio.wait_for(ask(), CALL_BOUND_S)
            found[name] = None
        except RunnerError as error:
            found[name] = error
    return found


async def play(limit: str, warm: bool) -> tuple[dict[str, Any], dict[str, Any], str]:
    """(outcomes while it was short, outcomes afterwards, what another command said meanwhile)."""
    with tempfile.TemporaryDirectory(prefix="cs-") as journal:
        # A sandbox that waits already needs no process and no descriptor more, so none may wait where those are short.
        async with session(*(() if limit == "memory" else ("--prepared-sandboxes", "0"))) as s:
            await asyncio.to_thread(Path(s.rig.root, "big").write_text, "x" * BIG)
            other = await s.rig.start("/bin/cat", terms=s.unlimited())
            asked = requests(s, journal)
            if warm:
                await outcomes(asked)
            pids = [s.worker.child.pid] if limit != "processes" else [s.worker.child.pid, s.helper()]
            before = {pid: await asyncio.to_thread(shorten, limit, pid) for pid in pids}
            short = await outcomes(asked)
            await s.rig.write(other, "still here\n")
            await s.rig.until(other, "still here\n")
            for pid, limits in before.items():
                resource.prlimit(pid, LIMITS[limit], limits)
            after = await outcomes(asked)
            await s.rig.runner.terminate_process(TerminateProcess(process_id=other))
            return _plain(short), _plain(after), (await s.rig.output(other))


def _plain(found: Mapping[str, RunnerError | None]) -> dict[str, Any]:
    """What can be sent between processes."""
    return {name: error and (error.code, error.retryable, error.message) for name, error in found.items()}


@pytest.mark.kernel("namespaces")
@pytest.mark.timeout(120)
@pytest.mark.covers("PROC-8", "PROC-9", "UDS-1")
@pytest.mark.parametrize("warm", [False, True], ids=["never used", "used before"])
@pytest.mark.parametrize("limit", LIMITS)
def test_a_shortage_fails_what_needs_more_and_nothing_else(
    limit: str, warm: bool, as_ordinary_user: Callable[..., Any]
) -> None:
    short, after, other = as_ordinary_user(lambda: asyncio.run(play(limit, warm)), timeout_s=100)
    assert set(MUST_FAIL[limit, warm]) <= {name for name, error in short.items() if error}
    for name, error in short.items():
        if error:
            code, retryable, message = error
            assert retryable, (name, message)
            known = {ErrorCode.FILE_OPERATION_FAILED, ErrorCode.RUNNER_UNAVAILABLE}
            assert code in ({CODES[name]} if name in CODES else known), (name, code, message)
    assert {name: error for name, error in after.items() if error} == {}
    assert other == "still here\n"


# --- threads ----------------------------------------------------------------------------------------------------------
@pytest.mark.covers("PROC-9")
def test_a_started_pool_needs_no_thread_any_more(as_ordinary_user: Callable[..., Any]) -> None:
    def body() -> tuple[list[int], str]:
        started, lazy = started_pool(3, "started"), ThreadPoolExecutor(3)
        resource.setrlimit(resource.RLIMIT_NPROC, (1, resource.getrlimit(resource.RLIMIT_NPROC)[1]))
        with pytest.raises(RuntimeError) as refused:
            lazy.submit(abs, -1)
        with pytest.raises(RuntimeError):
            started_pool(3, "late")
        return [job.result(5) for job in [started.submit(abs, -n) for n in range(9)]], shortage_of(refused.value) or ""

    assert as_ordinary_user(body) == (list(range(9)), "EAGAIN")


@pytest.mark.covers("PROC-9")
def test_a_shortage_is_told_from_other_errors() -> None:
    assert shortage_of(MemoryError()) == "ENOMEM"
    assert shortage_of(OSError(24, "Too many open files")) == "EMFILE"
    for other in (OSError(2, "No such file or directory"), RuntimeError("something else"), OSError("no number")):
        assert shortage_of(other) is None
