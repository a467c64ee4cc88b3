"""From a journal and the disk to a tree that is wholly before or wholly after (PATCH-6).

Without the `committed` mark everything is taken back, in the reverse order of the commit; with it, what is left to
remove is removed. What was done is read off the disk by hashes, so that it may be stopped and repeated at any point.
What somebody else changed meanwhile is never touched. The commit rolls back through the same function.
"""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass, replace

from adapters.patch_helper.journal import Entry, Intent, Journal, Outcome, Record
from adapters.patch_helper.steps import Steps
from adapters.patch_helper.tree import Tree, split
from adapters.v4a.budget import Limits
from adapters.v4a.errors import PatchError

ORDER = {"delete": 0, "replace": 1, "add": 2}
"""Of the commit: deletions free names, then directories are made, then files are put in place."""


@dataclass(frozen=True)
class Found:
    """What a name is now. `version` None: no regular file."""

    inode: int
    version: str | None


def _is_original(found: Found, entry: Entry) -> bool:
    """By inode or by hash: an overlay may number a file anew when it is first renamed."""
    return found.inode == entry.inode or (found.version == entry.old and entry.old != entry.new)


class _Directories:
    """Directories by name: those that the commit held, else as they are found from the root now."""

    def __init__(self, fresh: Tree, held: Tree | None) -> None:
        self._fresh = fresh
        self._held = held

    def of(self, directory: str) -> Tree:
        return self._held if self._held is not None and self._held.has(directory) else self._fresh

    def directory(self, path: str) -> int:
        return self.of(path).directory(path)

    def exists(self, path: str) -> bool:
        return self.of(path).kind(path) == "directory"


class Recovery:
    """Works on one root. `OSError` and `PatchError` mean that it could not go on; it may be repeated."""

    def __init__(self, root_fd: int, journal: Journal, steps: Steps) -> None:
        self._root_fd = root_fd
        self._journal = journal
        self._steps = steps

    def recover(self, name: str) -> Record:
        """Finishes the operation of a journal as that demands and notes the outcome there. Idempotent."""
        record = self._journal.read(name)
        # An outcome may have come to the disk before the removal that it tells of, and the machine stopped between.
        over = (*record.earlier, record.intent) if record.outcome == "applied" else record.earlier
        for intent in over:
            if intent is not None and not self.is_foreign(intent):
                self.finish(intent)
        if record.outcome is not None:
            return record
        outcome: Outcome
        if record.intent is None:
            outcome, reason = "failed_rolled_back", "stopped before its journal was complete: nothing had been done"
            return Record(name, None, False, outcome, reason)
        if self.is_foreign(record.intent):
            return replace(record, reason="the root is not the directory it was")
        # What reads as marked or as unmarked may be otherwise on the disk, and a second stop must not turn it round.
        if record.committed:
            self._journal.confirm(name)
            self.finish(record.intent)
            outcome, reason = "applied", "stopped after every new file was in place and verified; finished"
        else:
            self._journal.withdraw(name)
            outcome, reason = self.roll_back(record.intent)
        self._journal.finish(name, outcome, reason)
        return replace(record, outcome=outcome, reason=reason)

    def is_foreign(self, intent: Intent) -> bool:
        """The operation was on another directory that had the root's name. It proves nothing of this one."""
        status = os.fstat(self._root_fd)
        return (status.st_dev, status.st_ino) != intent.root

    def finish(self, intent: Intent, held: Tree | None = None) -> None:
        """Removes the displaced originals of a committed operation. `held`: as for `roll_back`."""
        with Tree(self._root_fd, Limits()) as fresh:
            tree = _Directories(fresh, held)
            for entry in intent.entries:
                if entry.action != "add" and self._status(tree, entry.at, entry.temp) is not None:
                    self._steps.unlink(tree.directory(entry.at), entry.temp)

    def roll_back(self, intent: Intent, held: Tree | None = None) -> tuple[Outcome, str]:
        """Takes back whatever of `intent` was done. `failed_partial` names what stands in the way.

        `held`: the tree that the commit worked in, whose directories are used even if their names lead elsewhere now.
        """
        obstacles: list[str] = []
        with Tree(self._root_fd, Limits()) as fresh:
            tree = _Directories(fresh, held)
            for entry in sorted(intent.entries, key=lambda entry: -ORDER[entry.action]):
                if entry.action != "delete":
                    self._take_back(tree, entry, obstacles)
            for directory in reversed(intent.directories):
                self._remove_directory(tree, directory)
            for entry in intent.entries:
                if entry.action == "delete":
                    self._bring_back(tree, entry, obstacles)
            for directory in sorted({entry.at for entry in intent.entries}):
                if tree.exists(directory):
                    self._steps.fsync(tree.directory(directory), f"directory {directory or '.'}")
                else:
                    obstacles.append(f"{directory} is no directory any more")
        if obstacles:
            return "failed_partial", "; ".join(obstacles)
        return "failed_rolled_back", "taken back: every file is as it was before"

    def _take_back(self, tree: _Directories, entry: Entry, obstacles: list[str]) -> None:
        """Undoes an exchange or a rename into place, and removes the new file."""
        if not tree.exists(entry.at):
            return
        at = tree.directory(entry.at)
        parent, name = split(entry.path)
        final, temp = self._look(tree, parent, name), self._look(tree, entry.at, entry.temp)
        placed = final is not None and final.version == entry.new and final.inode != entry.inode
        if entry.action == "add":
            if temp is None and placed:
                self._steps.unlink(tree.directory(parent), name)
        elif temp is not None and placed:
            self._steps.exchange(at, entry.temp, at, name)
        elif temp is not None and _is_original(temp, entry):
            obstacles.append(f"{entry.path} was changed by somebody else; its original is {entry.temp} beside it")
            return
        if temp is not None:
            self._steps.unlink(at, entry.temp)

    def _bring_back(self, tree: _Directories, entry: Entry, obstacles: list[str]) -> None:
        """Undoes the renaming aside of a deleted file."""
        _, name = split(entry.path)
        if self._look(tree, entry.at, entry.temp) is None:
            return
        at = tree.directory(entry.at)
        try:
            self._steps.move(at, entry.temp, at, name)
        except FileExistsError:
            obstacles.append(f"{entry.path} was made anew by somebody else; the original is {entry.temp} beside it")

    def _remove_directory(self, tree: _Directories, path: str) -> None:
        """A directory of this operation, unless something else is in it."""
        parent, name = split(path)
        if self._look(tree, parent, name) is None:
            return
        try:
            self._steps.rmdir(tree.directory(parent), name)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise

    def _status(self, tree: _Directories, directory: str, name: str) -> os.stat_result | None:
        """None: there is no such name, or no such directory."""
        if not tree.exists(directory):
            return None
        try:
            return os.stat(name, dir_fd=tree.directory(directory), follow_symlinks=False)
        except FileNotFoundError:
            return None

    def _look(self, tree: _Directories, directory: str, name: str) -> Found | None:
        """None: there is no such name, or no such directory."""
        status = self._status(tree, directory, name)
        if status is None:
            return None
        if not stat.S_ISREG(status.st_mode):
            return Found(status.st_ino, None)
        path = f"{directory}/{name}" if directory else name
        try:
            return Found(status.st_ino, tree.of(directory).version(path))
        except PatchError:
            return Found(status.st_ino, None)
