"""A patch against a view of the files: the order of work of section 8 of the format's reference, all in memory.

text → sections → paths as text → protected names → paths on disk → expected versions → the sections, one by one.
The first failing step decides the answer. Nothing here writes; what a plan holds is for the caller to commit.
It knows files only through `FileView`. Called by the patch helper, and by tests with a dictionary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from adapters.v4a.budget import Budget, Limits
from adapters.v4a.document import Document
from adapters.v4a.errors import PatchError, TooCostly
from adapters.v4a.matcher import Matcher
from adapters.v4a.model import AddFile, DeleteFile, Patch, Section, UpdateFile
from adapters.v4a.parser import parse
from adapters.v4a.paths import clean_path, folded, parents
from adapters.v4a.rewriter import rewrite
from adapters.v4a.text import shorten

FileKind = Literal["absent", "file", "directory", "special", "symlink", "not_directory"]
ABSENT = "absent"


class FileView(Protocol):
    """The files as they are on disk, below one root. Paths are clean: relative, no `.` or `..`; "" is the root."""

    def kind(self, path: str) -> FileKind:
        """What the name is, walked without following anything. `symlink`: at any component. `not_directory`: a special
        file stands where a directory is needed. A name below a regular file is `absent`."""
        ...

    def read(self, path: str) -> bytes:
        """The content of a regular file."""
        ...

    def version(self, path: str) -> str:
        """`sha256:<hex>` of a regular file's content."""
        ...


@dataclass(frozen=True)
class Target:
    """What becomes of one name. `content`: the new bytes, None if there is no file afterwards. `origin`: the file on
    disk whose mode and attributes it takes along, None for the default ones. `before`: there was a file.
    `unchanged`: the file that is there may stay as it is."""

    path: str
    content: bytes | None
    origin: str | None
    before: bool
    unchanged: bool


@dataclass(frozen=True)
class Change:
    """The net effect on one name. `from_path`: with kind `move`."""

    path: str
    kind: Literal["add", "update", "delete", "move"]
    from_path: str | None = None


@dataclass(frozen=True)
class Plan:
    """`targets`: every name with a file before or after, in order of first mention. `changes`: the same, a move as one.
    `warnings`: in patch order."""

    targets: tuple[Target, ...]
    changes: tuple[Change, ...]
    warnings: tuple[dict[str, Any], ...]


def plan(
    text: str,
    view: FileView,
    expected_versions: Mapping[str, str] | None = None,
    *,
    protect: Sequence[str] = (),
    limits: Limits | None = None,
) -> Plan:
    """What `text` makes of the files in `view`.

    `expected_versions`: path to `sha256:<hex>` or `absent`; may name files that the patch does not touch. `protect`:
    names that must not change. Raises `PatchError`, always before anything is written. Deterministic and idempotent.
    """
    limits = limits or Limits()
    patch = parse(text, limits)
    names = _clean_names(patch, limits)
    # Pairs: two spellings of one name may come with two versions, of which one cannot hold.
    expected = [(clean_path(path), version) for path, version in (expected_versions or {}).items()]
    if sum(map(len, names)) + sum(len(path) for path, _ in expected) > limits.max_name_bytes:
        raise TooCostly("max_name_bytes", limits.max_name_bytes, "the names of its files are too long together")
    _refuse_protected(names, protect)
    for path in [*names, *(path for path, _ in expected)]:
        _check_on_disk(path, view)
    _check_versions(expected, view)
    return _Work(view, Budget(limits)).run(patch)


# --- steps 2 to 4 -----------------------------------------------------------------------------------------------------
def _clean_names(patch: Patch, limits: Limits) -> list[str]:
    """Cleans the paths of all sections in place; every distinct one, in order of first mention."""
    names: dict[str, None] = {}
    for section in patch.sections:
        section.path = clean_path(section.path)
        names[section.path] = None
        if isinstance(section, UpdateFile) and section.move_to is not None:
            section.move_to = clean_path(section.move_to)
            names[section.move_to] = None
    if len(names) > limits.max_files:
        raise TooCostly("max_files", limits.max_files, f"it names {len(names)} files")
    return list(names)


def _refuse_protected(names: Sequence[str], protect: Sequence[str]) -> None:
    """By folded names, since the file system may not tell case: a name that is refused for nothing is the lesser evil,
    and git takes none that reads as `.git` either."""
    guarded = [(clean, folded(clean)) for clean in map(clean_path, protect)]
    for path in names:
        name = folded(path)
        for clean, guard in guarded:
            if name == guard or name.startswith(guard + "/") or guard.startswith(name + "/"):
                raise PatchError(
                    "UNAUTHORIZED",
                    f"path `{shorten(path)}` is refused: `{clean}` is protected by the operator in this workspace, in "
                    "upper and lower case. Leave it out of the patch.",
                    path=path,
                    protected=clean,
                )


def _check_on_disk(path: str, view: FileView) -> None:
    match view.kind(path):
        case "symlink":
            raise PatchError(
                "SYMLINK_REJECTED",
                f"path `{shorten(path)}` is refused: it is or leads through a symbolic link. Name the file itself.",
                path=path,
            )
        case "directory":
            raise _is_directory(path)
        case "special":
            raise PatchError(
                "SPECIAL_FILE_REJECTED",
                f"path `{shorten(path)}` is refused: it is a FIFO, socket or device, no regular file.",
                path=path,
            )
        case "not_directory":
            raise _not_directory(path)


