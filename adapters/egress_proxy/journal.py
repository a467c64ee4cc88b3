"""What the proxy says of its decisions: a JSON line on standard error for each, and counts for the runner.

A line names workspace, process, host, port and address, the decision, its rule and its reason; never a path, a header
or a body. Refuses to know sockets other than standard error. Used by the proxy's program alone.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

MAX_TEXT = 256


@dataclass(frozen=True)
class Record:
    """One decision. `via`: connect, http, socks5, transparent or names. `host`: as it was understood, or as it came."""

    via: str
    host: str
    port: int | None
    allowed: bool
    reason: str
    rule: str | None = None
    address: str | None = None


class Journal:
    """`changed` is called after each record."""

    def __init__(self, changed: Callable[[], None], fd: int = 2) -> None:
        self._changed = changed
        self._fd = fd
        self._counts: Counter[tuple[str, str]] = Counter()

    def write(self, workspace_id: str, process_id: str, record: Record) -> None:
        """A reader that went away is no reason to stop."""
        decision = "allowed" if record.allowed else "refused"
        line = {
            "event": "network_decision",
            "level": "info" if record.allowed else "warning",
            "timestamp": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "component": "egress_proxy",
            "workspace_id": workspace_id,
            "process_id": process_id,
            "via": record.via,
            "host": record.host[:MAX_TEXT],
            "port": record.port,
            "address": record.address,
            "decision": decision,
            "rule": record.rule,
            "reason": record.reason[:MAX_TEXT],
        }
        try:
            os.write(self._fd, json.dumps({k: v for k, v in line.items() if v is not None}).encode() + b"\n")
        except OSError:
            pass
        self.count(record.via, decision)

    def count(self, via: str, decision: str) -> None:
        """One more, without a line."""
        self._counts[via, decision] += 1
        self._changed()

    def counts(self) -> list[list[str | int]]:
        """[via, decision, how many], since the proxy started."""
        return [[via, decision, number] for (via, decision), number in sorted(self._counts.items())]
