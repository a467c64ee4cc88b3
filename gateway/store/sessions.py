"""Sessions of the console, so that a restart asks nobody for the token again.

Digests alone: neither the cookie nor the token can be read out of them. Refuses to know: HTTP, tokens. Used by
`gateway.http.console.sessions`.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

from gateway.store.database import Database

MAX_SESSIONS = 256


@dataclass(frozen=True)
class StoredSession:
    """`seal`: binds it to the token that it was opened with. `expires_at`: UTC, as `timestamp` writes it."""

    digest: str
    seal: str
    expires_at: str


class SessionStore:
    """Every method may raise `StoreFailed`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, session: StoredSession, now: str) -> None:
        """Removes what has expired by `now`, and beyond MAX_SESSIONS the oldest."""

        def job(connection: sqlite3.Connection) -> None:
            connection.execute("DELETE FROM console_sessions WHERE expires_at <= ?", (now,))
            connection.execute(
                "INSERT INTO console_sessions (digest, seal, created_at, expires_at) VALUES (?, ?, ?, ?)",
                (session.digest, session.seal, now, session.expires_at),
            )
            connection.execute(
                "DELETE FROM console_sessions WHERE rowid NOT IN"
                " (SELECT rowid FROM console_sessions ORDER BY rowid DESC LIMIT ?)",
                (MAX_SESSIONS,),
            )

        await self._database.write(job, silent=True)

    async def find(self, digest: str) -> StoredSession | None:
        """Expired or not."""

        def job(connection: sqlite3.Connection) -> StoredSession | None:
            row = connection.execute("SELECT * FROM console_sessions WHERE digest = ?", (digest,)).fetchone()
            return None if row is None else StoredSession(row["digest"], row["seal"], row["expires_at"])

        return await self._database.read(job)

    async def remove(self, digest: str) -> None:
        """Idempotent."""

        def job(connection: sqlite3.Connection) -> None:
            connection.execute("DELETE FROM console_sessions WHERE digest = ?", (digest,))

        await self._database.write(job, silent=True)
