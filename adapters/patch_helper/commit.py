"""Carries a plan out: all of it or nothing (PATCH-5, PATCH-6).

In order: journal the intent · write the new files beside the old ones · compare the expected versions once more ·
rename deleted files aside, make directories, exchange updated files, put new ones in place · compare what was displaced
with what the plan was made from, so that the version check is a true compare-and-swap · flush directories · read every
hash back from disk · mark the journal · remove the displaced originals.

Any failure before the mark is rolled back through the journal. A hard link is cut, since a name is replaced and no file
is written to. Knows no patch text. Called by `program`.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from adapters.patch_helper.journal import Entry, Intent, Journal, temp_name
from adapters.patch_helper.recovery import ORDER, Recovery
from adapters.patch_helper.steps import Steps
from adapters.patch_helper.tree import Attributes, Tree, attributes_of, failed, split, version_of
from adapters.v4a.budget import Limits
from adapters.v4a.engine import ABSENT, Plan, Target
from adapters.v4a.errors import PatchError
from adapters.v4a.paths import parents
from adapters.v4a.text import shorten


@dataclass(frozen=True)
class Defaults:
    """What a file from an Add gets. `file_mode`, `directory_mode`: less the umask. `owner`: user and group of the root
    directory where the helper may give files away, else None. The owner of a workspace keeps owning all of it."""

    file_mode: int
    directory_mode: int
    owner: tuple[int, int] | None


def describe(plan: Plan, tree: Tree) -> tuple[dict[str, Any], ...]:
    """The changes of `plan` with their versions, as the answer has them."""
    targets = {target.path: target for target in plan.targets}
    changes = []
    for change in plan.changes:
        source = change.from_path or change.path
        content = targets[change.path].content
        before = _version_before(source, tree) if targets[source].before else None
        after = version_of(content) if content is not None else None
        record = {"path": change.path, "kind": change.kind, "from_path": change.from_path}
        record |= {"before_version": before, "after_version": after}
        changes.append({key: value for key, value in record.items() if value is not None})
    return tuple(changes)


def _version_before(path: str, tree: Tree) -> str:
    """Of the very content that the plan was made from, if it was read at all."""
    if path not in tree.read_versions:
        tree.read_versions[path] = tree.version(path)
    return tree.read_versions[path]


class Commit:
    """One plan on one tree. Use once."""

    def __init__(self, root_fd: int, tree: Tree, journal: Journal, steps: Steps, defaults: Defaults) -> None:
        self._root_fd = root_fd
        self._tree = tree
        self._journal = journal
        self._steps = steps
        self._defaults = defaults
        self._made: dict[str, int] = {}
        self._at: str | None = None
        """What is being written, for the message of a failure."""

    def run(self, operation_id: str, plan: Plan, expected_versions: Mapping[str, str]) -> None:
        """Applies `plan`. `expected_versions`: by clean path.

        Raises `PatchError`; `details.status` is `failed_rolled_back`, `failed_partial` or `unknown` where the commit
        had begun, absent where nothing was touched.
        """
        targets = {target.path: target for target in plan.targets}
        kept = {t.path: self._tree.attributes(t.origin) for t in plan.targets if _is_written(t) and t.origin}
        intent = self._intent(operation_id, plan)
        try:
            self._journal.begin(intent)
        except OSError as error:
            raise PatchError(
                "FILE_OPERATION_FAILED",
                f"the journal cannot be written: {error.strerror}. The operator has to look at the data directory.",
                errno=errno.errorcode.get(error.errno or 0, "unknown"),
                status="failed_rolled_back",
            ) from error
        try:
            for entry in intent.entries:
                self._at = entry.path
                if entry.new is not None:
                    self._write(entry, targets[entry.path], kept.get(entry.path))
            self._compare_expected(expected_versions)
            self._place(intent)
            self._verify(plan)
            self._mark(operation_id)
        except _Undecided as error:
            raise error.answer from error
        except (OSError, PatchError, MemoryError) as error:
            raise self._rolled_back(intent, error) from error
        finally:
            self._close()
        # What follows cannot fail the operation: every new file is in place and durable.
        try:
            Recovery(self._root_fd, self._journal, self._steps).finish(intent, self._tree)
            self._journal.finish(operation_id, "applied", "applied")
        except (OSError, PatchError):
            # The journal keeps its mark without an outcome, so recovery will finish this.
            return

    # --- before -------------------------------------------------------------------------------------------------------
    def _intent(self, operation_id: str, plan: Plan) -> Intent:
        entries: list[Entry] = []
        directories: dict[str, None] = {}
        for target in plan.targets:
            if target.unchanged:
                continue
            old = _version_before(target.path, self._tree) if target.before else None
            new = version_of(target.content) if target.content is not None else None
            at = split(target.path)[0] if target.before else self._tree.nearest(target.path)
            inode = self._inode(target.path) if target.before else None
            action = "delete" if new is None else "replace" if target.before else "add"
            entries.append(Entry(action, target.path, at, temp_name(), old, new, inode))  # type: ignore[arg-type]
            if action == "add":
                below = [parent for parent in parents(target.path) if len(parent) > len(at)]
                directories |= {parent: None for parent in below if self._must_make(parent)}
        self._tree.check_directories(self._tree.held + len(directories))
        status = os.fstat(self._root_fd)
        return Intent(
            operation_id,
            (status.st_dev, status.st_ino),
            tuple(sorted(entries, key=lambda entry: ORDER[entry.action])),
            tuple(directories),
            tuple([target.path for target in plan.targets]),
            describe(plan, self._tree),
        )

    def _must_make(self, directory: str) -> bool:
        return self._tree.kind(directory) != "directory"

    def _inode(self, path: str) -> int:
        parent, name = split(path)
        try:
            return os.stat(name, dir_fd=self._tree.directory(parent), follow_symlinks=False).st_ino
        except OSError as error:
            failed(path, error)

    def _write(self, entry: Entry, target: Target, kept: Attributes | None) -> None:
        """The new file under its temporary name, complete and durable, with the attributes it will have."""
        assert target.content is not None
        descriptor = self._steps.create(self._tree.directory(entry.at), entry.temp, 0o600)
        try:
            self._steps.write(descriptor, target.content, entry.path)
            if kept is None:
                if self._defaults.owner:
                    self._give_away(descriptor, split(entry.path)[0])
                os.fchmod(descriptor, self._defaults.file_mode)
            else:
                self._keep(descriptor, kept, target)
            self._steps.fsync(descriptor, entry.path)
        finally:
            os.close(descriptor)

    def _keep(self, descriptor: int, kept: Attributes, target: Target) -> None:
        try:
            status = os.fstat(descriptor)
            if (status.st_uid, status.st_gid) != (kept.uid, kept.gid):
                os.fchown(descriptor, kept.uid, kept.gid)
            present = attributes_of(descriptor)
            for name, value in kept.xattrs.items():
                if present.get(name) != value:
                    os.setxattr(descriptor, name, value)
            # A default ACL of the directory is for new files; a security label of the new file is the system's choice.
            for name in present.keys() - kept.xattrs.keys():
                if not name.startswith("security."):
                    os.removexattr(descriptor, name)
            os.fchmod(descriptor, kept.mode)
        except OSError as error:
            raise PatchError(
                "FILE_OPERATION_FAILED",
                f"{shorten(target.path)} cannot be updated: its owner or extended attributes cannot be kept "
                f"({error.strerror}). Replace it by Delete and Add, or change it by a command.",
                path=target.path,
                errno=errno.errorcode.get(error.errno or 0, "unknown"),
            ) from error

    def _give_away(self, descriptor: int, parent: str) -> None:
        """To the workspace's owner; a set-group-id directory decides the group."""
        assert self._defaults.owner is not None
        uid, gid = self._defaults.owner
        status = os.fstat(descriptor)
        nearest = self._tree.directory(self._tree.nearest(parent + "/x")) if parent else self._tree.directory("")
        inherits = os.fstat(nearest).st_mode & 0o2000
        gid = os.fstat(nearest).st_gid if inherits else gid
        if (status.st_uid, status.st_gid) != (uid, gid):
            os.fchown(descriptor, uid, gid)

    def _compare_expected(self, expected_versions: Mapping[str, str]) -> None:
        if not expected_versions:
            return
        with Tree(self._root_fd, Limits()) as tree:
            for path, version in expected_versions.items():
                actual = tree.version(path) if tree.kind(path) == "file" else ABSENT
                if actual != version:
                    raise _conflict(path, version, actual)

    # --- the commit ---------------------------------------------------------------------------------------------------
    def _place(self, intent: Intent) -> None:
        touched = {self._tree.directory(entry.at): entry.at for entry in intent.entries}
        deletes = [entry for entry in intent.entries if entry.action == "delete"]
        for entry in deletes:
            self._at = entry.path
            at = self._tree.directory(entry.at)
            self._steps.move(at, split(entry.path)[1], at, entry.temp)
            self._compare_displaced(entry)
        for directory in intent.directories:
            self._at = directory
            self._make_directory(directory)
            parent = split(directory)[0]
            touched |= {self._parent(directory): parent, self._made[directory]: directory}
        for entry in intent.entries:
            self._at = entry.path
            at = self._tree.directory(entry.at)
            name = split(entry.path)[1]
            if entry.action == "replace":
                self._steps.exchange(at, entry.temp, at, name)
                self._compare_displaced(entry)
            elif entry.action == "add":
                try:
                    self._steps.move(at, entry.temp, self._parent(entry.path), name)
                except FileExistsError:
                    raise _conflict(entry.path, ABSENT, "present") from None
        self._at = None
        for descriptor, name in touched.items():
            self._steps.fsync(descriptor, f"directory {name or '.'}")

    def _make_directory(self, path: str) -> None:
        parent = self._parent(path)
        name = split(path)[1]
        try:
            self._steps.mkdir(parent, name, self._defaults.directory_mode)
            new = True
        except FileExistsError:
            new = False
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        self._made[path] = descriptor = os.open(name, flags, dir_fd=parent)
        if new and self._defaults.owner:
            uid, gid = self._defaults.owner
            inherits = os.fstat(parent).st_mode & 0o2000
            os.fchown(descriptor, uid, -1 if inherits else gid)

    def _parent(self, path: str) -> int:
        """A descriptor of the directory of `path`, which was there before or was made."""
        parent = split(path)[0]
        return self._made[parent] if parent in self._made else self._tree.directory(parent)

    def _compare_displaced(self, entry: Entry) -> None:
        """The original, under the temporary name now, is what the plan was made from."""
        path = f"{entry.at}/{entry.temp}" if entry.at else entry.temp
        actual = self._tree.version(path)
        if actual != entry.old:
            raise _conflict(entry.path, entry.old or ABSENT, actual)

    def _verify(self, plan: Plan) -> None:
        """Fresh hashes, found from the root anew, equal the planned ones."""
        with Tree(self._root_fd, Limits()) as tree:
            for target in plan.targets:
                is_file = tree.kind(target.path) == "file"
                actual = tree.version(target.path) if is_file else ABSENT
                wanted = version_of(target.content) if target.content is not None else ABSENT
                if actual != wanted:
                    raise _conflict(target.path, wanted, actual)

    def _mark(self, operation_id: str) -> None:
        """Raises what the mark failed with, once it is sure that there is none; `_Undecided` where that cannot be."""
        try:
            self._journal.commit(operation_id)
        except (OSError, MemoryError):
            try:
                self._journal.withdraw(operation_id)
            except (OSError, MemoryError) as error:
                raise _Undecided from error
            raise

    # --- after a failure ----------------------------------------------------------------------------------------------
    def _rolled_back(self, intent: Intent, cause: Exception) -> PatchError:
        try:
            outcome, reason = Recovery(self._root_fd, self._journal, self._steps).roll_back(intent, self._tree)
            self._journal.finish(intent.operation_id, outcome, reason)
        except (OSError, PatchError) as error:
            outcome, reason = "failed_partial", f"roll back failed and will be tried again at the next start: {error}"
        told = (
            "Nothing was changed." if outcome == "failed_rolled_back" else f"Some of it could not be undone: {reason}."
        )
        if isinstance(cause, PatchError):
            return PatchError(cause.code, f"{cause.message} {told}", **cause.details | {"status": outcome})
        number = cause.errno if isinstance(cause, OSError) else errno.ENOMEM
        what = os.strerror(number or 0)
        if number == errno.EINVAL:
            what = "the file system cannot exchange two names (RENAME_EXCHANGE)"
        where = "it" if self._at is None else shorten(self._at)
        return PatchError(
            "FILE_OPERATION_FAILED",
            f"the patch failed while {where} was being written: {what}. {told}",
            path=self._at,
            errno=errno.errorcode.get(number or 0, "unknown"),
            status=outcome,
        )

    def _close(self) -> None:
        for descriptor in self._made.values():
            os.close(descriptor)
        self._made.clear()


class _Undecided(Exception):
    """The mark may be on the disk or not, and its place cannot be written: every new file is in place and stays so,
    since a roll back that is stopped half-way would be taken for a commit. Recovery decides."""

    @property
    def answer(self) -> PatchError:
        cause = self.__cause__
        number = cause.errno if isinstance(cause, OSError) else errno.ENOMEM
        return PatchError(
            "FILE_OPERATION_FAILED",
            f"the journal cannot be written ({os.strerror(number or 0)}), so whether the patch counts is not "
            "decided yet. The operator has to look at the disk of the data directory.",
            errno=errno.errorcode.get(number or 0, "unknown"),
            status="unknown",
        )


def _is_written(target: Target) -> bool:
    return target.content is not None and not target.unchanged


def _conflict(path: str, expected: str, actual: str) -> PatchError:
    return PatchError(
        "VERSION_CONFLICT",
        f"{shorten(path)} changed while the patch was being written: it is {actual}. Read it again, renew the patch.",
        conflicts=[{"path": path, "expected": expected, "actual": actual}],
    )
