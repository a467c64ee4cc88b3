"""The audit trail: one log line a decision and one a mutation, with who called (NETIF-3).

Refuses to know: contents. Records hold ids and codes only; the peer and the tool come from the context that the MCP
server binds around a call. Implements `gateway.ports.Audit`.
"""

from __future__ import annotations

from structlog.typing import FilteringBoundLogger

from gateway.metrics import Metrics
from gateway.ports import AuditRecord


class LogAudit:
    """Writes at level `warning` what was refused, failed or is unknown, and the rest at `info`."""

    def __init__(self, log: FilteringBoundLogger, metrics: Metrics) -> None:
        self._log = log
        self._metrics = metrics

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
        if record.outcome in ("refused", "failed", "unknown"):
            self._log.warning("audit", **fields)
        else:
            self._log.info("audit", **fields)
