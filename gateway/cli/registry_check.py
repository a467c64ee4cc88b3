"""`codespace registry check`: validates a registry as `serve` would, and prints what it grants."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.registry import effective_permissions, load_registry
from gateway.settings import Settings

if TYPE_CHECKING:
    from gateway.cli.app import Parts


def check(parts: Parts, file: Path) -> int:
    """Returns 0. Raises `RegistryRefused` (status 2) with file, key and remedy."""
    path = Path(os.path.abspath(file))
    registry = load_registry(path, parts.guarded(Settings.load(registry=path)))
    print(effective_permissions(registry), end="")
    return 0
