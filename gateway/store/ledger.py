"""The patch ledger: every operation from its minting to its end, as hashes and codes (OP-1 to OP-5).

    (none) ── mint ──► running ── finish ──► applied | rejected | failed_rolled_back | failed_partial
                          └── doubt ──► unknown ── close ──► any of these, or unknown for good

Refuses to know: how a patch is applied, what a journal is. Used by the patch use cases and by recovery.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal

from gateway.answers import OperationAnswer, OperationEvent, OperationListed
from gateway.store.database import Database, timestamp
from runner.api import FileChange

EndStatus = Literal["applied", "rejected", "failed_rolled_back", "failed_partial", "unknown"]
MAX_DETAILS_BYTES = 64 * 1024


@dataclass(frozen=True)
class RecordedError:
    """An error as the ledger keeps it. `details`: JSON values, without text of the patch or of files."""

    code: str
    retryable: bool
    details: dict[str, Any]


@dataclass(frozen=True)
class Ending:
    """How an operation ended. `error` with every status but `applied`; `reason`: a short word or sentence of ours."""

    status: EndStatus
    files: tuple[str, ...] = ()
    changes: tuple[FileChange, ...] = ()
    warnings: tuple[dict[str, Any], ...] = ()
    error: RecordedError | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Operation:
    """One row. `ending` is None while it runs; `finished_at` is None also while its end is in doubt."""

    operation_id: str
    workspace_id: str
    operation_key: str | None
    request_digest: str
    created_at: str
    finished_at: str | None
    ending: Ending | None
    events: tuple[OperationEvent, ...]

    def answer(self) -> OperationAnswer:
        """What `operation_status` says."""
        return OperationAnswer(**self._fields())

    def listed(self) -> OperationListed:
        """What its operator sees."""
        error = None if self.ending is None else self.ending.error
        return OperationListed(**self._fields(), error_code=None if error is None else error.code)

    def _fields(self) -> dict[str, Any]:
        ending = self.ending or Ending("unknown")
        return {
            "operation_id": self.operation_id,
            "operation_key": self.operation_key,
            "workspace_id": self.workspace_id,
            "status": None if self.ending is None else ending.status,
            "created_at": self.created_at,
            "finished_at": self.finished_at,
            "files": ending.files,
            "changes": ending.changes,
            "events": self.events,
        }


class KeyTaken(Exception):
    """Another operation of this workspace has the key."""


class Ledger:
    """Every method may raise `StoreFailed`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def mint(self, operation_id: str, workspace_id: str, operation_key: str | None, request_digest: str) -> None:
        """Records an operation before it begins; durable on return. Raises `KeyTaken`."""

        def job(connection: sqlite3.Connection) -> None:
            now = timestamp()
            try:
                connection.execute(
                    "INSERT INTO operations (operation_id, workspace_id, operation_key, request_digest, created_at)"
                    " VALUES (?, ?, ?, ?, ?)",
                    (operation_id, workspace_id, operation_key, request_digest, now),
                )
            except sqlite3.IntegrityError:
                raise KeyTaken(operation_key) from None
            connection.execute("INSERT INTO operation_events VALUES (?, 'minted', ?, NULL)", (operation_id, now))

        await self._database.write(job)

    async def finish(self, operation_id: str, ending: Ending) -> bool:
        """Records the end, once: an operation that has a known end keeps it, and the answer is False. Durable."""

        def job(connection: sqlite3.Connection) -> bool:
            now = timestamp()
            changed = connection.execute(
                "UPDATE operations SET status = ?, finished_at = ?, files = ?, changes = ?, warnings = ?, error = ?"
                " WHERE operation_id = ? AND (status IS NULL OR status = 'unknown')",
                (
                    ending.status,
                    now,
                    json.dumps(ending.files),
                    json.dumps([change.model_dump(exclude_none=True) for change in ending.changes]),
                    json.dumps(ending.warnings),
                    _error_text(ending.error),
                    operation_id,
                ),
            ).rowcount
            if changed:
                connection.execute(
                    "INSERT INTO operation_events VALUES (?, 'finished', ?, ?)"
                    " ON CONFLICT DO UPDATE SET at = excluded.at, reason = excluded.reason",
                    (operation_id, now, ending.reason),
                )
            return bool(changed)

        return await self._database.write(job)

    async def doubt(self, operation_id: str) -> None:
        """The runner was lost under it: `unknown`, and not finished, until something is proved."""

        def job(connection: sqlite3.Connection) -> None:
            connection.execute(
                "UPDATE operations SET status = 'unknown' WHERE operation_id = ? AND status IS NULL", (operation_id,)
            )

        await self._database.write(job)

    async def by_id(self, operation_id: str) -> Operation | None:
        return await self._database.read(lambda c: _one(c, "operation_id = ?", (operation_id,)))

    async def by_key(self, workspace_id: str, operation_key: str) -> Operation | None:
        where = "workspace_id = ? AND operation_key = ?"
        return await self._database.read(lambda c: _one(c, where, (workspace_id, operation_key)))

    async def unfinished(self) -> list[Operation]:
        """Operations without a proved end, oldest first."""

        def job(connection: sqlite3.Connection) -> list[Operation]:
            rows = connection.execute("SELECT * FROM operations WHERE finished_at IS NULL ORDER BY operation_id")
            return [_operation(connection, row) for row in rows.fetchall()]

        return await self._database.read(job)

    async def listed(self, workspace_ids: Collection[str], before: str | None, limit: int) -> list[Operation]:
        """Newest first, those of these workspaces. `before`: only older ones than this operation."""

        def job(connection: sqlite3.Connection) -> list[Operation]:
            marks = ", ".join("?" * len(workspace_ids))
            rows = connection.execute(
                f"SELECT * FROM operations WHERE workspace_id IN ({marks}) AND (? IS NULL OR operation_id < ?)"
                " ORDER BY operation_id DESC LIMIT ?",
                (*workspace_ids, before, before, limit),
            )
            return [_operation(connection, row) for row in rows.fetchall()]

        return await self._database.read(job)

    async def check_writable(self) -> None:
        """Raises `StoreFailed` where a transaction cannot be made durable now."""
        await self._database.write(
            lambda c: c.execute("UPDATE schema_migrations SET name = name").rowcount, silent=True
        )


