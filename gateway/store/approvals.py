"""The holds: every call that waited for an approval, from its opening to its result (APPR-3, APPR-6).

    (none) ── open ──► pending ── grant ──► granted ── claim ──► resuming ── consume ──► consumed
                          └── deny ──► denied    ▲───── unclaim ────┘

`NEXT` is the whole machine; each step is one statement that names the state it leaves, so of two callers one wins.
`consumed` and `denied` are the end: the request is overwritten in the same transaction, and its digest stays. Refuses
to know: policy, how a call is carried out. Used by `gateway.use_cases.hold` and `gateway.use_cases.approvals`.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from gateway.store.database import Database, timestamp

State = Literal["pending", "granted", "denied", "resuming", "consumed"]
HeldTool = Literal["apply_patch", "exec_command"]
Step = Literal["grant", "deny", "claim", "unclaim", "consume"]

NEXT: Mapping[Step, tuple[State, State]] = {
    "grant": ("pending", "granted"),
    "deny": ("pending", "denied"),
    "claim": ("granted", "resuming"),
    "unclaim": ("resuming", "granted"),
    "consume": ("resuming", "consumed"),
}
"""Step to the state it leaves and the state it reaches."""

TERMINAL: frozenset[State] = frozenset({"denied", "consumed"})
MAX_LIVE_HOLDS = 1_000
MAX_LIVE_BYTES = 256 * 1024 * 1024
"""Requests of live holds, of one workspace and of all: what callers may leave on the disk."""


@dataclass(frozen=True)
class Outcome:
    """What a resume came to: JSON values. Either `answer`, the tool's result, or `code` with `details`, an error's,
    without text of the request. `operation_id`: of the patch that the error is about."""

    answer: dict[str, Any] | None = None
    code: str | None = None
    details: Mapping[str, Any] | None = None
    operation_id: str | None = None

    def to_text(self) -> str:
        if self.answer is not None:
            return json.dumps({"answer": self.answer})
        return json.dumps({"code": self.code, "details": dict(self.details or {}), "operation_id": self.operation_id})


@dataclass(frozen=True)
class Hold:
    """One row. `request`: `{"arguments", "request_key"?}` while it is live. `operation_id`: of the patch that the
    present resume mints; planned, so it need not be in the ledger."""

    approval_id: str
    tool: HeldTool
    workspace_id: str
    request_digest: str
    request: dict[str, Any] | None
    state: State
    operation_id: str | None
    outcome: Outcome | None
    created_at: str
    resolved_at: str | None
    finished_at: str | None


class TooManyHolds(Exception):
    """The live holds take what they may: some have to be resolved first."""


class ApprovalStore:
    """Every method may raise `StoreFailed`. A step is durable on return."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def open(
        self, approval_id: str, tool: HeldTool, workspace_id: str, digest: str, request: Mapping[str, Any]
    ) -> Hold:
        """The live hold of this request, or a new one under `approval_id`. Raises `TooManyHolds`."""

        def job(connection: sqlite3.Connection) -> Hold:
            text = json.dumps(request)
            live = "state IN ('pending', 'granted', 'resuming')"
            found = _one(connection, f"request_digest = ? AND {live}", (digest,))
            if found is not None:
                return found
            size = connection.execute(f"SELECT coalesce(sum(request_bytes), 0) FROM approvals WHERE {live}").fetchone()
            own = f"SELECT count(*) FROM approvals WHERE workspace_id = ? AND {live}"
            count = connection.execute(own, (workspace_id,)).fetchone()
            if count[0] >= MAX_LIVE_HOLDS or size[0] + len(text) > MAX_LIVE_BYTES:
                raise TooManyHolds
            connection.execute(
                "INSERT INTO approvals (approval_id, tool, workspace_id, request_digest, request, request_bytes, state,"
                " created_at) VALUES (?, ?, ?, ?, ?, ?, 'pending', ?)",
                (approval_id, tool, workspace_id, digest, text, len(text), timestamp()),
            )
            opened = _one(connection, "approval_id = ?", (approval_id,))
            assert opened is not None
            return opened

        return await self._database.write(job)

    async def resolve(self, approval_id: str, step: Literal["grant", "deny"]) -> bool:
        """False where the hold is not pending."""
        return await self._step(approval_id, step, {"resolved_at": timestamp()})

    async def claim(self, approval_id: str, operation_id: str | None) -> bool:
        """False where the hold is not granted. `operation_id`: of the patch that will be minted for it, so that the
        ledger tells later whether anything was begun."""
        return await self._step(approval_id, "claim", {"operation_id": operation_id})

    async def unclaim(self, approval_id: str) -> bool:
        """Nothing was begun: it may be resumed again. False where it is not resuming."""
        return await self._step(approval_id, "unclaim", {"operation_id": None})

    async def consume(self, approval_id: str, outcome: Outcome) -> bool:
        """The result and the end in one transaction. False where it is not resuming."""
        return await self._step(approval_id, "consume", {"result": outcome.to_text()})

    async def erase(self) -> bool:
        """Requests that ended are gone from the disk too, log included. False: to be tried again."""
        return await self._database.erase()

    async def by_id(self, approval_id: str) -> Hold | None:
        return await self._database.read(lambda c: _one(c, "approval_id = ?", (approval_id,)))

    async def resuming(self) -> list[Hold]:
        """Holds whose resume was not seen to its end, or is under way; without their requests."""
        return await self._database.read(lambda c: _all(c, "state = 'resuming'", (), -1))

    async def listed(
        self, workspace_id: str | None, states: tuple[State, ...], limit: int, request_bytes: int = 0
    ) -> list[Hold]:
        """Newest first. `workspace_id`: None for all; `states`: empty for all. With those requests that take no more
        than `request_bytes`."""
        where, values = "1", list[str]()
        if workspace_id is not None:
            where, values = "workspace_id = ?", [workspace_id]
        if states:
            where += f" AND state IN ({', '.join('?' * len(states))})"
            values += states
        return await self._database.read(lambda c: _all(c, where, tuple(values), limit, request_bytes))

    async def _step(self, approval_id: str, step: Step, columns: Mapping[str, str | None]) -> bool:
        before, after = NEXT[step]
        sets = {"state": after, **columns}
        if after in TERMINAL:
            sets |= {"request": None, "finished_at": timestamp()}

        def job(connection: sqlite3.Connection) -> bool:
            assigned = ", ".join(f"{name} = ?" for name in sets)
            changed = connection.execute(
                f"UPDATE approvals SET {assigned} WHERE approval_id = ? AND state = ?",
                (*sets.values(), approval_id, before),
            )
            return bool(changed.rowcount)

        return await self._database.write(job)


