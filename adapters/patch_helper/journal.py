"""The journal of one operation: what a commit is about to do, and how far it came. Names and hashes, never contents.

A file `<operation_id>.journal` of JSON lines. The first is the whole intent and is durable before anything in the
workspace changes, so no journal means that nothing happened. `committed` is durable once every new hash was read back
from disk, and before the first displaced original is removed: without it recovery goes back, with it forward. The last
line is the outcome. A journal with an outcome stays until the next operation of the workspace, so that the ledger can
still be told what became of this one if its answer was lost.

To be durable at the price of a flush, without a commit of the file system, lines go over zeros that were written and
flushed when the file was made, each from the start of a sector. So a line that is not whole holds a zero or lacks its
end, and counts as not written; a whole one that makes no sense is damage. The operation after one that is over goes on
in the same file, under its own name: its intent follows, and the last intent counts. That new name need not be durable,
since an operation is told by its intent, and only a file without any by its name.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from dataclasses import dataclass
from typing import Any, Literal

from adapters.patch_helper.steps import Steps

Outcome = Literal["applied", "failed_rolled_back", "failed_partial"]
Action = Literal["add", "replace", "delete"]
SUFFIX = ".journal"
TEMP_PREFIX = ".codespace-patch-"
_OPERATION_ID = re.compile(r"[A-Za-z0-9_-]{1,128}", re.ASCII)
_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC
_MAX_BYTES = 64 * 1024 * 1024
_SECTOR = 512
"""What disks write whole or not at all, at least."""
_LENGTH = 256 * 1024
_MARKS_LENGTH = 4 * _SECTOR
"""Room that an intent leaves behind it: both marks fit, however full the disk is by then."""


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
    """A journal as read. `intent` None: it was not complete, so nothing had been done. `outcome`, `reason`: if over.
    `earlier`: what was committed in the same file before."""

    operation_id: str
    intent: Intent | None
    committed: bool
    outcome: Outcome | None
    reason: str
    earlier: tuple[Intent, ...] = ()


def temp_name() -> str:
    """A hidden name that nobody else uses, and that says whose it is."""
    return TEMP_PREFIX + secrets.token_hex(8)


def is_operation_id(text: str) -> bool:
    return _OPERATION_ID.fullmatch(text) is not None


@dataclass
class _Held:
    """The file of the last operation of this process, open. `end`: where the next line goes."""

    name: str
    descriptor: int
    end: int
    length: int
    is_over: bool


class Journal:
    """The journals in one directory, which only this helper writes to. Raises `OSError`. A journal's name is the id of
    its operation, unless the machine or the helper stopped while it changed hands."""

    def __init__(self, directory_fd: int, steps: Steps) -> None:
        self._directory = directory_fd
        self._steps = steps
        self._held: _Held | None = None

    def close(self) -> None:
        """Idempotent; the next operation begins a new file."""
        held, self._held = self._held, None
        if held is not None:
            os.close(held.descriptor)

    def begin(self, intent: Intent) -> None:
        """Makes the intent durable. EEXIST if the operation has a journal already."""
        data = _line(_plain(intent))
        held = self._held
        if held is None or not held.is_over or held.end + len(data) + _MARKS_LENGTH > held.length:
            held = self._create(intent.operation_id, len(data))
        else:
            self._steps.move(self._directory, held.name + SUFFIX, self._directory, intent.operation_id + SUFFIX)
            held.name = intent.operation_id
        held.is_over = False
        self._put(held, data, held.name + SUFFIX, durable=True)

    def commit(self, name: str) -> None:
        """From here on only forward; durable."""
        self._mark(name, {"mark": "committed"}, durable=True)

    def finish(self, name: str, outcome: Outcome, reason: str) -> None:
        """Not durable on its own: without it recovery comes to the same outcome once more."""
        self._mark(name, {"mark": outcome, "reason": reason}, durable=False)
        if self._held is not None and self._held.name == name:
            self._held.is_over = True

    def forget(self, name: str) -> None:
        self._steps.unlink(self._directory, name + SUFFIX)
        if self._held is not None and self._held.name == name:
            self.close()

    def is_over(self, name: str) -> bool:
        """Known without a look: this process wrote its outcome."""
        return self._held is not None and self._held.name == name and self._held.is_over

    def names(self) -> list[str]:
        """Of all journals in the directory, sorted."""
        names = [name.removesuffix(SUFFIX) for name in os.listdir(self._directory) if name.endswith(SUFFIX)]
        return sorted(name for name in names if is_operation_id(name))

    def read(self, name: str) -> Record:
        """Its last operation. Raises what a damaged one leads to: `ValueError`, `LookupError`, `TypeError`."""
        descriptor = os.open(name + SUFFIX, os.O_RDONLY | _FLAGS, dir_fd=self._directory)
        with open(descriptor, "rb") as file:
            records, _ = _records(file.read(_MAX_BYTES))
        intent: Intent | None = None
        marks: dict[str, str] = {}
        earlier: list[Intent] = []
        for record in records:
            if "mark" in record:
                marks[record["mark"]] = record.get("reason", "")
                continue
            if intent is not None and "committed" in marks:
                earlier.append(intent)
            intent, marks = _intent(record), {}
        if intent is None:
            return Record(name, None, False, None, "")
        outcome = next((outcome for outcome in _OUTCOMES if outcome in marks), None)
        reason = "" if outcome is None else marks[outcome]
        return Record(intent.operation_id, intent, "committed" in marks, outcome, reason, tuple(earlier))

    def _create(self, name: str, size: int) -> _Held:
        """A file of zeros, durable with its name, in the place of the one that is held."""
        length = _aligned(max(_LENGTH, size + _MARKS_LENGTH))
        descriptor = self._steps.create(self._directory, name + SUFFIX, 0o600)
        try:
            self._steps.write(descriptor, bytes(length), f"{name}{SUFFIX} zeros")
            self._steps.fsync(descriptor, f"{name}{SUFFIX} zeros")
            self._steps.fsync(self._directory, "journal directory")
            if self._held is not None and self._held.is_over:
                self.forget(self._held.name)
        except BaseException:
            os.close(descriptor)
            raise
        self.close()
        self._held = _Held(name, descriptor, 0, length, False)
        return self._held

    def _mark(self, name: str, record: dict[str, str], *, durable: bool) -> None:
        what = f"{name}{SUFFIX} {record['mark']}"
        if self._held is not None and self._held.name == name:
            self._put(self._held, _line(record), what, durable=durable)
            return
        descriptor = os.open(name + SUFFIX, os.O_RDWR | _FLAGS, dir_fd=self._directory)
        try:
            data = os.pread(descriptor, _MAX_BYTES, 0)
            _, end = _records(data)
            if data[end:].strip(b"\0"):  # of a line that was being written when the machine stopped
                self._steps.write_at(descriptor, bytes(len(data) - end), end, f"{what} zeros")
                self._steps.flush(descriptor, f"{what} zeros")
            self._put(_Held(name, descriptor, end, len(data), False), _line(record), what, durable=durable)
        finally:
            os.close(descriptor)

    def _put(self, held: _Held, line: bytes, what: str, *, durable: bool) -> None:
        at, held.end = held.end, _aligned(held.end + len(line))
        self._steps.write_at(held.descriptor, line, at, what)
        if durable:
            self._steps.flush(held.descriptor, what)


_OUTCOMES: tuple[Outcome, ...] = ("applied", "failed_rolled_back", "failed_partial")


def _aligned(offset: int) -> int:
    return -(-offset // _SECTOR) * _SECTOR


def _records(data: bytes) -> tuple[list[dict[str, Any]], int]:
    """The whole lines of a journal, and where the next one goes. Raises `ValueError` for one that makes no sense."""
    found: list[dict[str, Any]] = []
    at = 0
    while (end := data.find(b"\n", at)) >= 0 and b"\0" not in (line := data[at:end]):
        found.append(json.loads(line))
        at = _aligned(end + 1)
    return found, at


def _line(record: dict[str, Any]) -> bytes:
    return json.dumps(record, separators=(",", ":")).encode() + b"\n"


def _plain(intent: Intent) -> dict[str, Any]:
    """As `dataclasses.asdict`, which takes ten times as long."""
    return {**vars(intent), "entries": [vars(entry) for entry in intent.entries]}


def _intent(record: dict[str, Any]) -> Intent:
    return Intent(
        operation_id=record["operation_id"],
        root=(record["root"][0], record["root"][1]),
        entries=tuple([Entry(**entry) for entry in record["entries"]]),
        directories=tuple(record["directories"]),
        files=tuple(record["files"]),
        changes=tuple(record["changes"]),
    )
