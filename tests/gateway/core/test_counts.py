"""Counts by state: what a full count of the tables would say, whatever was written and however old the database is."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from gateway.store.approvals import ApprovalStore
from gateway.store.counts import COUNTED, state_counts
from gateway.store.database import Database
from gateway.store.ledger import Ending, EndStatus, Ledger
from gateway.store.migrations import MIGRATIONS
from gateway.store.works import WorkStore

pytestmark = pytest.mark.covers("NETIF-3")
ENDS: tuple[EndStatus, ...] = ("applied", "rejected", "failed_rolled_back", "failed_partial", "unknown")


async def counted(database: Database) -> dict[tuple[str, str], int]:
    """The slow way."""

    def job(connection: sqlite3.Connection) -> dict[tuple[str, str], int]:
        found: dict[tuple[str, str], int] = {}
        for name, (table, state) in COUNTED.items():
            query = f"SELECT {state.format(row=table)} AS state, count(*) AS n FROM {table} GROUP BY 1"
            found |= {(name, row["state"]): row["n"] for row in connection.execute(query).fetchall()}
        return found

    return await database.read(job)


async def some_past(database: Database, prefix: str) -> None:
    """Rows in every table and most states, written as the program writes them."""
    ledger, holds, works = Ledger(database), ApprovalStore(database), WorkStore(database)
    for number, status in enumerate(ENDS):
        operation_id = f"op_{prefix}_{number}"
        await ledger.mint(operation_id, "demo", None, "digest")
        await ledger.finish(operation_id, Ending(status))
    await ledger.finish(f"op_{prefix}_{ENDS.index('unknown')}", Ending("applied"))
    await ledger.mint(f"op_{prefix}_open", "demo", None, "digest")
    await ledger.mint(f"op_{prefix}_doubt", "demo", None, "digest")
    await ledger.doubt(f"op_{prefix}_doubt")
    for name in ("a", "b", "c"):
        await holds.open(f"apr_{prefix}_{name}", "exec_command", "demo", f"{prefix} {name}", {})
    await holds.resolve(f"apr_{prefix}_a", "grant")
    await holds.resolve(f"apr_{prefix}_b", "deny")
    for name in ("1", "2"):
        await works.open(f"work_{prefix}_{name}", f"{prefix}-{name}", None)
    await works.notice(f"int_{prefix}", f"work_{prefix}_1", "stop")


async def test_the_counts_are_those_of_the_tables(tmp_path: Path) -> None:
    database = Database(tmp_path)
    await database.open(MIGRATIONS)
    assert await state_counts(database) == {}
    await some_past(database, "x")
    found = await state_counts(database)
    assert found == await counted(database)
    assert found["operations", "applied"] == 2
    assert found["operations", "running"] == 1
    assert found["operations", "unknown"] == 1
    assert {name for name, _ in found} == set(COUNTED)
    await database.write(lambda c: c.execute("DELETE FROM intents").rowcount)
    assert await state_counts(database) == await counted(database)
    await database.close()


async def test_a_database_from_before_is_counted_once_and_goes_on(tmp_path: Path) -> None:
    database = Database(tmp_path)
    before = [migration for migration in MIGRATIONS if migration.name < "0005"]
    await database.open(before)
    await some_past(database, "old")
    await database.close()
    database = Database(tmp_path)
    await database.open(MIGRATIONS)
    assert await state_counts(database) == await counted(database)
    await some_past(database, "new")
    assert await state_counts(database) == await counted(database)
    assert (await state_counts(database))["operations", "applied"] == 4
    await database.close()
