"""The database and the ledger on a real disk: durable, private, and true after whatever happened."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.errors import StartFailed
from gateway.store.database import Database, Migration, StoreFailed
from gateway.store.ledger import Ending, EndStatus, KeyTaken, Ledger, RecordedError
from gateway.store.migrations import MIGRATIONS
from runner.api import FileChange

CHANGE = FileChange(path="a", kind="update", before_version="sha256:1", after_version="sha256:2")
APPLIED = Ending("applied", ("a",), (CHANGE,), ({"kind": "fuzzy_match", "line": 3},))
REJECTED = Ending("rejected", error=RecordedError("VERSION_CONFLICT", False, {"actual": {"a": "absent"}}), reason="x")


VALUES = st.recursive(st.none() | st.integers() | st.text(max_size=9), st.lists)


@contextlib.asynccontextmanager
async def ledger(directory: Path) -> AsyncIterator[tuple[Ledger, Database]]:
    database = Database(directory)
    await database.open(MIGRATIONS)
    try:
        yield Ledger(database), database
    finally:
        await database.close()


@pytest.mark.covers("OP-1", "OP-5")
async def test_an_operation_is_minted_finished_and_found_by_id_and_key_after_a_restart(tmp_path: Path) -> None:
    async with ledger(tmp_path) as (book, _):
        await book.mint("op_1", "demo", "k", "digest")
        running = await book.by_id("op_1")
        assert running is not None
        assert running.ending is None
        assert running.answer().model_dump(exclude_none=True).keys() == {
            *("operation_id", "operation_key", "kind", "workspace_id", "created_at", "files", "changes", "events")
        }
        assert await book.finish("op_1", APPLIED)
    async with ledger(tmp_path) as (book, _):
        operation = await book.by_key("demo", "k")
        assert operation is not None
        assert operation == await book.by_id("op_1")
        assert (operation.request_digest, operation.ending) == ("digest", APPLIED)
        answer = operation.answer()
        assert (answer.status, answer.kind, answer.changes) == ("applied", "patch", (CHANGE,))
        assert [event.event for event in answer.events] == ["minted", "finished"]
        assert answer.finished_at is not None
        assert answer.created_at <= answer.finished_at
        assert await book.unfinished() == []
        assert await book.by_id("op_2") is None
        assert await book.by_key("other", "k") is None


@pytest.mark.covers("OP-2")
async def test_a_key_belongs_to_one_operation_of_one_workspace(tmp_path: Path) -> None:
    async with ledger(tmp_path) as (book, _):
        await book.mint("op_1", "demo", "k", "d")
        with pytest.raises(KeyTaken):
            await book.mint("op_2", "demo", "k", "d")
        assert await book.by_id("op_2") is None
        await book.mint("op_3", "other", "k", "d")
        await book.mint("op_4", "demo", None, "d")
        await book.mint("op_5", "demo", None, "d")


@pytest.mark.covers("OP-4", "PATCH-5")
@pytest.mark.parametrize("second", ["applied", "rejected", "failed_rolled_back", "failed_partial", "unknown"])
async def test_an_end_that_is_known_is_never_changed_and_one_in_doubt_can_be(tmp_path: Path, second: EndStatus) -> None:
    async with ledger(tmp_path) as (book, _):
        for name in ("op_known", "op_doubt", "op_closed_unknown"):
            await book.mint(name, "demo", None, "d")
        assert await book.finish("op_known", REJECTED)
        assert not await book.finish("op_known", Ending(second))
        await book.doubt("op_known")
        await book.doubt("op_doubt")
        doubtful = await book.by_id("op_doubt")
        assert doubtful is not None
        assert (doubtful.answer().status, doubtful.finished_at) == ("unknown", None)
        assert [operation.operation_id for operation in await book.unfinished()] == ["op_closed_unknown", "op_doubt"]
        assert await book.finish("op_closed_unknown", Ending("unknown", reason="first"))
        for name in ("op_doubt", "op_closed_unknown"):
            assert await book.finish(name, Ending(second, reason="recovered"))
            closed = await book.by_id(name)
            assert closed is not None
            assert closed.answer().status == second
            assert [(event.event, event.reason) for event in closed.events][1:] == [("finished", "recovered")]
        known = await book.by_id("op_known")
        assert known is not None
        assert known.ending is not None
        assert (known.ending.status, known.ending.error) == ("rejected", REJECTED.error)


@pytest.mark.covers("OP-5")
async def test_the_files_are_private_and_the_settings_are_those_of_a_ledger(tmp_path: Path) -> None:
    async with ledger(tmp_path) as (book, database):
        await book.mint("op_1", "demo", None, "d")
        for name in ("codespace.sqlite", "codespace.sqlite-wal", "codespace.sqlite-shm"):
            assert (tmp_path / name).stat().st_mode & 0o777 == 0o600, name

        def pragmas(connection: sqlite3.Connection) -> list[object]:
            names = ("journal_mode", "synchronous", "secure_delete", "foreign_keys")
            return [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in names]

        assert await database.write(pragmas) == ["wal", 2, 1, 1]
        with pytest.raises(StoreFailed, match="readonly"):
            await database.read(lambda c: c.execute("DELETE FROM operations"))


async def test_a_job_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    async with ledger(tmp_path) as (book, database):

        def half(connection: sqlite3.Connection) -> None:
            connection.execute(
                "INSERT INTO operations (operation_id, workspace_id, request_digest, created_at)"
                " VALUES ('x', 'w', 'd', 't')"
            )
            raise ValueError("half way")

        with pytest.raises(ValueError, match="half way"):
            await database.write(half)
        assert await book.by_id("x") is None
        await book.check_writable()


async def test_a_full_database_fails_the_write_keeps_what_was_there_and_works_again_with_room(tmp_path: Path) -> None:
    async with ledger(tmp_path) as (book, database):
        await book.mint("op_1", "demo", None, "d")
        pages = await database.write(lambda c: c.execute("PRAGMA page_count").fetchone()[0])
        await database.write(lambda c: c.execute(f"PRAGMA max_page_count={pages}").fetchone())

        async def fill() -> None:
            for number in range(200):
                await book.mint(f"op_x{number}", "demo", "k" * 150 + str(number), "d")

        with pytest.raises(StoreFailed, match="full"):
            await fill()
        assert await book.by_id("op_1") is not None
        assert await book.finish("op_1", Ending("rejected"))
        await database.write(lambda c: c.execute("PRAGMA max_page_count=100000").fetchone())
        await book.mint("op_later", "demo", "k" * 199, "d")
        await book.check_writable()


@pytest.mark.parametrize("content", [b"not a database at all" * 100, b"SQLite format 3\0" + b"\xff" * 500])
async def test_a_file_that_is_no_database_is_refused_at_start(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "codespace.sqlite").write_bytes(content)
    database = Database(tmp_path)
    with pytest.raises(StartFailed, match=r"codespace\.sqlite"):
        await database.open(MIGRATIONS)
    await database.close()


async def test_a_link_in_the_database_s_place_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(b"")
    (tmp_path / "codespace.sqlite").symlink_to("elsewhere")
    database = Database(tmp_path)
    with pytest.raises(StartFailed):
        await database.open(MIGRATIONS)
    await database.close()
    assert (tmp_path / "elsewhere").read_bytes() == b""


async def test_migrations_run_once_in_order_and_a_newer_database_is_refused(tmp_path: Path) -> None:
    first = Migration("a", ("CREATE TABLE t (x TEXT) STRICT", "INSERT INTO t VALUES ('kept')"))
    second = Migration("b", ("ALTER TABLE t ADD COLUMN y TEXT",))
    broken = Migration("b", ("ALTER TABLE t ADD COLUMN y TEXT", "no such statement"))
    for migrations, error in (
        ((first,), None),
        ((first, broken), "syntax"),
        ((first, second), None),
        ((first,), "version"),
    ):
        database = Database(tmp_path)
        if error is None:
            await database.open(migrations)
        else:
            with pytest.raises(StartFailed, match=error):
                await database.open(migrations)
        await database.close()
    with contextlib.closing(sqlite3.connect(tmp_path / "codespace.sqlite")) as connection:
        assert connection.execute("SELECT * FROM t").fetchall() == [("kept", None)]
        assert connection.execute("SELECT name FROM schema_migrations").fetchall() == [("a",), ("b",)]


async def test_closing_twice_is_fine_and_then_nothing_works(tmp_path: Path) -> None:
    database = Database(tmp_path)
    await database.open(MIGRATIONS)
    await database.close()
    await database.close()
    with pytest.raises(StoreFailed, match="closed"):
        await database.write(lambda c: None)
    with pytest.raises(StoreFailed, match="closed"):
        await database.read(lambda c: None)


KILLED = """
import asyncio, sys
from pathlib import Path
from gateway.store.database import Database
from gateway.store.ledger import Ending, Ledger
from gateway.store.migrations import MIGRATIONS

