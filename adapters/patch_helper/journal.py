"""The journal of one operation: what a commit is about to do, and how far it came. Names and hashes, never contents.

A file of JSON lines, named `<operation_id>.journal` by the operation that made it. The first is the whole intent and is
durable before anything in the workspace changes, so no journal means that nothing happened. `committed` is durable once
every new hash was read back from disk, and before the first displaced original is removed: without it recovery goes
back, with it forward. Whichever way, the journal is made durably sure of it first, for a mark whose flush failed may or
may not be on the disk. The last line is the outcome. A journal with an outcome stays until the next operation of the
workspace, so that the ledger can still be told what became of this one if its answer was lost.

To be durable at the price of a flush, without a commit of the file system, lines go over zeros that were written and
flushed when the file was made, each from the start of a sector. So a line that is not whole holds a zero or lacks its
end, and counts as not written; a whole one that makes no sense is damage. The operation after one that is over goes on
in the same file: its intent follows, and the last intent counts. Only where there is none does the name tell.
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
    """The file of the last operation of this process, open. `name`: of the file. `end`: where the next line goes; None
    where that is to be found out."""

    name: str
    operation_id: str
    descriptor: int
    end: int | None
    length: int
    is_over: bool


class Journal:
    """The journals in one directory, which only this helper writes to. Raises `OSError`. A journal that is written is
    named by its file or by its last operation."""

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
        """Makes the intent durable. EEXIST if there is a file of its name."""
        data = _line(_plain(intent))
        held = self._held
        if held is None or not held.is_over or (held.end or 0) + len(data) + _MARKS_LENGTH > held.length:
            held = self._create(intent.operation_id, len(data))
        held.operation_id, held.is_over = intent.operation_id, False
        self._put(held, data, f"{intent.operation_id} intent", durable=True)

    def commit(self, name: str) -> None:
        """From here on only forward; durable."""
        self._mark(name, {"mark": "committed"}, durable=True)

    def confirm(self, name: str) -> None:
        """Makes the mark of a committed operation durable once more: whoever wrote it may not have seen it flushed. A
        flush that failed is told once, and the next one says nothing of the same bytes: so they are written again."""
        self._settle(name, _line({"mark": "committed"}), "committed, once more")

    def withdraw(self, name: str) -> None:
        """Durably without the mark `committed`, whatever became of an attempt to write it: from here on only back."""
        self._settle(name, b"", "withdrawn")

    def finish(self, name: str, outcome: Outcome, reason: str) -> None:
        """Not durable on its own: without it recovery comes to the same outcome once more."""
        self._mark(name, {"mark": outcome, "reason": reason}, durable=False)
        held = self._held_of(name)
        if held is not None:
            held.is_over = True

    def forget(self, name: str) -> None:
        """`name`: of the file."""
        self._steps.unlink(self._directory, name + SUFFIX)
        if self._held_of(name) is not None:
            self.close()

    def goes_on(self, name: str, operation_id: str) -> bool:
        """Known without a look: its last operation is over and was another one, so this one will follow in it."""
        held = self._held_of(name)
        return held is not None and held.is_over and held.operation_id != operation_id

    def names(self) -> list[str]:
        """Of all files in the directory, sorted."""
        names = [name.removesuffix(SUFFIX) for name in os.listdir(self._directory) if name.endswith(SUFFIX)]
        return sorted(name for name in names if is_operation_id(name))

    def read(self, name: str) -> Record:
        """Its last operation; `name`: of the file. Raises what damage leads to: `ValueError`, `LookupError`,
        `TypeError`."""
        descriptor = os.open(name + SUFFIX, os.O_RDONLY | _FLAGS, dir_fd=self._directory)
        with open(descriptor, "rb") as file:
            records = _records(file.read(_MAX_BYTES))
        intent: Intent | None = None
        marks: dict[str, str] = {}
        earlier: list[Intent] = []
        for record, _ in records:
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
        self._held = _Held(name, name, descriptor, 0, length, False)
        return self._held

    def _held_of(self, name: str) -> _Held | None:
        held = self._held
        return held if held is not None and name in (held.name, held.operation_id) else None

    def _mark(self, name: str, record: dict[str, str], *, durable: bool) -> None:
        what = f"{name} {record['mark']}"
        held = self._held_of(name)
        if held is not None:
            self._put(held, _line(record), what, durable=durable)
            return
        descriptor = os.open(name + SUFFIX, os.O_RDWR | _FLAGS, dir_fd=self._directory)
        try:
            self._put(_Held(name, name, descriptor, None, 0, False), _line(record), what, durable=durable)
        finally:
            os.close(descriptor)

    def _settle(self, name: str, line: bytes, what: str) -> None:
        """`line`, or nothing, durably in the place of whatever follows the last intent."""
        held = self._held_of(name)
        if held is None:
            descriptor = os.open(name + SUFFIX, os.O_RDWR | _FLAGS, dir_fd=self._directory)
        else:
            descriptor, held.end = held.descriptor, None  # found out anew by the line after this
        try:
            data = os.pread(descriptor, _MAX_BYTES, 0)
            at = max(end for record, end in _records(data) if "mark" not in record)
            used = max(len(data.rstrip(b"\0")), at + len(line))
            self._steps.write_at(descriptor, line.ljust(_aligned(used) - at, b"\0"), at, f"journal of {name} {what}")
            self._steps.flush(descriptor, f"journal of {name} {what}")
        finally:
            if held is None:
                os.close(descriptor)

    def _put(self, held: _Held, line: bytes, what: str, *, durable: bool) -> None:
        at = self._end(held.descriptor, what) if held.end is None else held.end
        held.end = None  # unless all goes well
        self._steps.write_at(held.descriptor, line, at, f"journal of {what}")
        if durable:
            self._steps.flush(held.descriptor, f"journal of {what}")
        held.end = _aligned(at + len(line))

    def _end(self, descriptor: int, what: str) -> int:
        """Where the next line goes, with zeros from there on."""
        data = os.pread(descriptor, _MAX_BYTES, 0)
        records = _records(data)
        end = records[-1][1] if records else 0
        if data[end:].strip(b"\0"):  # of a line that was being written when the machine stopped, or the disk failed
            self._steps.write_at(descriptor, bytes(len(data) - end), end, f"journal of {what}, zeros")
            self._steps.flush(descriptor, f"journal of {what}, zeros")
        return end


_OUTCOMES: tuple[Outcome, ...] = ("applied", "failed_rolled_back", "failed_partial")


def _aligned(offset: int) -> int:
    return -(-offset // _SECTOR) * _SECTOR


def _records(data: bytes) -> list[tuple[dict[str, Any], int]]:
    """The whole lines of a journal, each with where the next one goes. Raises `ValueError` for one that makes no
    sense."""
    found: list[tuple[dict[str, Any], int]] = []
    at = 0
    while (end := data.find(b"\n", at)) >= 0 and b"\0" not in (line := data[at:end]):
        at = _aligned(end + 1)
        found.append((json.loads(line), at))
    return found


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
