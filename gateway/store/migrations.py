"""The schema, as named steps in order. A step that was released is never changed; a new one is added below.

Refuses to know: queries. Read by `application`, which opens the database.
"""

from __future__ import annotations

from gateway.store.counts import COUNTED, counting
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
    Migration(
        "0002_approvals",
        (
            # `request`: the whole call, while the hold is live; gone once it is over (APPR-6). `operation_id`: of the
            # patch that a resume mints or was about to mint. `result`: see `gateway.store.approvals`.
            """
            CREATE TABLE approvals (
                approval_id    TEXT PRIMARY KEY,
                tool           TEXT NOT NULL CHECK (tool IN ('apply_patch', 'exec_command')),
                workspace_id   TEXT NOT NULL,
                request_digest TEXT NOT NULL,
                request        TEXT,
                request_bytes  INTEGER NOT NULL,
                state          TEXT NOT NULL CHECK (state IN ('pending', 'granted', 'denied', 'resuming', 'consumed')),
                operation_id   TEXT,
                result         TEXT,
                created_at     TEXT NOT NULL,
                resolved_at    TEXT,
                finished_at    TEXT,
                CHECK ((state IN ('denied', 'consumed')) = (request IS NULL)),
                CHECK ((state = 'consumed') = (result IS NOT NULL))
            ) STRICT
            """,
            """
            CREATE UNIQUE INDEX live_approvals ON approvals (request_digest)
                WHERE state IN ('pending', 'granted', 'resuming')
            """,
            "CREATE INDEX approvals_of_workspace ON approvals (workspace_id, state)",
        ),
    ),
    Migration(
        "0003_works",
        (
            """
            CREATE TABLE works (
                work_id        TEXT PRIMARY KEY,
                workspace_id   TEXT NOT NULL,
                title          TEXT,
                state          TEXT NOT NULL CHECK (state IN ('active', 'closing', 'closed', 'cancelled')),
                queue_revision INTEGER NOT NULL DEFAULT 0,
                created_at     TEXT NOT NULL,
                closed_at      TEXT
            ) STRICT
            """,
            "CREATE INDEX works_of_workspace ON works (workspace_id)",
            # `carried`: a next_work intent that has come to the work it waited for.
            """
            CREATE TABLE intents (
                intent_id    TEXT PRIMARY KEY,
                work_id      TEXT NOT NULL REFERENCES works (work_id),
                workspace_id TEXT NOT NULL,
                position     INTEGER NOT NULL,
                revision     INTEGER NOT NULL DEFAULT 1,
                kind         TEXT NOT NULL CHECK (kind IN ('follow_up', 'note', 'stop_notice')),
                delivery     TEXT NOT NULL CHECK (delivery IN ('next_checkpoint', 'after_current_work', 'next_work')),
                carried      INTEGER NOT NULL DEFAULT 0,
                body         TEXT NOT NULL,
                state        TEXT NOT NULL CHECK (state IN ('draft', 'queued', 'claimed', 'done', 'blocked',
                                                            'cancelled', 'superseded')),
                created_at   TEXT NOT NULL,
                updated_at   TEXT NOT NULL
            ) STRICT
            """,
            "CREATE INDEX intents_of_work ON intents (work_id, state)",
            """
            CREATE INDEX intents_to_carry ON intents (workspace_id)
                WHERE delivery = 'next_work' AND carried = 0 AND state = 'queued'
            """,
        ),
    ),
    Migration(
        "0004_console_sessions",
        (
            """
            CREATE TABLE console_sessions (
                digest     TEXT PRIMARY KEY,
                seal       TEXT NOT NULL,
                created_at TEXT NOT NULL,
                expires_at TEXT NOT NULL
            ) STRICT
            """,
            "CREATE INDEX operations_of_workspace ON operations (workspace_id)",
        ),
    ),
    Migration(
        "0005_state_counts",
        (
            """
            CREATE TABLE state_counts (
                name  TEXT NOT NULL,
                state TEXT NOT NULL,
                count INTEGER NOT NULL,
                PRIMARY KEY (name, state)
            ) STRICT
            """,
            *(statement for name in COUNTED for statement in counting(name)),
        ),
    ),
)
