"""A patch of one file over MCP, applied and durable, beside the empty round trip and beside the disk alone.

Every patch is a real one: it turns the line that the one before wrote. The disk alone is a loop without any of ours:
a new file written and flushed, its directory flushed, one transaction of SQLite with `synchronous=FULL`, on the same
disk. Figures name their client.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

from benchmarks.callers import OFFICIAL, RAW_HTTP, Caller, ignore_client_noise, official_http, raw_http
from benchmarks.mcp import OURS, REFERENCE, calling, timed
from benchmarks.measure import Bound, Contender, Options, Table, interleave
from benchmarks.sdk_server import TOOL as EMPTY
from benchmarks.servers import WORKSPACE_ID, Servers, servers

TITLE = "a patch over MCP"
SAMPLES = 300
PATCH = "ours, one-file patch"
DISK = "the disk alone"
CONTEXT_LINES = 40
MOST = 6


def patching(caller: Caller, root: Path, name: str) -> Callable[[], Awaitable[float]]:
    """A sample: one line of `name` replaced, in the midst of others."""
    lines = [f"    line {number} of a file as it may be" for number in range(CONTEXT_LINES)]
    lines.insert(CONTEXT_LINES // 2, "value = 0")
    path = root / name
    path.write_text("\n".join(lines) + "\n")
    counter = itertools.count()
    before, after = lines[CONTEXT_LINES // 2 - 1], lines[CONTEXT_LINES // 2 + 1]

    async def sample() -> float:
        number = next(counter)
        hunk = f"@@\n {before}\n-value = {number}\n+value = {number + 1}\n {after}\n"
        patch = f"*** Begin Patch\n*** Update File: {name}\n{hunk}*** End Patch\n"
        arguments = {"workspace_id": WORKSPACE_ID, "patch": patch}
        milliseconds = await timed(lambda: caller.call("apply_patch", arguments))
        if f"value = {number + 1}\n" not in path.read_text():
            raise RuntimeError("the patch was told applied and is not in the file")
        return milliseconds

    return sample


@contextmanager
def bare_flushes(directory: Path) -> Iterator[Callable[[], Awaitable[float]]]:
    """A sample: file, directory and transaction made durable, nothing else."""
    directory.mkdir()
    database = sqlite3.connect(directory / "bare.sqlite", isolation_level=None)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("PRAGMA synchronous=FULL")
    database.execute("CREATE TABLE t (n INTEGER PRIMARY KEY, value TEXT)")
    held = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)

    async def flush() -> None:
        file = os.open("new", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=held)
        os.write(file, b"x" * 1500)
        os.fsync(file)
        os.close(file)
        os.rename("new", "old", src_dir_fd=held, dst_dir_fd=held)
        os.fsync(held)
        database.execute("INSERT INTO t (value) VALUES ('x')")

    try:
        yield lambda: timed(flush)
    finally:
        os.close(held)
        database.close()


async def _connect(stack: AsyncExitStack, client: str, path: Path) -> Caller:
    if client == OFFICIAL:
        return await stack.enter_async_context(official_http(path))
    return stack.enter_context(raw_http(path))


async def _tables(found: Servers, options: Options) -> list[Table]:
    with bare_flushes(found.scratch / "bare") as flushes:
        async with AsyncExitStack() as stack:
            contenders = [Contender(DISK, flushes)]
            for client in (OFFICIAL, RAW_HTTP):
                theirs, own = [await _connect(stack, client, path) for path in (found.sdk.unix, found.ours.unix)]
                patch = patching(own, found.root, f"file{len(contenders)}.py")
                contenders += [
                    Contender(f"{client}\n{REFERENCE}", calling(theirs, EMPTY)),
                    Contender(f"{client}\n{OURS}", calling(own, "workspace_info")),
                    Contender(f"{client}\n{PATCH}", patch),
                ]
            samples = await interleave(contenders, options.samples(SAMPLES))
    tables = []
    for client in (OFFICIAL, RAW_HTTP):
        of_client = {name: samples[f"{client}\n{name}"] for name in (REFERENCE, OURS, PATCH)} | {DISK: samples[DISK]}
        bounds = [Bound(PATCH, REFERENCE, MOST), Bound(PATCH, OURS), Bound(PATCH, DISK)]
        tables.append(Table(f"patch of one file over the Unix socket, {client}", "ms", of_client, bounds))
    return tables


async def measure(options: Options) -> list[Table]:
    ignore_client_noise(asyncio.get_running_loop())
    with servers() as found:
        return await _tables(found, options)
