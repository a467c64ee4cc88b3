"""Tells whoever watches that something is different: a number that goes up, and nothing about what changed.

A watcher that is slow, or was away, misses no state by that: it looks anew. So there is no queue that could grow.
Refuses to know: what changed, who watches. One a gateway, made by the application.
"""

from __future__ import annotations

import asyncio
import secrets

from gateway.ports import Audit, AuditRecord
from runner.api import ProcessExited


class Changes:
    """`mark` names a moment of this run of the program; another run's marks are never equal to it."""

    def __init__(self) -> None:
        self._run = secrets.token_hex(6)
        self._number = 0
        self._changed = asyncio.Event()

    @property
    def mark(self) -> str:
        return f"{self._run}-{self._number}"

    def note(self) -> None:
        """Something is different. On the event loop's thread."""
        self._number += 1
        self._changed.set()
        self._changed = asyncio.Event()

    async def after(self, mark: str) -> str:
        """Returns the present mark as soon as it is another one. Safe to cancel."""
        while self.mark == mark:
            await self._changed.wait()
        return self.mark


class AnnouncingAudit:
    """`Audit` around another one: a mutation is a change."""

    def __init__(self, inner: Audit, changes: Changes) -> None:
        self._inner = inner
        self._changes = changes

    def record(self, record: AuditRecord) -> None:
        self._inner.record(record)
        if record.kind == "mutation":
            self._changes.note()


class RunnerChanges:
    """`LinkListener`: whatever becomes of a runner, or ends in one, is a change."""

    def __init__(self, changes: Changes) -> None:
        self._changes = changes

    def runner_up(self, instance_id: str) -> None:
        self._changes.note()

    def process_exited(self, instance_id: str, event: ProcessExited) -> None:
        self._changes.note()

    def runner_lost(self, instance_id: str) -> None:
        self._changes.note()

    def all_dead(self, instance_id: str) -> None:
        self._changes.note()
