"""The pinned upstream engine, run as a program on a directory of its own."""

from __future__ import annotations

import re
import subprocess
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

from tests.parity.generator import Case

PIN = Path(__file__).parents[2] / "adapters" / "v4a" / "UPSTREAM"
_KINDS = (
    (re.compile(r"Invalid patch hunk on line (\d+)"), "invalid_hunk"),
    (re.compile(r"Invalid patch: "), "invalid_patch"),
    (re.compile(r"No files were modified"), "empty_patch"),
    (re.compile(r"Failed to find context"), "context_not_found"),
    (re.compile(r"Failed to find expected lines"), "lines_not_found"),
    (re.compile(r"Failed to (read|write|delete|create|remove)"), "file"),
)


@dataclass(frozen=True)
class Upstream:
    """`kind`: "ok", or the kind of refusal; `line` with `invalid_hunk`. `files`: what is there afterwards."""

    kind: str
    line: int | None
    files: dict[str, bytes]


def pinned_version() -> str:
    version: str = tomllib.loads(PIN.read_text())["version"]
    return version


def version_of(program: str) -> str:
    """What the program says it is."""
    said = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=60, check=True).stdout
    return said.split()[-1]


def run(program: str, case: Case) -> Upstream:
    """Applies the case with the program. Raises ValueError for a message that is none of the known kinds."""
    with tempfile.TemporaryDirectory(prefix="codespace-parity-") as directory:
        root = Path(directory)
        for path, data in case.files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(data)
        done = subprocess.run(
            [program, "--codex-run-as-apply-patch", case.patch], cwd=root, capture_output=True, timeout=60, check=False
        )
        files = {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}
    if done.returncode == 0:
        return Upstream("ok", None, files)
    message = done.stderr.decode("utf-8", "replace")
    for pattern, kind in _KINDS:
        if found := pattern.search(message):
            return Upstream(kind, int(found.group(1)) if kind == "invalid_hunk" else None, files)
    raise ValueError(f"a message of no known kind: {message!r}")
