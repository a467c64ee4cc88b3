"""Files in a dictionary, as a `FileView` for the pure engine, and what a plan leaves of them."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from adapters.v4a.engine import FileKind, Plan
from adapters.v4a.paths import parents

CASES_FILE = Path(__file__).parents[2] / "data" / "v4a" / "cases.json"


def load_cases() -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = json.loads(CASES_FILE.read_text())
    return cases


def content(value: str | Mapping[str, str]) -> bytes:
    """The bytes of a content as cases write it."""
    return value.encode() if isinstance(value, str) else base64.b64decode(value["b64"])


def version(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


class MemoryView:
    """`files`, `links`, `fifos` and empty `dirs`, by path."""

    def __init__(
        self,
        files: Mapping[str, bytes],
        links: Iterable[str] = (),
        fifos: Iterable[str] = (),
        dirs: Iterable[str] = (),
    ) -> None:
        self.files = dict(files)
        self.links, self.fifos = set(links), set(fifos)
        self.dirs = {"", *dirs}
        for name in (*files, *links, *fifos, *dirs):
            self.dirs.update(parents(name))

    @classmethod
    def of_case(cls, case: Mapping[str, Any]) -> MemoryView:
        files = {path: content(value) for path, value in case["files"].items()}
        files |= {name: files[existing] for name, existing in case.get("hard_links", {}).items()}
        return cls(files, case.get("links", {}), case.get("fifos", ()), case.get("dirs", ()))

    def kind(self, path: str) -> FileKind:
        for part in (*parents(path), path):
            if part in self.links:
                return "symlink"
            if part in self.fifos:
                return "special" if part == path else "not_directory"
        return "file" if path in self.files else "directory" if path in self.dirs else "absent"

    def read(self, path: str) -> bytes:
        return self.files[path]

    def version(self, path: str) -> str:
        return version(self.files[path])

    def after(self, plan: Plan) -> dict[str, bytes]:
        """The files once the plan is carried out."""
        files = dict(self.files)
        for target in plan.targets:
            files.pop(target.path, None)
            if target.content is not None:
                files[target.path] = target.content
        return files
