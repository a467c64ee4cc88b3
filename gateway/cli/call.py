"""`codespace call`: one tool call from a shell. One self-contained request of protocol 2026-07-28.

Refuses to know: what tools do. Never sends a call twice: a lost answer is said to be lost.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from gateway.cli.console import Failed, say_error
from gateway.cli.unix_http import (
    CAPABILITIES_KEY,
    CLIENT_INFO_KEY,
    MODERN,
    PROTOCOL_VERSION_KEY,
    ask,
    problem_of,
    request_headers,
)
from gateway.errors import ConfigurationError

TIMEOUT_S = 120.0
"""Twice the longest wait that a tool accepts."""


def call(tool: str, arguments: str, socket: Path) -> int:
    """Prints the structured result and returns 0, or 1 after a tool error. Raises `OperatorError`."""
    result = call_tool(tool, _parse(arguments), socket)
    structured = result.get("structuredContent")
    print(json.dumps(structured, indent=2, ensure_ascii=False))
    if not result.get("isError"):
        return 0
    sys.stdout.flush()
    error = structured.get("error", {}) if isinstance(structured, dict) else {}
    say_error(f"{tool}: {error.get('code')}: {error.get('message')}")
    return 1


def _parse(arguments: str) -> dict[str, Any]:
    try:
        parsed = json.loads(sys.stdin.read() if arguments == "-" else arguments)
    except RecursionError:
        raise ConfigurationError("arguments nest too deeply", "JSON", "write them flat") from None
    except ValueError as error:
        raise ConfigurationError("arguments are not JSON", "JSON", str(error)) from None
    if not isinstance(parsed, dict):
        raise ConfigurationError("arguments are not an object", "JSON", 'write them like {"workspace_id": "demo"}')
    return parsed


def call_tool(tool: str, arguments: dict[str, Any], socket: Path) -> dict[str, Any]:
    """The result of one call, `structuredContent` and `isError` in it. Raises `OperatorError` where there is none."""
    meta = {
        PROTOCOL_VERSION_KEY: MODERN,
        CAPABILITIES_KEY: {},
        CLIENT_INFO_KEY: {"name": "codespace-call", "version": "1"},
    }
    params = {"name": tool, "arguments": arguments, "_meta": meta}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
    status, answer = ask(
        socket,
        "POST",
        "/mcp",
        body,
        request_headers("tools/call", params),
        timeout_s=TIMEOUT_S,
        on=tool,
        if_lost="the call may have been carried out: look before you repeat it",
    )
    try:
        decoded = json.loads(answer)
    except ValueError:
        decoded = None
    if isinstance(decoded, dict) and isinstance(decoded.get("result"), dict):
        result: dict[str, Any] = decoded["result"]
        return result
    if isinstance(decoded, dict) and isinstance(decoded.get("error"), dict) and "jsonrpc" in decoded:
        raise ConfigurationError("the request was refused", tool, str(decoded["error"].get("message")))
    raise Failed("the appliance refused", tool, problem_of(status, answer))
