"""Calls of the inbox over the appliance's socket, and text from elsewhere made fit for a terminal.

Refuses to know: any command. Used by `gateway.cli.steering` and `gateway.cli.processes`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from gateway.cli.console import Failed
from gateway.cli.unix_http import ask, problem_of

TIMEOUT_S = 60.0


def inbox(socket: Path, method: str, *place: str, query: Mapping[str, str] | None = None, body: Any = None) -> Any:
    """The JSON answer of `/inbox/<place…>`. Raises `OperatorError` with what the appliance says."""
    path = "/inbox/" + "/".join(quote(part, safe="") for part in place)
    if query:
        path += f"?{urlencode(query)}"
    sent = None if body is None else json.dumps(body).encode()
    status, answer = ask(
        socket,
        method,
        path,
        sent,
        {"Content-Type": "application/json"},
        timeout_s=TIMEOUT_S,
        on=path,
        if_lost="look at its state before you repeat it",
    )
    if status >= 400:
        raise Failed("the appliance refused", shown("/".join(place)), problem_of(status, answer))
    return json.loads(answer)


def shown(text: str) -> str:
    """One line, whatever the text holds: control and formatting characters appear as escapes and do nothing."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def shown_lines(text: str) -> str:
    """As `shown`, with line ends and tabs kept."""
    return "\n".join("\t".join(shown(part) for part in line.split("\t")) for line in text.split("\n"))


def print_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Columns as wide as what is in them; the last one as it comes."""
    cells = [list(header), *([shown(str(cell)) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header) - 1)]
    for row in cells:
        print("  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]).rstrip())


def print_json(answer: Any) -> None:
    print(json.dumps(answer, indent=2))