async def main():
    database = Database(Path(sys.argv[1]))
    await database.open(MIGRATIONS)
    book, number = Ledger(database), 0
    while True:
        number += 1
        await book.mint(f"op_{number:06}", "demo", f"k{number}", "d")
        print(f"minted {number}", flush=True)
        await book.finish(f"op_{number:06}", Ending("applied"))
        print(f"finished {number}", flush=True)

asyncio.run(main())
"""


@pytest.mark.covers("OP-5")
async def test_what_was_told_durable_is_there_after_kill_9(tmp_path: Path) -> None:
    told: list[str] = []
    for stop_after in (1, 2, 7):
        (tmp_path / str(stop_after)).mkdir()
        command = [sys.executable, "-c", KILLED, str(tmp_path / str(stop_after))]
        writer = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[3])
        assert writer.stdout is not None
        told = [(await asyncio.wait_for(writer.stdout.readline(), 15)).decode().strip() for _ in range(stop_after)]
        os.kill(writer.pid, signal.SIGKILL)
        rest = (await writer.communicate())[0].decode().split("\n")
        told += [line for line in rest if line]
        async with ledger(tmp_path / str(stop_after)) as (book, _):
            for line in told:
                what, number = line.split()
                operation = await book.by_id(f"op_{int(number):06}")
                assert operation is not None, line
                assert what == "minted" or operation.finished_at is not None, line
            assert len(await book.unfinished()) <= 1


@pytest.mark.covers("OP-5")
@given(
    details=st.dictionaries(
        st.text(max_size=5), st.recursive(st.none() | st.integers() | st.text(max_size=9), st.lists)
    )
)
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_details_come_back_as_they_were(tmp_path_factory: pytest.TempPathFactory, details: dict[str, object]) -> None:
    async def body() -> None:
        async with ledger(tmp_path_factory.mktemp("db")) as (book, _):
            await book.mint("op_1", "demo", None, "d")
            await book.finish("op_1", Ending("rejected", error=RecordedError("INVALID_PATCH", False, details)))
            operation = await book.by_id("op_1")
            assert operation is not None
            assert operation.ending is not None
            assert operation.ending.error == RecordedError("INVALID_PATCH", False, details)

    asyncio.run(body())


async def test_details_beyond_the_bound_keep_reason_and_status(tmp_path: Path) -> None:
    async with ledger(tmp_path) as (book, _):
        await book.mint("op_1", "demo", None, "d")
        details = {"reason": "r", "status": "rejected", "actual": "x" * 70_000}
        await book.finish("op_1", Ending("rejected", error=RecordedError("VERSION_CONFLICT", False, details)))
        operation = await book.by_id("op_1")
        assert operation is not None
        assert operation.ending is not None
        assert operation.ending.error == RecordedError("VERSION_CONFLICT", False, {"reason": "r", "status": "rejected"})
