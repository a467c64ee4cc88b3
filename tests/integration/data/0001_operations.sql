BEGIN TRANSACTION;
CREATE TABLE operation_events (
                operation_id TEXT NOT NULL REFERENCES operations (operation_id),
                event        TEXT NOT NULL CHECK (event IN ('minted', 'finished')),
                at           TEXT NOT NULL,
                reason       TEXT,
                PRIMARY KEY (operation_id, event)
            ) STRICT
            ;
INSERT INTO "operation_events" VALUES('op_01m8mb4ytjp5nv0fykrscjtmyz','minted','2026-11-29T19:05:15.346+00:00',NULL);
INSERT INTO "operation_events" VALUES('op_01m8mb4ytjp5nv0fykrscjtmyz','finished','2026-11-29T19:05:15.424+00:00',NULL);
INSERT INTO "operation_events" VALUES('op_01m8mb4z3b27v3qdwgrrrq2081','minted','2026-11-29T19:05:15.628+00:00',NULL);
INSERT INTO "operation_events" VALUES('op_01m8mb4z3b27v3qdwgrrrq2081','finished','2026-11-29T19:05:15.631+00:00','FILE_NOT_FOUND');
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
            ;
INSERT INTO "operations" VALUES('op_01m8mb4ytjp5nv0fykrscjtmyz','demo','k1','8ab417b68690c25f81174d68989f9e520032ecfab1a80a615ca35c269db50b5f','applied','2026-11-29T19:05:15.346+00:00','2026-11-29T19:05:15.424+00:00','["a.txt"]','[{"path": "a.txt", "kind": "add", "after_version": "sha256:2c8b08da5ce60398e1f19af0e5dccc744df274b826abe585eaba68c525434806"}]','[]',NULL);
INSERT INTO "operations" VALUES('op_01m8mb4z3b27v3qdwgrrrq2081','demo',NULL,'f2d0e3e7588c8e8e43954d2d918fa3eb8e3a91aa6b6f51129e7e0e811612f179','rejected','2026-11-29T19:05:15.628+00:00','2026-11-29T19:05:15.631+00:00','[]','[]','[]','{"code": "FILE_NOT_FOUND", "retryable": false, "details": {"path": "absent.txt"}}');
CREATE TABLE schema_migrations (name TEXT PRIMARY KEY, applied_at TEXT NOT NULL) STRICT;
INSERT INTO "schema_migrations" VALUES('0001_operations','2026-11-29T19:05:14.625+00:00');
CREATE INDEX unfinished_operations ON operations (workspace_id) WHERE finished_at IS NULL;
COMMIT;
