BEGIN TRANSACTION;
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
            ;
INSERT INTO "approvals" VALUES('apr_01m8mb4qc3rdfkkyc5a5bcq6p8','exec_command','demo','6fb35b4871bf434bb0fb3e5cd3d53c5e42378064da4cfd374ebc2b19351b9c06','{"arguments": {"command": ["true"], "tty": false}}',50,'pending',NULL,NULL,'2026-11-29T19:05:07.716+00:00',NULL,NULL);
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
            ;
INSERT INTO "intents" VALUES('int_01m8mb4qmk89mbb0cvzq5tbqzv','work_01m8mb4qk89ch6d00mm7z1bqf1','demo',1,1,'follow_up','after_current_work',0,'go on','draft','2026-11-29T19:05:07.987+00:00','2026-11-29T19:05:07.987+00:00');
CREATE TABLE operation_events (
                operation_id TEXT NOT NULL REFERENCES operations (operation_id),
                event        TEXT NOT NULL CHECK (event IN ('minted', 'finished')),
                at           TEXT NOT NULL,
                reason       TEXT,
                PRIMARY KEY (operation_id, event)
            ) STRICT
            ;
INSERT INTO "operation_events" VALUES('op_01m8mb4pxb31bk95tb1a6dam2n','minted','2026-11-29T19:05:07.243+00:00',NULL);
INSERT INTO "operation_events" VALUES('op_01m8mb4pxb31bk95tb1a6dam2n','finished','2026-11-29T19:05:07.317+00:00',NULL);
INSERT INTO "operation_events" VALUES('op_01m8mb4q5wtw3d98ng1df6v5g0','minted','2026-11-29T19:05:07.517+00:00',NULL);
INSERT INTO "operation_events" VALUES('op_01m8mb4q5wtw3d98ng1df6v5g0','finished','2026-11-29T19:05:07.520+00:00','FILE_NOT_FOUND');
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
INSERT INTO "operations" VALUES('op_01m8mb4pxb31bk95tb1a6dam2n','demo','k1','8ab417b68690c25f81174d68989f9e520032ecfab1a80a615ca35c269db50b5f','applied','2026-11-29T19:05:07.243+00:00','2026-11-29T19:05:07.317+00:00','["a.txt"]','[{"path": "a.txt", "kind": "add", "after_version": "sha256:2c8b08da5ce60398e1f19af0e5dccc744df274b826abe585eaba68c525434806"}]','[]',NULL);
INSERT INTO "operations" VALUES('op_01m8mb4q5wtw3d98ng1df6v5g0','demo',NULL,'f2d0e3e7588c8e8e43954d2d918fa3eb8e3a91aa6b6f51129e7e0e811612f179','rejected','2026-11-29T19:05:07.517+00:00','2026-11-29T19:05:07.520+00:00','[]','[]','[]','{"code": "FILE_NOT_FOUND", "retryable": false, "details": {"path": "absent.txt"}}');
CREATE TABLE schema_migrations (name TEXT PRIMARY KEY, applied_at TEXT NOT NULL) STRICT;
INSERT INTO "schema_migrations" VALUES('0001_operations','2026-11-29T19:05:06.654+00:00');
INSERT INTO "schema_migrations" VALUES('0002_approvals','2026-11-29T19:05:06.655+00:00');
INSERT INTO "schema_migrations" VALUES('0003_works','2026-11-29T19:05:06.656+00:00');
CREATE TABLE works (
                work_id        TEXT PRIMARY KEY,
                workspace_id   TEXT NOT NULL,
                title          TEXT,
                state          TEXT NOT NULL CHECK (state IN ('active', 'closing', 'closed', 'cancelled')),
                queue_revision INTEGER NOT NULL DEFAULT 0,
                created_at     TEXT NOT NULL,
                closed_at      TEXT
            ) STRICT
            ;
INSERT INTO "works" VALUES('work_01m8mb4qk89ch6d00mm7z1bqf1','demo','old work','active',0,'2026-11-29T19:05:07.945+00:00',NULL);
CREATE INDEX unfinished_operations ON operations (workspace_id) WHERE finished_at IS NULL;
CREATE UNIQUE INDEX live_approvals ON approvals (request_digest)
                WHERE state IN ('pending', 'granted', 'resuming')
            ;
CREATE INDEX approvals_of_workspace ON approvals (workspace_id, state);
CREATE INDEX works_of_workspace ON works (workspace_id);
CREATE INDEX intents_of_work ON intents (work_id, state);
CREATE INDEX intents_to_carry ON intents (workspace_id)
                WHERE delivery = 'next_work' AND carried = 0 AND state = 'queued'
            ;
COMMIT;
