"""Which runner instance owns which handle: `process_id` → workspace, in memory only (PROC-7).

Refuses to know: output, status, leases; the runner has those. Used by the process tools, and by custody when a runner
comes and goes.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from dataclasses import dataclass, field

from gateway.registry import Workspace

FINISHED_KEPT = 1024
"""Handles of ended commands that are still looked up; the runner keeps fewer (PROC-5)."""


@dataclass(eq=False)
class ProcessRecord:
    """`dispatched`: set once the runner has answered the start, or can no longer answer."""

    process_id: str
    workspace: Workspace
    instance_id: str
    running: bool = True
    dispatched: asyncio.Event = field(default_factory=asyncio.Event)


class ProcessDirectory:
    """All handles of the present runner instances. Bounded: running ones by the lease, ended ones by count."""

    def __init__(self, finished_kept: int = FINISHED_KEPT) -> None:
        self._records: dict[str, ProcessRecord] = {}
        self._finished: OrderedDict[str, None] = OrderedDict()
        self._finished_kept = finished_kept
        self.ended: Counter[str] = Counter()
        """Commands that are over, by how they ended; those that ran when their runner was lost are `lost`."""

    def begin(self, process_id: str, workspace: Workspace, instance_id: str) -> ProcessRecord:
        record = ProcessRecord(process_id, workspace, instance_id)
        self._records[process_id] = record
        return record

    def get(self, process_id: str) -> ProcessRecord | None:
        return self._records.get(process_id)

    def finish(self, process_id: str, termination: str) -> None:
        """The command is over; its output can still be read. Idempotent."""
        record = self._records.get(process_id)
        if record is None or not record.running:
            return
        record.running = False
        self.ended[termination] += 1
        self._finished[process_id] = None
        while len(self._finished) > self._finished_kept:
            oldest, _ = self._finished.popitem(last=False)
            del self._records[oldest]

    def forget(self, process_id: str) -> None:
        """It never started, or the runner does not know it any more. Idempotent."""
        self._records.pop(process_id, None)
        self._finished.pop(process_id, None)

    def drop_instance(self, instance_id: str) -> None:
        """The runner is lost, and its handles with it."""
        for process_id in [p for p, record in self._records.items() if record.instance_id == instance_id]:
            self._records[process_id].dispatched.set()
            self.ended["lost"] += self._records[process_id].running
            self.forget(process_id)

    def running(self) -> int:
        return len(self._records) - len(self._finished)