def _check_versions(expected: Sequence[tuple[str, str]], view: FileView) -> None:
    names = dict.fromkeys(path for path, _ in expected)
    actual = {path: view.version(path) if view.kind(path) == "file" else ABSENT for path in names}
    conflicts = [
        {"path": path, "expected": version, "actual": actual[path]}
        for path, version in expected
        if actual[path] != version
    ]
    if conflicts:
        shown = "; ".join(f"{shorten(c['path'])} is {c['actual']}" for c in conflicts[:5])
        raise PatchError(
            "VERSION_CONFLICT",
            f"{len(conflicts)} of the expected versions do not hold: {shown}. Read them again and renew the patch.",
            conflicts=conflicts,
        )


def _is_directory(path: str) -> PatchError:
    return PatchError(
        "SPECIAL_FILE_REJECTED",
        f"path `{shorten(path) or '.'}` is refused: it is a directory. Name a file in it.",
        path=path or ".",
    )


def _not_directory(path: str) -> PatchError:
    return PatchError(
        "PATH_NOT_DIRECTORY",
        f"path `{shorten(path)}` is refused: a part of it is a file, not a directory. Choose another name.",
        path=path,
    )


# --- step 5 -----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class _File:
    """A file at this moment. `content` None: still as on disk at `origin`."""

    content: bytes | None
    origin: str | None


class _Work:
    """The files as the sections so far left them: `view` below, what changed above."""

    def __init__(self, view: FileView, budget: Budget) -> None:
        self._view = view
        self._budget = budget
        self._files: dict[str, _File | None] = {}
        self._below: dict[str, int] = {}  # directory → live files that sections made somewhere below it
        self._mentioned: dict[str, None] = {}
        self._warnings: list[dict[str, Any]] = []

    def run(self, patch: Patch) -> Plan:
        if patch.environment_id:
            self._warnings.append({"kind": "environment_id_ignored"})
        for section in patch.sections:
            self._apply(section)
        return self._plan()

    def _apply(self, section: Section) -> None:
        path = section.path
        self._budget.spend(200)
        self._mentioned[path] = None
        match section:
            case AddFile():
                self._check_free(path, "ADD_FILE_EXISTS")
                content = section.content.encode()
                self._budget.hold(len(content))
                self._set(path, _File(content, None))
            case DeleteFile():
                self._existing(path)
                self._set(path, None)
            case UpdateFile():
                self._update(section)

    def _update(self, section: UpdateFile) -> None:
        path, to = section.path, section.move_to
        file = self._existing(path)
        if to is not None and to != path:
            self._mentioned[to] = None
            self._check_free(to, "MOVE_DESTINATION_EXISTS")
        if file.content is None:
            assert file.origin is not None
            data = self._view.read(file.origin)
            self._budget.hold(len(data))
        else:
            data = file.content
        document = Document(data, self._budget)
        matcher = Matcher(section, path, document)
        runs = matcher.locate()
        self._warnings += matcher.warnings
        content = rewrite(document, runs)
        if content is not data:
            self._budget.hold(len(content))
            file = _File(content, file.origin)
        if to is not None and to != path:
            self._set(path, None)
            path = to
        self._set(path, file)

    def _existing(self, path: str) -> _File:
        self._check_place(path)
        file = self._file(path)
        if file is None:
            raise PatchError(
                "FILE_NOT_FOUND",
                f"there is no file `{shorten(path)}` at this point of the patch. Look for its name with find.",
                path=path,
            )
        return file

    def _check_free(self, path: str, exists: str) -> None:
        self._check_place(path)
        if self._file(path) is not None:
            raise PatchError(
                exists,
                f"there already is a file `{shorten(path)}`: nothing is overwritten. "
                "Update it instead, or delete it in an earlier section.",
                path=path,
            )

    def _check_place(self, path: str) -> None:
        for parent in parents(path):
            self._budget.spend(20)
            if self._file(parent) is not None:
                raise _not_directory(path)
        if self._below.get(path):
            raise _is_directory(path)

    def _file(self, path: str) -> _File | None:
        if path in self._files:
            return self._files[path]
        return _File(None, path) if self._view.kind(path) == "file" else None

    def _set(self, path: str, file: _File | None) -> None:
        step = (file is not None) - (self._files.get(path) is not None)
        for parent in parents(path):
            self._below[parent] = self._below.get(parent, 0) + step
        self._files[path] = file

    # --- the net effect -----------------------------------------------------------------------------------------------
    def _plan(self) -> Plan:
        targets: list[Target] = []
        for path in self._mentioned:
            before = self._view.kind(path) == "file"
            file = self._files[path]
            if file is None:
                if before:
                    targets.append(Target(path, None, None, True, False))
                continue
            unchanged = file.origin == path and file.content is None
            content = file.content
            if content is None:
                assert file.origin is not None
                content = self._view.read(file.origin)
            targets.append(Target(path, content, file.origin, before, unchanged))
        return Plan(tuple(targets), self._changes(targets), tuple(self._warnings))

    def _changes(self, targets: Sequence[Target]) -> tuple[Change, ...]:
        gone = {target.path for target in targets if target.content is None}
        moved = {t.origin: t.path for t in targets if t.content is not None and not t.before and t.origin in gone}
        changes: list[Change] = []
        for target in targets:
            if target.content is None:
                if target.path not in moved:
                    changes.append(Change(target.path, "delete"))
            elif target.before:
                changes.append(Change(target.path, "update"))
            elif target.origin in moved:
                changes.append(Change(target.path, "move", target.origin))
            else:
                changes.append(Change(target.path, "add"))
        return tuple(changes)
