"""HTTP/1.1 requests over a Unix socket, with the standard library alone, and the headers of MCP requests.

Refuses to know: tools, sessions. Used by the commands that speak to a running appliance, which must start fast.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import http.client
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gateway.cli.console import Failed
from gateway.errors import OperatorError

MODERN = "2026-07-28"
PROTOCOL_VERSION_KEY = "io.modelcontextprotocol/protocolVersion"
CAPABILITIES_KEY = "io.modelcontextprotocol/clientCapabilities"
CLIENT_INFO_KEY = "io.modelcontextprotocol/clientInfo"


class UnixConnection(http.client.HTTPConnection):
    """`timeout_s`: for connecting and for each wait for bytes; None waits for ever."""

    def __init__(self, path: Path, timeout_s: float | None) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = str(path)

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            if isinstance(self.timeout, int | float):
                self.sock.settimeout(self.timeout)
            self.sock.connect(self._path)
        except BaseException:
            self.sock.close()
            raise


def cannot_connect(path: Path, error: OSError) -> OperatorError:
    """Why the socket cannot be reached, for the command line."""
    remedies = {
        errno.ENOENT: "there is no such socket: start `codespace serve`, or name its socket with --socket",
        errno.ECONNREFUSED: "nothing listens there: start `codespace serve`",
        errno.EACCES: "this user may not use the socket: use an allowed user",
        errno.ENOTSOCK: "that is no socket: name the appliance's socket with --socket",
    }
    name = errno.errorcode.get(error.errno or 0, type(error).__name__)
    remedy = remedies.get(error.errno or 0, f"{error.strerror or error}: look at the log of `codespace serve`")
    return Failed(f"cannot reach the appliance ({name})", str(path), remedy)


def request_headers(method: str, params: Mapping[str, Any] | None) -> dict[str, str]:
    """Headers of a 2026-07-28 request; they repeat what the body says."""
    headers = {
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": MODERN,
        "Mcp-Method": header_value(method),
    }
    key = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}.get(method)
    name = (params or {}).get(key) if key else None
    if isinstance(name, str):
        headers["Mcp-Name"] = header_value(name)
    return headers


def header_value(text: str) -> str:
    """Printable ASCII as it is, anything else in the protocol's base64 form (`=?base64?…?=`)."""
    plain = text.isascii() and text.isprintable() and text == text.strip() and not text.startswith("=?base64?")
    if plain and text:
        return text
    return "=?base64?" + base64.b64encode(text.encode("utf-8", "surrogatepass")).decode() + "?="


def ask(
    socket: Path,
    method: str,
    path: str,
    body: bytes | None,
    headers: Mapping[str, str],
    *,
    timeout_s: float,
    on: str,
    if_lost: str,
) -> tuple[int, bytes]:
    """Status and body of one answer, on a connection of its own. `on`: what it is about. `if_lost`: what to do where
    the answer is lost. Raises `OperatorError`."""
    connection = UnixConnection(socket, timeout_s)
    try:
        try:
            connection.connect()
        except OSError as error:
            raise cannot_connect(socket, error) from None
        try:
            # An appliance that takes no more of it has answered why.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.request(method, path, body, headers)
            response = connection.getresponse()
            return response.status, response.read()
        except (OSError, http.client.HTTPException) as error:
            raise Failed(f"the answer was lost ({type(error).__name__})", on, if_lost) from None
    finally:
        connection.close()


def problem_of(status: int, body: bytes) -> str:
    """What an HTTP answer other than MCP's own says, in one line."""
    import json

    try:
        decoded = json.loads(body)
        error = decoded["error"]
        return str(error["message"])
    except (ValueError, TypeError, KeyError):
        text = body[:200].decode(errors="replace").strip()
        return f"HTTP {status}" + (f": {text}" if text else "")
