"""The SQLite file: one writer thread, one reader, transactions that are durable when they are told done (OP-5).

WAL with `synchronous=FULL`, so that a commit is on the disk before it is believed; `secure_delete`, so that what is
deleted is gone from the pages. Refuses to know: tables, which are the migrations' and the ledger's. Used by
`gateway.store.*`.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TypeVar

from gateway.errors import StartFailed

T = TypeVar("T")
FILE_NAME = "codespace.sqlite"
BUSY_WAIT_MS = 5_000
"""How long a transaction waits for another program's lock on the file."""
ERASE_WAIT_MS = 250
"""How long an erasure waits for another program that reads the file."""


class StoreFailed(Exception):
    """The transaction did not take place: the disk is full, the file is damaged or gone. Text: what SQLite says."""


@dataclass(frozen=True)
class Migration:
    """One step of the schema. `name` is recorded for ever; `statements` run in one transaction."""

    name: str
    statements: tuple[str, ...]


def timestamp() -> str:
    """Now, UTC, in milliseconds, as it stands in every table: sorts as text."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


class Database:
    """Opened once, closed once. Both threads run one job after the other; a job gets a connection.

    Cancelling a caller does not undo its job. Jobs must not keep their connection.
    """

    def __init__(self, directory: Path, wrote: Callable[[], None] = lambda: None) -> None:
        """`wrote`: called on the event loop after each transaction that was not silent, whoever waited for it."""
        self._path = directory / FILE_NAME
        self._wrote = wrote
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store-writer")
        self._reader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store-reader")
        self._write_connection: sqlite3.Connection | None = None
        self._read_connection: sqlite3.Connection | None = None

    async def open(self, migrations: Sequence[Migration]) -> None:
        """Makes or opens the file, mode 0600, and brings its schema up. Raises `StartFailed`."""
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._writer, self._open_writer, tuple(migrations))
            await loop.run_in_executor(self._reader, self._open_reader)
        except (sqlite3.Error, OSError) as error:
            raise StartFailed(
                f"the database cannot be opened ({error})", str(self._path), "look at the disk, or move the file away"
            ) from None

    async def write(self, job: Callable[[sqlite3.Connection], T], *, silent: bool = False) -> T:
        """Runs `job` in one transaction (BEGIN IMMEDIATE) and returns once it is durable. What it raises, but for
        SQLite's own errors, rolls back and comes through. Raises `StoreFailed`. `silent`: nothing that anybody is
        shown is different."""
        # From the thread itself: a caller that is cancelled would not say it, and the job is done all the same.
        tell = None if silent else partial(asyncio.get_running_loop().call_soon_threadsafe, self._wrote)
        return await _run(self._writer, self._transaction, job, tell)

    async def read(self, job: Callable[[sqlite3.Connection], T]) -> T:
        """Runs `job` on a connection that cannot write; it sees one moment, and every transaction that was told
        done before. Raises `StoreFailed`."""
        return await _run(self._reader, self._query, job)

    async def erase(self) -> bool:
        """Moves the log into the file and empties it, so that what was deleted or overwritten before is in neither.
        False where a reader outside of this program kept it from that: to be tried again. Raises `StoreFailed`."""
        return await _run(self._writer, self._erase)

    async def close(self) -> None:
        """Waits for the jobs, moves the log into the file and closes. Idempotent."""
        await asyncio.to_thread(self._close)

    # --- on the threads -----------------------------------------------------------------------------------------------
    def _open_writer(self, migrations: tuple[Migration, ...]) -> None:
        # SQLite gives -wal and -shm the mode of the file (sqlite.org/src, findCreateFileMode).
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        os.chmod(self._path, 0o600)
        connection = sqlite3.connect(
            self._path, timeout=BUSY_WAIT_MS / 1000, isolation_level=None, check_same_thread=False
        )
        self._write_connection = connection
        connection.row_factory = sqlite3.Row
        mode = connection.execute("PRAGMA journal_mode=WAL").fetchone()[0]
        if mode != "wal":
            raise sqlite3.OperationalError(f"this file system offers no write-ahead log: journal mode is {mode}")
        for pragma in ("synchronous=FULL", "secure_delete=ON", "foreign_keys=ON", "trusted_schema=OFF"):
            connection.execute(f"PRAGMA {pragma}")
        self._migrate(connection, migrations)
        # A predecessor may have been killed between an overwriting transaction and its erasure.
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def _migrate(self, connection: sqlite3.Connection, migrations: tuple[Migration, ...]) -> None:
        connection.execute(
            "CREATE TABLE IF NOT EXISTS schema_migrations (name TEXT PRIMARY KEY, applied_at TEXT NOT NULL) STRICT"
        )
        done = [row["name"] for row in connection.execute("SELECT name FROM schema_migrations ORDER BY rowid")]
        if done != [migration.name for migration in migrations[: len(done)]]:
            raise sqlite3.DatabaseError("it was written by another version of this program")
        for migration in migrations[len(done) :]:
            connection.execute("BEGIN IMMEDIATE")
            try:
                for statement in migration.statements:
                    connection.execute(statement)
                connection.execute("INSERT INTO schema_migrations VALUES (?, ?)", (migration.name, timestamp()))
                connection.execute("COMMIT")
            except BaseException:
                connection.execute("ROLLBACK")
                raise

    def _open_reader(self) -> None:
        connection = sqlite3.connect(
            f"{self._path.as_uri()}?mode=ro", uri=True, isolation_level=None, check_same_thread=False
        )
        connection.row_factory = sqlite3.Row
        self._read_connection = connection

    def _transaction(self, job: Callable[[sqlite3.Connection], T], tell: Callable[[], object] | None) -> T:
        connection = self._write_connection
        if connection is None:
            raise StoreFailed("it is closed")
        try:
            connection.execute("BEGIN IMMEDIATE")
            try:
                result = job(connection)
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:  # SQLite has rolled back by itself after some errors, disk full for one
                    connection.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise StoreFailed(str(error)) from error
        if tell is not None:
            with suppress(RuntimeError):  # the loop has closed, and with it whoever would be told; the job is done
                tell()
        return result

    def _query(self, job: Callable[[sqlite3.Connection], T]) -> T:
        if self._read_connection is None:
            raise StoreFailed("it is closed")
        try:
            self._read_connection.execute("BEGIN")  # all that a job reads is of one moment
            try:
                return job(self._read_connection)
            finally:
                self._read_connection.execute("ROLLBACK")
        except sqlite3.Error as error:
            raise StoreFailed(str(error)) from error

    def _erase(self) -> bool:
        if self._write_connection is None:
            raise StoreFailed("it is closed")
        try:
            # Pages that were freed are zeroed in the file by secure_delete; older copies of them are in the log alone.
            # A reader of ours is done in no time; somebody else's must not hold up every write.
            self._write_connection.execute(f"PRAGMA busy_timeout={ERASE_WAIT_MS}")
            try:
                busy, _, _ = self._write_connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            finally:
                self._write_connection.execute(f"PRAGMA busy_timeout={BUSY_WAIT_MS}")
        except sqlite3.Error as error:
            raise StoreFailed(str(error)) from error
        return not busy

    def _close(self) -> None:
        for executor in (self._reader, self._writer):
            executor.shutdown(wait=True)
        for connection in (self._read_connection, self._write_connection):
            if connection is not None:
                connection.close()
        self._read_connection = self._write_connection = None


def _run(executor: ThreadPoolExecutor, work: Callable[..., T], *arguments: object) -> asyncio.Future[T]:
    """On the executor's thread. Raises `StoreFailed` where it has been shut down."""
    try:
        return asyncio.get_running_loop().run_in_executor(executor, work, *arguments)
    except RuntimeError:
        raise StoreFailed("it is closed") from None
