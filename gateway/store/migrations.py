"""The schema, as named steps in order. A step that was released is never changed; a new one is added below.

Refuses to know: queries. Read by `application`, which opens the database.
"""

from __future__ import annotations

from gateway.store.database import Migration

MIGRATIONS: tuple[Migration, ...] = (
    Migration(
        "0001_operations",
        (
            # Hashes, codes and numbers: never patch text, file contents or messages that quote them (OP-5).
            """
            CREATE TABLE operations (
                operation_id   TEXT PRIMARY KEY,
                workspace_id   TEXT NOT NULL,
                operation_key  TEXT,
                request_digest TEXT NOT NULL,
                status         TEXT CHECK (status IN ('applied', 'rejected', 'failed_rolled_back', 'failed_partial',
                                                      'unknown')),
                created_at     TEXT NOT NULL,
                finished_at    TEXT,
                files          TEXT NOT NULL DEFAULT '[]',
                changes        TEXT NOT NULL DEFAULT '[]',
                warnings       TEXT NOT NULL DEFAULT '[]',
                error          TEXT,
                UNIQUE (workspace_id, operation_key)
            ) STRICT
            """,
            "CREATE INDEX unfinished_operations ON operations (workspace_id) WHERE finished_at IS NULL",
            """
            CREATE TABLE operation_events (
                operation_id TEXT NOT NULL REFERENCES operations (operation_id),
                event        TEXT NOT NULL CHECK (event IN ('minted', 'finished')),
                at           TEXT NOT NULL,
                reason       TEXT,
                PRIMARY KEY (operation_id, event)
            ) STRICT
            """,
        ),
    ),
)
