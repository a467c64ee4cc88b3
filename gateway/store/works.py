"""Works and the instructions in their queues (WORK-1 to WORK-3). Each method is one transaction, durable on return.

The rules are `gateway.steering`'s; here they meet the rows. Refuses to know: policy, processes, HTTP, tools. Used by
`gateway.use_cases.works`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Literal

from gateway import steering
from gateway.answers import FinishAnswer, IntentAnswer, IntentOutline, SteerItem, SteerStatus, WorkListed
from gateway.errors import Code, ToolError
from gateway.steering import Delivery, IntentKind, IntentStep, WorkState
from gateway.store.database import Database, timestamp
from gateway.store.work_rows import (
    Row,
    add_intent,
    bump_queue,
    check_room,
    find_intent,
    find_work,
    front,
    intent_answer,
    move,
    queue_of,
    set_work_state,
    work_listed,
)

MAX_LISTED = 1_000


class WorkStore:
    """Every method may raise `StoreFailed`, and `ToolError` WORK_NOT_FOUND or INTENT_NOT_FOUND for an unknown id."""

    def __init__(self, database: Database) -> None:
        self._database = database

    # --- the agent's side ---------------------------------------------------------------------------------------------
    async def open(self, work_id: str, workspace_id: str, title: str | None) -> None:
        """A new work, to which the instructions come that waited for the workspace's next one."""

        def job(connection: sqlite3.Connection) -> None:
            connection.execute(
                "INSERT INTO works (work_id, workspace_id, title, state, created_at) VALUES (?, ?, ?, 'active', ?)",
                (work_id, workspace_id, title, timestamp()),
            )
            waiting = connection.execute(
                "SELECT intent_id FROM intents WHERE workspace_id = ? AND delivery = 'next_work' AND carried = 0"
                " AND state = 'queued' ORDER BY intent_id",
                (workspace_id,),
            ).fetchall()
            for position, row in enumerate(waiting, 1):
                connection.execute(
                    "UPDATE intents SET work_id = ?, carried = 1, position = ?, updated_at = ? WHERE intent_id = ?",
                    (work_id, position, timestamp(), row["intent_id"]),
                )
            if waiting:
                bump_queue(connection, work_id)

        await self._database.write(job)

    async def status(self, work_id: str) -> SteerStatus:
        def job(connection: sqlite3.Connection) -> SteerStatus:
            work = find_work(connection, work_id)
            counts = steering.count(work["state"], queue_of(connection, work_id))
            return SteerStatus(
                work_id=work_id,
                state=work["state"],
                queued=counts.queued,
                claimed=counts.claimed,
                claimable_now=counts.claimable_now,
                queue_revision=work["queue_revision"],
                claimed_intent_ids=counts.claimed_intent_ids or None,
            )

        return await self._database.read(job)

    async def workspace_of(self, work_id: str) -> str:
        return await self._database.read(lambda c: str(find_work(c, work_id)["workspace_id"]))

    async def workspace_of_intent(self, intent_id: str) -> str:
        return await self._database.read(lambda c: str(find_intent(c, intent_id)["workspace_id"]))

    async def claim_next(self, work_id: str) -> SteerItem | None:
        """The first that can be claimed now. Raises `ToolError` WORK_CLOSED."""

        def job(connection: sqlite3.Connection) -> SteerItem | None:
            work = _open_work(connection, work_id)
            for intent in queue_of(connection, work_id):
                if steering.claimable(work["state"], intent):
                    row = move(connection, find_intent(connection, intent.intent_id), "claim")
                    return SteerItem(
                        intent_id=row["intent_id"],
                        revision=row["revision"],
                        kind=row["kind"],
                        delivery=row["delivery"],
                        content=row["body"],
                    )
            return None

        return await self._database.write(job)

    async def complete(self, work_id: str, intent_id: str, outcome: Literal["done", "blocked"]) -> None:
        """The same outcome again changes nothing. Raises `ToolError` INTENT_NOT_EDITABLE."""

        def job(connection: sqlite3.Connection) -> None:
            find_work(connection, work_id)
            row = find_intent(connection, intent_id, work_id)
            if row["state"] != outcome:
                move(connection, row, outcome)

        await self._database.write(job)

    async def finish(self, work_id: str) -> FinishAnswer:
        """From active to closing, and to closed where nothing is open for it. Again on a closed one: the same."""

        def job(connection: sqlite3.Connection) -> FinishAnswer:
            state: WorkState = find_work(connection, work_id)["state"]
            if state in steering.OPEN_WORK:
                state = set_work_state(connection, work_id, state, "finish")
                counts = steering.count(state, queue_of(connection, work_id))
                if counts.queued or counts.claimed:
                    return FinishAnswer(
                        work_id=work_id, closed=False, reason="pending_user_input", queued=counts.queued, state=state
                    )
                state = set_work_state(connection, work_id, state, "close")
            reason: Literal["cancelled"] | None = "cancelled" if state == "cancelled" else None
            return FinishAnswer(work_id=work_id, closed=True, reason=reason, queued=0, state=state)

        return await self._database.write(job)

    # --- the user's side ----------------------------------------------------------------------------------------------
    async def works(self, workspace_id: str | None) -> tuple[WorkListed, ...]:
        """Newest first; `workspace_id`: None for all."""

        def job(connection: sqlite3.Connection) -> tuple[WorkListed, ...]:
            rows = connection.execute(
                "SELECT * FROM works WHERE ?1 IS NULL OR workspace_id = ?1 ORDER BY work_id DESC LIMIT ?2",
                (workspace_id, MAX_LISTED),
            ).fetchall()
            return tuple(work_listed(connection, row) for row in rows)

        return await self._database.read(job)

    async def work(self, work_id: str) -> WorkListed:
        return await self._database.read(lambda c: work_listed(c, find_work(c, work_id)))

    async def intents(self, work_id: str) -> tuple[IntentAnswer, ...]:
        """In order, whatever their state."""

        def job(connection: sqlite3.Connection) -> tuple[IntentAnswer, ...]:
            find_work(connection, work_id)
            rows = connection.execute(
                "SELECT * FROM intents WHERE work_id = ? ORDER BY position, intent_id", (work_id,)
            ).fetchall()
            return tuple(intent_answer(row) for row in rows)

        return await self._database.read(job)

    async def outlines(self, work_id: str, body_chars: int) -> tuple[IntentOutline, ...]:
        """As `intents`, with no more of each body than its first `body_chars` characters."""

        def job(connection: sqlite3.Connection) -> tuple[IntentOutline, ...]:
            find_work(connection, work_id)
            rows = connection.execute(
                "SELECT intent_id, work_id, workspace_id, position, revision, kind, delivery, state,"
                " substr(body, 1, ?) AS body, length(CAST(body AS BLOB)) AS size_bytes"
                " FROM intents WHERE work_id = ? ORDER BY position, intent_id",
                (body_chars, work_id),
            ).fetchall()
            return tuple(IntentOutline(**row) for row in rows)

        return await self._database.read(job)

    async def intent(self, intent_id: str) -> IntentAnswer:
        return await self._database.read(lambda c: intent_answer(find_intent(c, intent_id)))

    async def draft(
        self, intent_id: str, work_id: str, body: str, kind: IntentKind, delivery: Delivery
    ) -> IntentAnswer:
        """At the end of the queue. Raises `ToolError` WORK_CLOSED, unless it is for the next work, and INVALID_ARGUMENT
        where there is no room."""

        def job(connection: sqlite3.Connection) -> IntentAnswer:
            work = find_work(connection, work_id) if delivery == "next_work" else _open_work(connection, work_id)
            if len(queue_of(connection, work_id)) >= steering.MAX_OPEN_INTENTS:
                raise ToolError(
                    Code.INVALID_ARGUMENT,
                    f"work {work_id} has {steering.MAX_OPEN_INTENTS} open instructions: cancel some, or wait",
                    details={"work_id": work_id, "limit": steering.MAX_OPEN_INTENTS},
                )
            added = add_intent(connection, intent_id, work, body, kind, delivery, "draft")
            check_room(connection, added)
            return intent_answer(added)

        return await self._database.write(job)

    async def edit(self, intent_id: str, revision: int, body: str, delivery: Delivery | None) -> IntentAnswer:
        """Raises `ToolError` INTENT_ALREADY_CLAIMED, INTENT_NOT_EDITABLE, INTENT_REVISION_CONFLICT."""
        return await self._change(intent_id, "edit", revision, body, delivery)

    async def queue(self, intent_id: str, revision: int) -> IntentAnswer:
        """As `edit`, and WORK_CLOSED."""
        return await self._change(intent_id, "queue", revision, None, None)

    async def cancel(self, intent_id: str, revision: int | None) -> IntentAnswer:
        """Again on a cancelled one: nothing. Raises `ToolError` INTENT_ALREADY_CLAIMED, INTENT_NOT_EDITABLE, and
        INTENT_REVISION_CONFLICT unless `revision` is None."""

        def job(connection: sqlite3.Connection) -> IntentAnswer:
            row = find_intent(connection, intent_id)
            if row["state"] == "cancelled":
                return intent_answer(row)
            steering.next_intent_state(intent_id, row["state"], "cancel")
            _check_revision(row, revision)
            return intent_answer(move(connection, row, "cancel"))

        return await self._database.write(job)

    async def reorder(
        self, work_id: str, intent_ids: Sequence[str], queue_revision: int | None
    ) -> tuple[IntentAnswer, ...]:
        """Puts these into this order, in the places that they have now; others keep theirs. Raises `ToolError`
        INTENT_ALREADY_CLAIMED, INTENT_NOT_EDITABLE, INVALID_ARGUMENT (one is named twice), and
        INTENT_REVISION_CONFLICT where the queue is at another revision than the one named."""

        def job(connection: sqlite3.Connection) -> tuple[IntentAnswer, ...]:
            work = find_work(connection, work_id)
            if queue_revision not in (None, work["queue_revision"]):
                raise ToolError(
                    Code.INTENT_REVISION_CONFLICT,
                    f"the queue of work {work_id} is at revision {work['queue_revision']}, not {queue_revision}: "
                    "look at it again",
                    details={"work_id": work_id, "queue_revision": work["queue_revision"]},
                )
            if len(set(intent_ids)) != len(intent_ids):
                raise ToolError(
                    Code.INVALID_ARGUMENT,
                    "intent_ids names one instruction twice: name each once",
                    details={"argument": "intent_ids"},
                )
            rows = [find_intent(connection, intent_id, work_id) for intent_id in intent_ids]
            for row in rows:
                steering.next_intent_state(row["intent_id"], row["state"], "reorder")
            for row, position in zip(rows, sorted(row["position"] for row in rows), strict=True):
                connection.execute(
                    "UPDATE intents SET position = ?, updated_at = ? WHERE intent_id = ?",
                    (position, timestamp(), row["intent_id"]),
                )
            bump_queue(connection, work_id)
            return tuple(intent_answer(find_intent(connection, intent_id)) for intent_id in intent_ids)

        return await self._database.write(job)

    async def notice(self, intent_id: str, work_id: str, reason: str) -> IntentAnswer:
        """A stop notice before everything else, in the place of an earlier one that nobody claimed. Raises `ToolError`
        WORK_CLOSED."""

        def job(connection: sqlite3.Connection) -> IntentAnswer:
            work = _open_work(connection, work_id)
            earlier = connection.execute(
                "SELECT * FROM intents WHERE work_id = ? AND kind = 'stop_notice' AND state = 'queued'", (work_id,)
            ).fetchall()
            for row in earlier:
                move(connection, row, "supersede")
            place = front(connection, work_id)
            added = add_intent(
                connection, intent_id, work, reason, "stop_notice", "next_checkpoint", "queued", position=place
            )
            bump_queue(connection, work_id)
            return intent_answer(added)

        return await self._database.write(job)

    async def cancel_work(self, work_id: str) -> WorkListed:
        """Withdraws all that is open in it, claimed or not. Again on a cancelled one: nothing. Raises `ToolError`
        WORK_CLOSED."""

        def job(connection: sqlite3.Connection) -> WorkListed:
            work = find_work(connection, work_id)
            if work["state"] != "cancelled":
                set_work_state(connection, work_id, work["state"], "cancel")
                for intent in queue_of(connection, work_id):
                    if steering.is_for_this_work(intent.delivery, intent.carried):
                        move(connection, find_intent(connection, intent.intent_id), "withdraw")
            return work_listed(connection, find_work(connection, work_id))

        return await self._database.write(job)

    async def _change(
        self, intent_id: str, step: IntentStep, revision: int, body: str | None, delivery: Delivery | None
    ) -> IntentAnswer:
        def job(connection: sqlite3.Connection) -> IntentAnswer:
            row = find_intent(connection, intent_id)
            after = steering.next_intent_state(intent_id, row["state"], step)
            _check_revision(row, revision)
            chosen: Delivery = delivery or row["delivery"]
            if after == "queued" and steering.is_for_this_work(chosen, bool(row["carried"])):
                _open_work(connection, row["work_id"])
            connection.execute(
                "UPDATE intents SET body = ?, delivery = ?, revision = revision + 1 WHERE intent_id = ?",
                (row["body"] if body is None else body, chosen, intent_id),
            )
            moved = move(connection, row, step)
            if len(moved["body"]) > len(row["body"]) or moved["delivery"] != row["delivery"]:
                check_room(connection, moved)
            return intent_answer(moved)

        return await self._database.write(job)


def _check_revision(row: Row, revision: int | None) -> None:
    """Raises `ToolError` INTENT_REVISION_CONFLICT."""
    if revision not in (None, row["revision"]):
        raise ToolError(
            Code.INTENT_REVISION_CONFLICT,
            f"instruction {row['intent_id']} is at revision {row['revision']}, not {revision}: read it again",
            details={"intent_id": row["intent_id"], "revision": row["revision"]},
        )


def _open_work(connection: sqlite3.Connection, work_id: str) -> Row:
    """Raises `ToolError` WORK_NOT_FOUND, WORK_CLOSED."""
    work = find_work(connection, work_id)
    if work["state"] not in steering.OPEN_WORK:
        raise steering.work_closed(work_id, work["state"])
    return work
