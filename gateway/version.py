"""The version of the installed program. Called by the MCP server's identity and `--version`."""

from __future__ import annotations

from importlib import metadata


def version() -> str:
    """As the package's metadata has it. Raises `importlib.metadata.PackageNotFoundError` outside an installation."""
    return metadata.version("codespace")
