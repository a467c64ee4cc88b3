"""The files below one root, reached through held directory descriptors and never through a link (FS-1).

Every directory is opened from its parent's descriptor with O_NOFOLLOW and kept open for the request, so that a
directory that is swapped for a link meanwhile leads nowhere: all later calls are relative to what was opened. It is the
pure engine's `FileView`, and the commit's way to its directories. One object serves one request.
"""

from __future__ import annotations

import errno
import hashlib
import os
import resource
import stat
from dataclasses import dataclass
from typing import NoReturn

from adapters.v4a.budget import Limits
from adapters.v4a.engine import FileKind
from adapters.v4a.errors import PatchError, TooCostly
from adapters.v4a.paths import parents
from adapters.v4a.text import shorten

SPARE_DESCRIPTORS = 64
MAX_HASHED_BYTES = 1024 * 1024 * 1024
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PIECE_BYTES = 1024 * 1024


@dataclass(frozen=True)
class Attributes:
    """What an updated file keeps. `xattrs`: name to value."""

    mode: int
    uid: int
    gid: int
    inode: int
    xattrs: dict[str, bytes]


def split(path: str) -> tuple[str, str]:
    """Directory and last name; the directory of a name in the root is ""."""
    directory, _, name = path.rpartition("/")
    return directory, name


def attributes_of(descriptor: int) -> dict[str, bytes]:
    """Extended attributes by name; none where the file system has none. Raises OSError."""
    try:
        return {name: os.getxattr(descriptor, name) for name in os.listxattr(descriptor)}
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
        return {}


def version_of(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


class Tree:
    """Raises `PatchError` where a name cannot be used; `FILE_OPERATION_FAILED` carries the errno's name."""

    def __init__(self, root_fd: int, limits: Limits) -> None:
        self._limits = limits
        self.max_directories = (resource.getrlimit(resource.RLIMIT_NOFILE)[0] - SPARE_DESCRIPTORS) // 3
        self._directories = {"": os.open(".", _DIRECTORY, dir_fd=root_fd)}
        self._kinds: dict[str, FileKind] = {"": "directory"}
        self.read_versions: dict[str, str] = {}

    def close(self) -> None:
        for descriptor in self._directories.values():
            os.close(descriptor)
        self._directories.clear()

    def __enter__(self) -> Tree:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- FileView -----------------------------------------------------------------------------------------------------
    def kind(self, path: str) -> FileKind:
        """As `FileView.kind`; a name has the same answer for the whole request."""
        known = self._kinds.get(path)
        if known is not None:
            return known
        if self._kinds.get(split(path)[0]) == "directory":
            return self._own_kind(path)
        for parent in parents(path):
            kind = self._own_kind(parent)
            if kind == "symlink":
                return "symlink"
            if kind in ("special", "not_directory"):
                return "not_directory"
            if kind != "directory":
                return "absent"
        return self._own_kind(path)

    def read(self, path: str) -> bytes:
        """The content, whose version is kept as what the plan was made from."""
        descriptor = self._open(path)
        limit = self._limits.max_file_bytes
        with open(descriptor, "rb", buffering=0) as file:
            pieces: list[bytes] = []
            left = limit + 1
            while left > 0 and (piece := file.read(min(left, _PIECE_BYTES))):
                pieces.append(piece)
                left -= len(piece)
        if left <= 0:
            raise TooCostly("max_file_bytes", limit, f"the file {shorten(path)} is too large to update")
        data = b"".join(pieces)
        self.read_versions[path] = version_of(data)
        return data

    def version(self, path: str) -> str:
        descriptor = self._open(path)
        with open(descriptor, "rb", buffering=0) as file:
            if os.fstat(descriptor).st_size > MAX_HASHED_BYTES:
                raise TooCostly(
                    "max_hashed_bytes", MAX_HASHED_BYTES, f"the file {shorten(path)} is too large to compare"
                )
            return "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()

    @property
    def held(self) -> int:
        """How many directories are open."""
        return len(self._directories)

    # --- for the commit -----------------------------------------------------------------------------------------------
    def directory(self, path: str) -> int:
        """A descriptor of an existing directory, held until `close`."""
        if path not in self._directories:
            missing = (*parents(path), path) if split(path)[0] not in self._directories else (path,)
            for step in missing:
                if step not in self._directories:
                    self.check_directories(len(self._directories) + 1)
                    parent, name = split(step)
                    try:
                        self._directories[step] = os.open(name, _DIRECTORY, dir_fd=self._directories[parent])
                    except NotADirectoryError as error:
                        _no_directory(step, self._directories[parent], error)
                    except OSError as error:
                        failed(step, error)
        return self._directories[path]

    def check_directories(self, count: int) -> None:
        """Raises `TooCostly` where so many directories could not be held, once for the commit, once to verify it and
        once to spare, so that a roll back never runs out of descriptors."""
        if count > self.max_directories:
            raise TooCostly("max_directories", self.max_directories, "its files are in too many directories")

    def has(self, path: str) -> bool:
        """The directory is open."""
        return path in self._directories

    def nearest(self, path: str) -> str:
        """The nearest existing directory above `path`."""
        nearest = split(path)[0]
        if self._kinds.get(nearest) == "directory":
            return nearest
        nearest = ""
        for parent in parents(path):
            if self._own_kind(parent) != "directory":
                break
            nearest = parent
        return nearest

    def attributes(self, path: str) -> Attributes:
        """Mode, owner and extended attributes of a regular file, or the refusal of what cannot be kept."""
        descriptor = self._open(path)
        try:
            status = os.fstat(descriptor)
            try:
                xattrs = attributes_of(descriptor)
            except OSError as error:
                failed(path, error)
        finally:
            os.close(descriptor)
        kept = Attributes(stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid, status.st_ino, xattrs)
        _check_keepable(path, kept)
        return kept

    def _open(self, path: str) -> int:
        parent, name = split(path)
        try:
            descriptor = os.open(name, _READ, dir_fd=self.directory(parent))
        except OSError as error:
            failed(path, error)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise PatchError("SPECIAL_FILE_REJECTED", f"{shorten(path)} is no regular file any more.", path=path)
        return descriptor

    def _own_kind(self, path: str) -> FileKind:
        """Of a name whose parents are directories."""
        if path not in self._kinds:
            parent, name = split(path)
            try:
                mode = os.stat(name, dir_fd=self.directory(parent), follow_symlinks=False).st_mode
            except FileNotFoundError:
                self._kinds[path] = "absent"
            except OSError as error:
                failed(path, error)
            else:
                self._kinds[path] = _KINDS.get(stat.S_IFMT(mode), "special")
        return self._kinds[path]


_KINDS: dict[int, FileKind] = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "symlink"}