def _error_text(error: RecordedError | None) -> str | None:
    if error is None:
        return None
    text = json.dumps({"code": error.code, "retryable": error.retryable, "details": error.details})
    if len(text) <= MAX_DETAILS_BYTES:
        return text
    kept = {key: error.details[key] for key in ("reason", "status") if key in error.details}
    return json.dumps({"code": error.code, "retryable": error.retryable, "details": kept})


def _one(connection: sqlite3.Connection, where: str, values: tuple[str, ...]) -> Operation | None:
    row = connection.execute(f"SELECT * FROM operations WHERE {where}", values).fetchone()
    return None if row is None else _operation(connection, row)


def _operation(connection: sqlite3.Connection, row: sqlite3.Row) -> Operation:
    events = connection.execute(
        "SELECT event, at, reason FROM operation_events WHERE operation_id = ? ORDER BY event DESC",
        (row["operation_id"],),
    )
    error = None if row["error"] is None else RecordedError(**json.loads(row["error"]))
    ending = None
    if row["status"] is not None:
        ending = Ending(
            status=row["status"],
            files=tuple(json.loads(row["files"])),
            changes=tuple(FileChange.model_validate(change) for change in json.loads(row["changes"])),
            warnings=tuple(json.loads(row["warnings"])),
            error=error,
        )
    return Operation(
        operation_id=row["operation_id"],
        workspace_id=row["workspace_id"],
        operation_key=row["operation_key"],
        request_digest=row["request_digest"],
        created_at=row["created_at"],
        finished_at=row["finished_at"],
        ending=ending,
        # "minted" before "finished": both may carry one millisecond, so the names decide.
        events=tuple(OperationEvent(event=e["event"], at=e["at"], reason=e["reason"]) for e in events),
    )
