"""One inotify instance over one tree: scanning it, and turning records into what changed.

It blocks only while it scans, which the caller does in a thread; links are never followed, since every directory is
opened below the root's descriptor and watched by that. It knows no epochs and no listeners. Called by `backend`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
from collections.abc import Generator, Iterator, Sequence

from adapters.filesystem.beneath import Opener
from adapters.filesystem.roots import open_root
from adapters.inotify_watch import kernel, records
from adapters.inotify_watch.changes import Change, Doubt, Lost, NewDirectory, Said
from adapters.inotify_watch.paths import WatchedPaths
from adapters.inotify_watch.records import Record

MAX_MET = 1000
MAX_WATCHES = 16_384
"""Directories of one root. Each costs about a kilobyte of kernel memory."""
MAX_ENTRIES = 500_000
"""That one scan looks at: about two seconds' work."""
_USER_LIMIT = "/proc/sys/fs/inotify/max_user_watches"
_OVERTAKEN = "directories were renamed faster than they could be followed"
_GONE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EXDEV, errno.ESTALE})


class TreeWatcher:
    """Made, scanned and closed by `backend`; `fileno` becomes readable when there is something to take.

    `partial`: some directories could not be watched (limits of the kernel or `max_watches`, permission), so their
    changes go unseen.
    """

    def __init__(self, opener: Opener, root: str, max_watches: int, max_entries: int = MAX_ENTRIES) -> None:
        """Blocks. Raises `OSError` where the root cannot be opened or the kernel gives no instance."""
        self._opener, self._root = opener, root
        self._max_watches, self._max_entries = max_watches, max_entries
        self._paths = WatchedPaths()
        self._dropped: set[int] = set()
        self._doubtful: set[int] = set()
        self._moved: Record | None = None
        self._renamed_to: str | None = None
        self.partial = False
        self._root_fd = open_root(opener, root)
        try:
            self._instance = kernel.new_instance()
        except OSError:
            os.close(self._root_fd)
            raise
        self._root_watch = -1

    def fileno(self) -> int:
        return self._instance

    @property
    def watches(self) -> int:
        return len(self._paths)

    @property
    def expects_more(self) -> bool:
        """Whether the first half of a rename waits for its second."""
        return self._moved is not None

    def check_root(self) -> None:
        """Blocks. Raises `Lost` where the root's path leads to another directory by now, or nowhere: the kernel does
        not tell while anybody holds the old one open, or when a directory above it is renamed."""
        try:
            fd = open_root(self._opener, self._root)
        except OSError as error:
            raise Lost(f"the root is gone: {error.strerror}") from error
        try:
            if not os.path.samestat(os.fstat(fd), os.fstat(self._root_fd)):
                raise Lost("the root is another directory by now")
        finally:
            os.close(fd)

    def close(self) -> None:
        os.close(self._instance)
        os.close(self._root_fd)

    # --- scanning (blocks) --------------------------------------------------------------------------------------------
    def scan(self, tops: Sequence[str] = ("",)) -> list[Change] | None:
        """Watches directories and all below them. Returns the entries it met as created, since a directory that is new
        may have got them before its watch; None for more than MAX_MET. `partial` after more than MAX_ENTRIES.

        Raises `OSError` if the root itself cannot be watched.
        """
        met: list[Change] | None = []
        waiting = list(tops)
        left = self._max_entries
        while waiting:
            path = waiting.pop()
            try:
                with contextlib.closing(self._scan_one(path)) as entries:
                    for name, is_directory in entries:
                        left -= 1
                        if left < 0:
                            self.partial = True
                            return None
                        below = f"{path}/{name}" if path else name
                        if is_directory:
                            self._wait(waiting, below)
                        if met is not None:
                            met.append(Change("create", below))
                            met = met if len(met) <= MAX_MET else None
            except OSError as error:
                if not path:
                    raise
                self.partial = self.partial or error.errno not in _GONE
        return met

    @property
    def doubts(self) -> bool:
        """Whether there is something to settle."""
        return bool(self._doubtful)

    def settle(self) -> None:
        """Blocks. Once no events wait: raises `Lost` unless each doubtful watch stands on the directory that its path
        leads to. What moved since is doubted still, for its event waits by now."""
        doubtful = [watch for watch in self._doubtful if not self._stands(watch)]
        waiting = select.poll()
        waiting.register(self._instance, select.POLLIN)
        if doubtful and not waiting.poll(0):
            raise Lost(_OVERTAKEN)
        self._doubtful = set(doubtful)

    def _stands(self, watch: int) -> bool:
        path = self._paths.path_of(watch)
        if path is None:
            return True  # it left, or is gone: the events said so
        try:
            fd = self._opener.open_directory(self._root_fd, path.split("/"))
        except OSError:
            return False
        try:
            return kernel.add_watch(self._instance, fd) == watch
        except OSError:
            return False
        finally:
            os.close(fd)

    def _wait(self, waiting: list[str], path: str) -> None:
        if len(self._paths) + len(waiting) < self._max_watches:
            waiting.append(path)
        else:
            self.partial = True

    def _scan_one(self, path: str) -> Generator[tuple[str, bool], None, None]:
        """Watches one directory. Its entries, one at a time: there may be millions."""
        fd = self._opener.open_directory(self._root_fd, path.split("/") if path else ())
        try:
            if len(self._paths) >= self._max_watches:
                self.partial = True
                return
            # First the watch, then the list: what appears in between is seen twice rather than never.
            watch = kernel.add_watch(self._instance, fd)
            self._paths.put(watch, path)
            if not path:
                self._root_watch = watch
            with os.scandir(fd) as entries:
                for entry in entries:
                    yield entry.name, _is_directory(entry)
        finally:
            os.close(fd)

    # --- taking events (does not block) -------------------------------------------------------------------------------
    def take(self) -> Iterator[Said]:
        """What one read of the descriptor says; nothing if there is nothing. Raises `Lost`."""
        try:
            data = os.read(self._instance, records.READ_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            raise Lost(f"reading events failed: {error.strerror}") from error
        try:
            parsed = list(records.parse(data))
        except ValueError as error:
            raise Lost(str(error)) from error
        last: Change | None = None
        for record in parsed:
            for change in self._classify(record):
                if change != last:  # a burst of writes is one hint
                    yield change
                last = change if isinstance(change, Change) and change.kind == "modify" else None

    def give_up_waiting(self) -> Iterator[Said]:
        """The second half of a rename did not come: the name left what is watched."""
        if self._moved is not None:
            moved, self._moved = self._moved, None
            yield from self._left(moved)

    def _classify(self, record: Record) -> Iterator[Said]:
        if record.mask & records.Q_OVERFLOW:
            raise Lost("the kernel's event queue overflowed")
        if not record.is_known:
            raise Lost(f"an event of unknown kind: {record.mask:#x}")
        if record.mask & records.IGNORED:
            self._dropped.discard(record.watch)
            self._paths.forget(record.watch)
            if record.watch == self._root_watch:
                raise Lost("the root is gone")
            return
        if record.mask & records.UNMOUNT:
            raise Lost("a file system below the root was unmounted")
        if record.mask & records.MOVE_SELF and record.watch != self._root_watch:
            yield from self._check_moved(record.watch)
            return
        folder = self._paths.path_of(record.watch)
        if folder is None:
            if record.watch in self._dropped or not record.name:
                return  # of a directory that left the tree, or whose name another took
            raise Lost("an event of a directory that is not known")
        if record.watch == self._root_watch and record.mask & (records.DELETE_SELF | records.MOVE_SELF):
            raise Lost("the root was removed or renamed")
        if not record.name:
            return  # of the directory itself: its parent's watch says the same by name
        yield from self._named(record, f"{folder}/{record.name}" if folder else record.name)

    def _check_moved(self, watch: int) -> Iterator[Doubt]:
        """Which directory it was that the rename before this moved: inotify(7) says it last. Raises `Lost` where that
        has no name any more."""
        moved_to, self._renamed_to = self._renamed_to, None
        if self._moved is not None:
            moved_to = self._moved.name  # so far: its second half has not come
        if moved_to is None or watch in self._dropped:
            return
        path = self._paths.path_of(watch)
        if path is None:
            raise Lost(_OVERTAKEN)
        if path == moved_to:
            self._doubtful.discard(watch)
        else:
            if not self._doubtful:
                yield Doubt()
            self._doubtful.add(watch)

    def _named(self, record: Record, path: str) -> Iterator[Said]:
        moved = self._moved
        if moved is not None and record.mask & records.MOVED_TO and moved.cookie == record.cookie:
            self._moved = None
            yield from self._renamed(moved, path)
            return
        moves = record.mask & (records.MOVED_TO | records.MOVED_FROM)
        if moved is not None and (moves or f"{path}/".startswith(f"{moved.name}/")):
            # The name is used anew, or soon may be: that it was left is said before what comes after.
            yield from self.give_up_waiting()
        if record.mask & records.MOVED_TO:
            yield from self._appeared(record, path)
        elif record.mask & records.MOVED_FROM:
            self._renamed_to = None
            # Kept as a path: the directory it was in may itself be renamed before the second half.
            self._moved = Record(record.watch, record.mask, record.cookie, path)
        elif record.mask & records.CREATE:
            yield from self._appeared(record, path)
        elif record.mask & records.DELETE:
            yield Change("remove", path)
        else:
            yield Change("modify", path)

    def _appeared(self, record: Record, path: str) -> Iterator[Said]:
        yield Change("create", path)
        if record.is_directory:
            yield NewDirectory(path)

    def _renamed(self, moved: Record, path: str) -> Iterator[Said]:
        self._renamed_to = None
        if moved.is_directory:
            self._paths.move(moved.name, path)
            self._renamed_to = path
        yield Change("rename", path, moved.name)
        if moved.is_directory:
            # Both: an exchange gives two renames, and each finds the other's directory in its place.
            yield NewDirectory(path, at_once=True)
            yield NewDirectory(moved.name, at_once=True)

    def _left(self, moved: Record) -> Iterator[Said]:
        """Moved out of the tree: what goes on there is none of ours."""
        yield Change("remove", moved.name)
        if moved.is_directory:
            for watch in self._paths.below(moved.name):
                self._paths.forget(watch)
                self._dropped.add(watch)
                kernel.remove_watch(self._instance, watch)
            # A scan may have been ahead of this, and have found another directory under the name.
            yield NewDirectory(moved.name, at_once=True)


def fair_share() -> int:
    """How many watches one root may take: commands run as the same user, and their own watches count against the same
    limit (inotify(7)). Blocks."""
    try:
        with open(_USER_LIMIT) as file:
            return max(1, min(MAX_WATCHES, int(file.read()) // 8))
    except (OSError, ValueError):
        return MAX_WATCHES // 16


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:  # the type was asked of the entry itself, and it is gone
        return False