_LISTED = (
    "approval_id, tool, workspace_id, request_digest, state, operation_id, result, created_at, resolved_at,"
    " finished_at, CASE WHEN request_bytes <= ? THEN request END AS request"
)


def _one(connection: sqlite3.Connection, where: str, values: tuple[str, ...]) -> Hold | None:
    row = connection.execute(f"SELECT * FROM approvals WHERE {where}", values).fetchone()
    return None if row is None else _hold(row)


def _all(
    connection: sqlite3.Connection, where: str, values: tuple[str, ...], limit: int, request_bytes: int = 0
) -> list[Hold]:
    query = f"SELECT {_LISTED} FROM approvals WHERE {where} ORDER BY approval_id DESC LIMIT ?"
    return [_hold(row) for row in connection.execute(query, (request_bytes, *values, limit)).fetchall()]


def _hold(row: sqlite3.Row) -> Hold:
    return Hold(
        approval_id=row["approval_id"],
        tool=row["tool"],
        workspace_id=row["workspace_id"],
        request_digest=row["request_digest"],
        request=None if row["request"] is None else json.loads(row["request"]),
        state=row["state"],
        operation_id=row["operation_id"],
        outcome=None if row["result"] is None else Outcome(**json.loads(row["result"])),
        created_at=row["created_at"],
        resolved_at=row["resolved_at"],
        finished_at=row["finished_at"],
    )
