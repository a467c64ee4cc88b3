"""The files of a search, opened without following anything and grouped for one pass each.

Small files are read here and searched as one stream, which is several times cheaper than handing `rg` each of them;
large ones are held open for it. It knows no pattern and no process. Called by `search`.
"""

from __future__ import annotations

import codecs
import errno
import os
import resource
import stat
from collections.abc import Generator, Iterable
from dataclasses import dataclass, field

from adapters.filesystem.beneath import Opener
from adapters.filesystem.errors import path_error
from adapters.filesystem.tree import GONE, Entry

SMALL_BYTES = 64 * 1024
"""Up to this size a file is searched in a stream. Also how far a NUL byte is looked for that makes a file binary."""
MAX_BATCH_FILES = 2048
_FIRST_BATCH_FILES = 128
"""Batches grow from here, so that a search that is soon satisfied reads little."""
MAX_STREAM_BYTES = 4 * 1024 * 1024
MAX_HELD_FILES = 256
MAX_HELD_BYTES = 64 * 1024 * 1024
"""A batch closes once its large files are larger than this together, so that it takes a fraction of the time bound."""
# The directory said it is a regular file. Should it be exchanged in that moment for a FIFO or a device, O_NONBLOCK
# keeps this open from waiting, and the type is checked before anything is read.
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


@dataclass
class Batch:
    """Files in the order of their paths; an index names one. `small`: text that ends with a line end, or nothing.
    `held`: open descriptors, which whoever holds the batch closes by `close`."""

    paths: list[str] = field(default_factory=list)
    small: dict[int, bytes] = field(default_factory=dict)
    held: dict[int, int] = field(default_factory=dict)
    small_bytes: int = 0
    held_bytes: int = 0

    def close(self) -> None:
        """Idempotent."""
        while self.held:
            os.close(self.held.popitem()[1])


def held_limit(holders: int) -> int:
    """Large files in a batch, where so many batches are held at once and half of the descriptors are left to others."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(8, min(MAX_HELD_FILES, soft // (2 * holders)))


class Batches:
    """Iterates over batches of the regular files among `entries`; what is no file any more is passed over.

    `unreadable`: paths that permission kept closed. Raises `RunnerError` FILE_OPERATION_FAILED (retryable) where
    descriptors run out.
    """

    def __init__(
        self, opener: Opener, root_fd: int, entries: Iterable[Entry], *, max_files: int, max_held: int
    ) -> None:
        self.unreadable: list[str] = []
        self._opener, self._root_fd, self._entries = opener, root_fd, entries
        self._max_files, self._max_held = max_files, max_held
        self._batch = Batch()
        self._files = min(max_files, _FIRST_BATCH_FILES)

    def __iter__(self) -> Generator[Batch, None, None]:
        folder, folder_fd = "", -1
        try:
            folder_fd = self._open_folder("")
            for entry in self._entries:
                if entry.kind != "file":
                    continue
                parent, _, name = entry.path.rpartition("/")
                if parent != folder:
                    if folder_fd >= 0:
                        os.close(folder_fd)
                    folder, folder_fd = parent, -1
                    folder_fd = self._open_folder(parent)
                if folder_fd >= 0:
                    self._add(folder_fd, name, entry.path)
                if self._is_full():
                    yield self._take()
            if self._batch.paths:
                yield self._take()
        finally:
            self._batch.close()
            if folder_fd >= 0:
                os.close(folder_fd)

    def _take(self) -> Batch:
        full, self._batch = self._batch, Batch()
        self._files = min(self._max_files, 2 * self._files)
        return full

    def _is_full(self) -> bool:
        batch = self._batch
        return (
            len(batch.paths) >= self._files
            or batch.small_bytes >= MAX_STREAM_BYTES
            or len(batch.held) >= self._max_held
            or batch.held_bytes >= MAX_HELD_BYTES
        )

    def _open_folder(self, folder: str) -> int:
        try:
            return self._opener.open_name(self._root_fd, folder.split("/") if folder else ())
        except OSError as error:
            self._refused(folder, error)
            return -1

    def _add(self, folder_fd: int, name: str, path: str) -> None:
        batch = self._batch
        try:
            fd = os.open(name, _OPEN, dir_fd=folder_fd)
        except OSError as error:
            self._refused(path, error)
            return
        keep = False
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                return
            head = os.read(fd, SMALL_BYTES + 1)
            if is_binary(head):
                return
            index = len(batch.paths)
            batch.paths.append(path)
            if len(head) <= SMALL_BYTES:
                batch.small[index] = data = as_text(head)
                batch.small_bytes += len(data)
            else:
                keep = True
                batch.held[index] = fd
                batch.held_bytes += status.st_size
        except OSError as error:
            self._refused(path, error)
        finally:
            if not keep:
                os.close(fd)

    def _refused(self, path: str, error: OSError) -> None:
        if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
            raise path_error(path, error) from error
        if error.errno not in GONE:
            self.unreadable.append(path)


def is_binary(head: bytes) -> bool:
    """Whether a file that begins so is taken for binary: a NUL byte in it, and no mark of UTF-16."""
    return b"\0" in head and not head.startswith(_UTF16_MARKS)


def as_text(data: bytes) -> bytes:
    """A small file's bytes as the search sees them: UTF-16 with a mark becomes UTF-8, a mark of UTF-8 is no part of the
    text (both as rg does with large files), and the last line is ended."""
    if data.startswith(_UTF16_MARKS):
        data = data.decode("utf-16", "replace").encode()
    data = data.removeprefix(codecs.BOM_UTF8)
    return data if not data or data.endswith(b"\n") else data + b"\n"
