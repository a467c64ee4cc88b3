"""The journal of one operation: what a commit is about to do, and how far it came. Names and hashes, never contents.

One file an operation, `<operation_id>.journal`, of JSON lines. The first is the whole intent and is durable before
anything in the workspace changes, so no journal means that nothing happened. `committed` is durable once every new hash
was read back from disk, and before the first displaced original is removed: without it recovery goes back, with it
forward. The last line is the outcome. A journal with an outcome stays until the next operation of the workspace, so
that the ledger can still be told what became of this one if its answer was lost.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from dataclasses import asdict, dataclass
from typing import Any, Literal

from adapters.patch_helper.steps import Steps

Outcome = Literal["applied", "failed_rolled_back", "failed_partial"]
Action = Literal["add", "replace", "delete"]
SUFFIX = ".journal"
TEMP_PREFIX = ".codespace-patch-"
_OPERATION_ID = re.compile(r"[A-Za-z0-9_-]{1,128}", re.ASCII)
_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC
_MAX_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True)
class Entry:
    """One name. `at`: the directory that `temp` is in, which exists before. `old`, `new`: versions before and after,
    None for no file. `inode`: of the file before, which tells two files of equal content apart."""

    action: Action
    path: str
    at: str
    temp: str
    old: str | None
    new: str | None
    inode: int | None


@dataclass(frozen=True)
class Intent:
    """`root`: device and inode. `directories`: to be made, parents first. `files`, `changes`: of the answer."""

    operation_id: str
    root: tuple[int, int]
    entries: tuple[Entry, ...]
    directories: tuple[str, ...]
    files: tuple[str, ...]
    changes: tuple[dict[str, Any], ...]


@dataclass(frozen=True)
class Record:
    """A journal as read. `intent` None: it was not complete, so nothing had been done. `outcome`, `reason`: if over."""

    operation_id: str
    intent: Intent | None
    committed: bool
    outcome: Outcome | None
    reason: str


def temp_name() -> str:
    """A hidden name that nobody else uses, and that says whose it is."""
    return TEMP_PREFIX + secrets.token_hex(8)


def is_operation_id(text: str) -> bool:
    return _OPERATION_ID.fullmatch(text) is not None


class Journal:
    """The journals in one directory, which only this helper writes to. Raises `OSError`."""

    def __init__(self, directory_fd: int, steps: Steps) -> None:
        self._directory = directory_fd
        self._steps = steps

    def begin(self, intent: Intent) -> None:
        """Makes the intent durable. EEXIST if the operation has a journal already."""
        name = intent.operation_id + SUFFIX
        descriptor = self._steps.create(self._directory, name, 0o600)
        try:
            self._steps.write(descriptor, _line(asdict(intent)), name)
            self._steps.fsync(descriptor, name)
        finally:
            os.close(descriptor)
        self._steps.fsync(self._directory, "journal directory")

    def commit(self, operation_id: str) -> None:
        """From here on only forward; durable."""
        self._append(operation_id, {"mark": "committed"}, durable=True)

    def finish(self, operation_id: str, outcome: Outcome, reason: str) -> None:
        """Not durable on its own: without it recovery comes to the same outcome once more."""
        self._append(operation_id, {"mark": outcome, "reason": reason}, durable=False)

    def forget(self, operation_id: str) -> None:
        self._steps.unlink(self._directory, operation_id + SUFFIX)

    def operation_ids(self) -> list[str]:
        """Of all journals in the directory, sorted."""
        names = [name.removesuffix(SUFFIX) for name in os.listdir(self._directory) if name.endswith(SUFFIX)]
        return sorted(name for name in names if is_operation_id(name))

    def read(self, operation_id: str) -> Record:
        descriptor = os.open(operation_id + SUFFIX, os.O_RDONLY | _FLAGS, dir_fd=self._directory)
        with open(descriptor, "rb") as file:
            lines = file.read(_MAX_BYTES).split(b"\n")
        # A line without its LF was being written when the machine stopped.
        records = [json.loads(line) for line in lines[:-1]]
        if not records:
            return Record(operation_id, None, False, None, "")
        marks = {record["mark"]: record.get("reason", "") for record in records[1:]}
        intent = _intent(records[0])
        for outcome in _OUTCOMES:
            if outcome in marks:
                return Record(operation_id, intent, "committed" in marks, outcome, marks[outcome])
        return Record(operation_id, intent, "committed" in marks, None, "")

    def _append(self, operation_id: str, record: dict[str, str], *, durable: bool) -> None:
        name = operation_id + SUFFIX
        descriptor = os.open(name, os.O_RDWR | os.O_APPEND | _FLAGS, dir_fd=self._directory)
        try:
            _drop_torn_line(descriptor)
            self._steps.write(descriptor, _line(record), f"{name} {record['mark']}")
            if durable:
                self._steps.fsync(descriptor, f"{name} {record['mark']}")
        finally:
            os.close(descriptor)


_OUTCOMES: tuple[Outcome, ...] = ("applied", "failed_rolled_back", "failed_partial")


def _drop_torn_line(descriptor: int) -> None:
    """Removes what follows the last LF: a mark that was being written when the machine stopped."""
    size = os.fstat(descriptor).st_size
    if size and os.pread(descriptor, 1, size - 1) != b"\n":
        os.ftruncate(descriptor, os.pread(descriptor, min(size, _MAX_BYTES), 0).rfind(b"\n") + 1)


def _line(record: dict[str, Any]) -> bytes:
    return json.dumps(record, separators=(",", ":")).encode() + b"\n"


def _intent(record: dict[str, Any]) -> Intent:
    return Intent(
        operation_id=record["operation_id"],
        root=(record["root"][0], record["root"][1]),
        entries=tuple([Entry(**entry) for entry in record["entries"]]),
        directories=tuple(record["directories"]),
        files=tuple(record["files"]),
        changes=tuple(record["changes"]),
    )