def failed(path: str, error: OSError) -> NoReturn:
    """The refusal for an operation on `path` that the system refused. ELOOP comes of a link swapped in."""
    name = errno.errorcode.get(error.errno or 0, "unknown")
    if error.errno == errno.ELOOP:
        raise PatchError("SYMLINK_REJECTED", f"{shorten(path)} became a symbolic link.", path=path) from error
    raise PatchError(
        "FILE_OPERATION_FAILED",
        f"{shorten(path) or '.'} cannot be used: {os.strerror(error.errno or 0)}. Check it, then try again.",
        path=path or ".",
        errno=name,
    ) from error


def _no_directory(path: str, parent: int, error: OSError) -> NoReturn:
    """With O_DIRECTORY, open(2) says ENOTDIR of a link as well."""
    try:
        is_link = stat.S_ISLNK(os.stat(split(path)[1], dir_fd=parent, follow_symlinks=False).st_mode)
    except OSError:
        is_link = False
    if is_link:
        raise PatchError("SYMLINK_REJECTED", f"{shorten(path)} became a symbolic link.", path=path) from error
    raise PatchError("PATH_NOT_DIRECTORY", f"{shorten(path)} is no directory any more.", path=path) from error


def _check_keepable(path: str, kept: Attributes) -> None:
    why = None
    if kept.mode & (stat.S_ISUID | stat.S_ISGID):
        why = "it has set-id bits, which new content must not inherit"
    elif "security.capability" in kept.xattrs:
        why = "it has file capabilities, which new content must not inherit"
    elif os.geteuid() != 0 and kept.uid != os.geteuid():
        why = "it belongs to another user, so its ownership could not be kept"
    elif os.geteuid() != 0 and kept.gid not in (os.getegid(), *os.getgroups()):
        why = "it belongs to another group, so its ownership could not be kept"
    if why:
        raise PatchError(
            "FILE_OPERATION_FAILED",
            f"{shorten(path)} cannot be updated: {why}. Replace it by Delete and Add, or change it by a command.",
            path=path,
            errno="EPERM",
        )
