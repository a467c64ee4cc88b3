"""Options that several groups of commands share. Imports little: some commands must start fast."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

Socket = Annotated[
    Path | None,
    typer.Option(
        "--socket",
        metavar="PATH",
        help="The MCP socket; default $XDG_RUNTIME_DIR/codespace/mcp.sock. [CODESPACE_SOCKET]",
    ),
]


def socket_path(given: Path | None) -> Path:
    """As `Settings.socket_path`, without loading the settings' machinery: `call` and `connect` start often."""
    import os

    from gateway.errors import ConfigurationError

    named: Any = given or os.environ.get("CODESPACE_SOCKET")
    if named:
        return Path(os.path.abspath(named))
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if not runtime.startswith("/"):
        raise ConfigurationError(
            "no socket given and XDG_RUNTIME_DIR is not set", "--socket", "name the socket, or set CODESPACE_SOCKET"
        )
    return Path(runtime, "codespace", "mcp.sock")
