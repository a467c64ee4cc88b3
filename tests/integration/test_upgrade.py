"""A data directory that an earlier version of the program wrote, and one that a later version wrote.

`data/NAME.sql` is the database as the program left it whose last migration was NAME: a patch applied under the key k1,
one rejected, and from 0002 on a hold, from 0003 on a work with a draft. They are never written anew.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from gateway.store.database import FILE_NAME
from gateway.store.migrations import MIGRATIONS
from tests.gateway.transport.serving import request
from tests.integration.containers import RUN_S, UID, Appliance, flags, home, run, serving, volumes

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

EARLIER = sorted((Path(__file__).parent / "data").glob("*.sql"))
ADD = "*** Begin Patch\n*** Add File: a.txt\n+one\n*** End Patch\n"
HELD = {"workspace_id": "demo", "command": ["true"]}


def restore(folder: Path, dump: Path, *more: str) -> dict[str, list[Any]]:
    """Makes the database, with `more` statements; the first column of each table's rows, by table."""
    file = folder / "data" / FILE_NAME
    with contextlib.closing(sqlite3.connect(file)) as connection:
        connection.executescript(dump.read_text())
        for statement in more:
            connection.execute(statement)
        connection.commit()
        tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        found = {
            table: [row[0] for row in connection.execute(f"SELECT * FROM {table} ORDER BY rowid")] for table in tables
        }
    os.chown(file, UID, UID)
    file.chmod(0o600)
    return found


def migrations_of(folder: Path) -> list[str]:
    with contextlib.closing(sqlite3.connect(f"file:{folder / 'data' / FILE_NAME}?mode=ro", uri=True)) as connection:
        return [row[0] for row in connection.execute("SELECT name FROM schema_migrations ORDER BY rowid")]


def test_there_is_a_database_of_each_schema_that_was_released_before_this_one() -> None:
    names = [migration.name for migration in MIGRATIONS]
    assert len(EARLIER) >= 3
    assert [dump.stem for dump in EARLIER] == names[: len(EARLIER)]


@pytest.mark.covers("OP-5", "APPR-5", "IMG-1")
@pytest.mark.parametrize("dump", EARLIER, ids=lambda dump: dump.stem)
def test_the_image_serves_what_an_earlier_version_wrote(dump: Path) -> None:
    with home() as folder:
        rows = restore(folder, dump)
        (folder / "workspaces/demo/a.txt").write_text("one\n")
        with serving(folder) as appliance:
            applied, rejected = (appliance.call("operation_status", operation_id=op) for op in rows["operations"])
            assert (applied["status"], rejected["status"]) == ("applied", "rejected")
            again = appliance.call("apply_patch", workspace_id="demo", patch=ADD, operation_key="k1")
            assert (again["replayed"], again["operation_id"]) == (True, applied["operation_id"])
            hold_lives(appliance, rows)
            work_lives(appliance, rows)
            appliance.signal("TERM")
            assert appliance.wait() == 0
        assert migrations_of(folder) == [migration.name for migration in MIGRATIONS]


def hold_lives(appliance: Appliance, rows: dict[str, list[Any]]) -> None:
    """An old hold is granted and resumed; where there is none, a new one takes its place."""
    approval_id = appliance.call("approval_create", tool="exec_command", arguments=HELD)["approval_id"]
    assert approval_id in rows.get("approvals", [approval_id])
    assert appliance.call("approval_resolve", approval_id=approval_id, decision="grant")["state"] == "granted"
    started = appliance.call("operation_resume", approval_id=approval_id)["exec_command"]
    assert appliance.ended(started["process_id"])["exit_code"] == 0


def work_lives(appliance: Appliance, rows: dict[str, list[Any]]) -> None:
    """An old draft is queued and claimed; where there is none, works are possible all the same."""
    for work_id in rows.get("works", []):
        for intent_id in rows["intents"]:
            answer = request(
                appliance.socket, "POST", f"/inbox/intents/{intent_id}/queue", b'{"revision": 1}',
                {"content-type": "application/json"}, timeout_s=RUN_S,
            )  # fmt: skip
            assert answer.status == 200, answer
        assert appliance.call("work_finish", work_id=work_id)["closed"] is False
        claimed = appliance.call("steer_claim_next", work_id=work_id)["item"]
        assert (claimed["intent_id"], claimed["content"]) == (rows["intents"][0], "go on")
    assert appliance.call("work_open", workspace_id="demo")["state"] == "active"


@pytest.mark.covers("OP-5", "IMG-3")
def test_what_a_later_version_wrote_is_refused_with_one_line_and_left_alone() -> None:
    later = "INSERT INTO schema_migrations VALUES ('9999_later', '2100-01-01T00:00:00.000+00:00')"
    with home() as folder:
        restore(folder, EARLIER[0], later)
        before = migrations_of(folder)
        ended = run(options=[*flags(), *volumes(folder)])
        assert ended.status == 1, ended
        said = [line for line in ended.errors.splitlines() if line.startswith("error: ")]
        assert len(said) == 1, ended
        assert f"/data/{FILE_NAME}" in said[0]
        assert "another version" in said[0]
        assert migrations_of(folder) == before
