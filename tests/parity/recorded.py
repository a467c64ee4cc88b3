"""Outcomes of the pinned upstream engine for generated cases, kept so that they can be compared without its program.

A record holds the seed, a digest of the case that it makes (so that a change of the generator is noticed), and what
upstream did: its kind, a line number, and the files that it changed.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

from tests.parity.generator import Case, make_case
from tests.parity.upstream import Upstream, pinned_version

RECORDED = Path(__file__).parents[1] / "data" / "v4a" / "parity.json"


class StaleRecord(Exception):
    """The records were made by another generator or of another version: record them anew with CODEX_BIN."""


def digest(case: Case) -> str:
    files = sorted((path, base64.b64encode(data).decode()) for path, data in case.files.items())
    return hashlib.sha256(json.dumps([files, case.patch]).encode()).hexdigest()[:16]


def save(outcomes: Iterable[tuple[int, Case, Upstream]]) -> None:
    records = []
    for seed, case, theirs in outcomes:
        changed = {path: _text(data) for path, data in theirs.files.items() if case.files.get(path) != data}
        gone = sorted(case.files.keys() - theirs.files.keys())
        records.append([seed, digest(case), theirs.kind, theirs.line, changed, gone])
    lines = ",\n".join(json.dumps(record) for record in records)
    RECORDED.write_text(f'{{"version": "{pinned_version()}", "records": [\n{lines}\n]}}\n')


def load() -> list[tuple[int, Case, Upstream]]:
    """Raises `StaleRecord`."""
    recorded = json.loads(RECORDED.read_text())
    if recorded["version"] != pinned_version():
        raise StaleRecord(f"recorded of {recorded['version']}, the pin is {pinned_version()}")
    outcomes = []
    for seed, expected, kind, line, changed, gone in recorded["records"]:
        case = make_case(seed)
        if digest(case) != expected:
            raise StaleRecord(f"seed {seed} makes another case now")
        files = {path: data for path, data in case.files.items() if path not in gone}
        files |= {path: base64.b64decode(data) for path, data in changed.items()}
        outcomes.append((seed, case, Upstream(kind, line, files)))
    return outcomes


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
