"""Rows of the tables `works` and `intents`: found, added, moved on. Inside a transaction of `gateway.store.works`.

Refuses to know: who asks for what.
"""

from __future__ import annotations

import sqlite3
from datetime import datetime

from gateway import steering
from gateway.answers import IntentAnswer, WorkListed
from gateway.errors import Code, ToolError
from gateway.steering import Delivery, IntentKind, IntentState, IntentStep, Queued, WorkState, WorkStep
from gateway.store.database import timestamp

Row = sqlite3.Row


def find_work(connection: sqlite3.Connection, work_id: str) -> Row:
    """Raises `ToolError` WORK_NOT_FOUND."""
    row: Row | None = connection.execute("SELECT * FROM works WHERE work_id = ?", (work_id,)).fetchone()
    if row is None:
        raise work_not_found(work_id)
    return row


def work_not_found(work_id: str) -> ToolError:
    return ToolError(
        Code.WORK_NOT_FOUND,
        f"no work {work_id[:80]!r} in a registered workspace: work_open opens one and tells its work_id",
        details={"work_id": work_id[:80]},
    )


def find_intent(connection: sqlite3.Connection, intent_id: str, work_id: str | None = None) -> Row:
    """`work_id`: it has to be in that work's queue. Raises `ToolError` INTENT_NOT_FOUND."""
    row: Row | None = connection.execute("SELECT * FROM intents WHERE intent_id = ?", (intent_id,)).fetchone()
    if row is None or (work_id is not None and row["work_id"] != work_id):
        raise intent_not_found(intent_id, work_id)
    return row


def intent_not_found(intent_id: str, work_id: str | None = None) -> ToolError:
    return ToolError(
        Code.INTENT_NOT_FOUND,
        f"no instruction {intent_id[:80]!r}" + (f" in work {work_id}" if work_id else "") + ": look at the queue",
        details={"intent_id": intent_id[:80]},
    )


def queue_of(connection: sqlite3.Connection, work_id: str) -> list[Queued]:
    """What is open, in order: drafts, queued and claimed ones."""
    rows = connection.execute(
        "SELECT intent_id, state, delivery, carried FROM intents WHERE work_id = ?"
        " AND state IN ('draft', 'queued', 'claimed') ORDER BY position, intent_id",
        (work_id,),
    ).fetchall()
    return [Queued(row["intent_id"], row["state"], row["delivery"], bool(row["carried"])) for row in rows]


def add_intent(
    connection: sqlite3.Connection,
    intent_id: str,
    work: Row,
    body: str,
    kind: IntentKind,
    delivery: Delivery,
    state: IntentState,
    position: int | None = None,
) -> Row:
    """`position`: None for the end."""
    if position is None:
        query = "SELECT coalesce(max(position), 0) + 1 FROM intents WHERE work_id = ?"
        position = connection.execute(query, (work["work_id"],)).fetchone()[0]
    now = timestamp()
    connection.execute(
        "INSERT INTO intents (intent_id, work_id, workspace_id, position, kind, delivery, body, state, created_at,"
        " updated_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (intent_id, work["work_id"], work["workspace_id"], position, kind, delivery, body, state, now, now),
    )
    return find_intent(connection, intent_id)


def check_room(connection: sqlite3.Connection, row: Row) -> None:
    """After an instruction was written, as `row` has it: raises `ToolError` INVALID_ARGUMENT where it makes too much
    text, and the transaction has to be given up."""
    kept = f"SELECT coalesce(sum(length(CAST(body AS BLOB)) + {steering.ROW_BYTES}), 0) FROM intents WHERE "
    own = connection.execute(f"{kept} work_id = ?", (row["work_id"],)).fetchone()[0]
    if own > steering.MAX_WORK_BYTES:
        raise ToolError(
            Code.INVALID_ARGUMENT,
            f"work {row['work_id']} cannot keep more than {steering.MAX_WORK_BYTES} bytes of instructions, old ones "
            "included: shorten it, or write it in another work",
            details={"work_id": row["work_id"], "limit": steering.MAX_WORK_BYTES},
        )
    waits = "workspace_id = ? AND delivery = 'next_work' AND carried = 0 AND state IN ('draft', 'queued')"
    waiting = connection.execute(f"{kept} {waits}", (row["workspace_id"],)).fetchone()[0]
    if row["delivery"] == "next_work" and waiting > steering.MAX_WORK_BYTES // 2:
        raise ToolError(
            Code.INVALID_ARGUMENT,
            f'what waits for the next work of workspace "{row["workspace_id"]}" cannot be more than '
            f"{steering.MAX_WORK_BYTES // 2} bytes: cancel some, or wait until a work is opened",
            details={"workspace_id": row["workspace_id"], "limit": steering.MAX_WORK_BYTES // 2},
        )


def front(connection: sqlite3.Connection, work_id: str) -> int:
    """A position before all others."""
    query = "SELECT coalesce(min(position), 2) - 1 FROM intents WHERE work_id = ?"
    return int(connection.execute(query, (work_id,)).fetchone()[0])


def move(connection: sqlite3.Connection, row: Row, step: IntentStep) -> Row:
    """One step of the table, for the row as it was read in this transaction. Raises `ToolError`."""
    after = steering.next_intent_state(row["intent_id"], row["state"], step)
    connection.execute(
        "UPDATE intents SET state = ?, updated_at = ? WHERE intent_id = ?", (after, timestamp(), row["intent_id"])
    )
    if "queued" in (row["state"], after) or "claimed" in (row["state"], after):
        bump_queue(connection, row["work_id"])
    return find_intent(connection, row["intent_id"])


def bump_queue(connection: sqlite3.Connection, work_id: str) -> None:
    """Whoever compares `queue_revision` sees that something in the queue is different."""
    connection.execute("UPDATE works SET queue_revision = queue_revision + 1 WHERE work_id = ?", (work_id,))


def set_work_state(connection: sqlite3.Connection, work_id: str, state: WorkState, step: WorkStep) -> WorkState:
    """Raises `ToolError` WORK_CLOSED."""
    after = steering.next_work_state(work_id, state, step)
    closed_at = None if after in steering.OPEN_WORK else timestamp()
    connection.execute("UPDATE works SET state = ?, closed_at = ? WHERE work_id = ?", (after, closed_at, work_id))
    return after


def intent_answer(row: Row) -> IntentAnswer:
    return IntentAnswer(
        intent_id=row["intent_id"],
        work_id=row["work_id"],
        workspace_id=row["workspace_id"],
        position=row["position"],
        revision=row["revision"],
        kind=row["kind"],
        delivery=row["delivery"],
        body=row["body"],
        state=row["state"],
    )


def work_listed(connection: sqlite3.Connection, row: Row) -> WorkListed:
    counts = steering.count(row["state"], queue_of(connection, row["work_id"]))
    return WorkListed(
        work_id=row["work_id"],
        workspace_id=row["workspace_id"],
        title=row["title"],
        state=row["state"],
        queued=counts.queued,
        claimed=counts.claimed,
        claimable_now=counts.claimable_now,
        queue_revision=row["queue_revision"],
        created_at=datetime.fromisoformat(row["created_at"]),
        closed_at=None if row["closed_at"] is None else datetime.fromisoformat(row["closed_at"]),
    )
