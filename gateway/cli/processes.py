"""`codespace ps` and `codespace logs`: the commands of a running appliance and their output."""

from __future__ import annotations

import base64
import codecs
import os
import sys
from pathlib import Path
from typing import Any

from gateway.cli.call import call_tool
from gateway.cli.console import Failed
from gateway.cli.inbox_client import inbox, print_json, print_table, shown_lines

WAIT_MS = 30_000
CHUNK_BYTES = 256 * 1024


def ps(socket: Path, workspace: str | None, *, as_json: bool) -> int:
    """Returns 0. Raises `OperatorError`."""
    found = inbox(socket, "GET", "processes", query={} if workspace is None else {"workspace_id": workspace})
    if as_json:
        print_json(found)
        return 0
    rows = [
        (p["process_id"], p["state"], p["workspace_id"], p["started_at"], " ".join(map(ascii, p["command"])))
        for p in found
    ]
    print_table(("PROCESS_ID", "STATE", "WORKSPACE", "STARTED", "COMMAND"), rows)
    return 0


def logs(socket: Path, process_id: str, *, follow: bool) -> int:
    """Returns 0 once there is no more: the retained output, with `follow` until the command has ended. Raises
    `OperatorError`."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    terminal = os.isatty(1)
    cursor, waited = 0, 0
    while True:
        arguments: dict[str, Any] = {"process_id": process_id, "cursor": cursor, "encoding": "base64"}
        output = _read(socket, {**arguments, "max_bytes": CHUNK_BYTES, "wait_ms": waited})
        if output["output_lost"]:
            print(f"(output before byte {output['retained_from']} is no longer kept)", file=sys.stderr)
        chunk = base64.b64decode(output["chunk"])
        if terminal:
            sys.stdout.write(shown_lines(decoder.decode(chunk, final=output["eof"]).replace("\r\n", "\n")))
            sys.stdout.flush()
        else:
            sys.stdout.buffer.write(chunk)
            sys.stdout.buffer.flush()
        cursor = output["cursor"]
        if output["eof"] or (not chunk and not follow):
            return 0
        waited = WAIT_MS if follow and not chunk else 0


def _read(socket: Path, arguments: dict[str, Any]) -> dict[str, Any]:
    result = call_tool("read_process", arguments, socket)
    content: dict[str, Any] = result["structuredContent"]
    if result.get("isError"):
        error = content["error"]
        raise Failed(error["code"], arguments["process_id"], error["message"])
    return content
