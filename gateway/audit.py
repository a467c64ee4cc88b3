"""The audit trail: one log line a decision and one a mutation, with who called (NETIF-3).

Lines are written a moment after what they tell of, in order: nobody's command or answer waits for its line. Refuses to
know: contents. Records hold ids and codes only; the peer and the tool come from the context that the MCP server binds
around a call. Implements `gateway.ports.Audit`.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable

from structlog.typing import FilteringBoundLogger

from gateway.metrics import Metrics
from gateway.ports import AuditRecord

BEHIND_S = 0.002
"""A kill of the gateway loses the lines of this time; whatever must be durable is in the ledger."""


class LogAudit:
    """Writes at level `warning` what was refused, failed or is unknown, and the rest at `info`. `record` needs a
    running event loop; `flush` is for its end."""

    def __init__(self, log: FilteringBoundLogger, metrics: Metrics) -> None:
        self._log = log
        self._metrics = metrics
        self._waiting: list[Callable[[], None]] = []

    def record(self, record: AuditRecord) -> None:
        self._metrics.audited(record)
        fields: dict[str, object] = {
            "kind": record.kind,
            "tool": record.tool,
            "workspace_id": record.workspace_id,
            "outcome": record.outcome,
            **record.ids,
        }
        if record.code is not None:
            fields["code"] = record.code
        write = self._log.warning if record.outcome in ("refused", "failed", "unknown") else self._log.info
        if not self._waiting:
            asyncio.get_running_loop().call_later(BEHIND_S, self.flush)
        # The context says who called.
        context = contextvars.copy_context()
        self._waiting.append(lambda: context.run(write, "audit", **fields))

    def flush(self) -> None:
        """Writes what is waiting. Idempotent."""
        waiting, self._waiting = self._waiting, []
        for write in waiting:
            write()
