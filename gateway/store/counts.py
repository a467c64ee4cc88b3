"""How many rows each table has in each state, kept by triggers: telling costs the same however long the past is.

Refuses to know: what a state means. Called by the application, for metrics.
"""

from __future__ import annotations

import sqlite3

from gateway.store.database import Database

OPEN_OPERATION = "running"
"""What the counts call an operation that has no status yet."""
COUNTED = {
    "operations": ("operations", f"coalesce({{row}}.status, '{OPEN_OPERATION}')"),
    "holds": ("approvals", "{row}.state"),
    "works": ("works", "{row}.state"),
    "intents": ("intents", "{row}.state"),
}
"""Name of the count: its table, and the state of a row. Of a released migration, so no entry is ever changed."""


def counting(name: str) -> tuple[str, ...]:
    """The statements that begin a count: what is there now, and three triggers."""
    table, state = COUNTED[name]
    one_more = (
        f"INSERT INTO state_counts VALUES ('{name}', {state.format(row='NEW')}, 1)"
        " ON CONFLICT (name, state) DO UPDATE SET count = count + 1;"
    )
    one_less = f"UPDATE state_counts SET count = count - 1 WHERE name = '{name}' AND state = {state.format(row='OLD')};"
    column = "status" if table == "operations" else "state"
    return (
        f"INSERT INTO state_counts SELECT '{name}', {state.format(row=table)}, count(*) FROM {table} GROUP BY 2",
        f"CREATE TRIGGER count_new_{name} AFTER INSERT ON {table} BEGIN {one_more} END",
        f"CREATE TRIGGER count_gone_{name} AFTER DELETE ON {table} BEGIN {one_less} END",
        f"CREATE TRIGGER count_changed_{name} AFTER UPDATE OF {column} ON {table} BEGIN {one_less} {one_more} END",
    )


async def state_counts(database: Database) -> dict[tuple[str, str], int]:
    """Rows by (name of the count, state), without states that nothing is in. Raises `StoreFailed`."""

    def job(connection: sqlite3.Connection) -> dict[tuple[str, str], int]:
        rows = connection.execute("SELECT name, state, count FROM state_counts WHERE count > 0").fetchall()
        return {(row["name"], row["state"]): row["count"] for row in rows}

    return await database.read(job)
