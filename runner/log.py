"""How the runner says what it did: one call, a name and fields.

`JsonLines` is the worker's: a JSON object a line on stderr. In process the gateway hands in its own. Neither command
output nor file content nor patch text is ever a field.
"""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from typing import Literal, Protocol, TextIO

Level = Literal["debug", "info", "warning", "error"]


class Log(Protocol):
    """`event` is a snake_case name; fields are JSON values. Never raises and never blocks for long."""

    def __call__(self, event: str, *, level: Level = "info", **fields: object) -> None: ...


class JsonLines:
    """Writes to `stream`. A reader that went away is no reason to stop working."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr

    def __call__(self, event: str, *, level: Level = "info", **fields: object) -> None:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = json.dumps(
            {"event": event, "level": level, "timestamp": now, "component": "runner", **fields}, default=repr
        )
        try:
            self._stream.write(line + "\n")
            self._stream.flush()
        except OSError:
            pass
