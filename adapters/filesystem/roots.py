"""Held descriptors of workspace roots.

Each root is opened once, without following a link on the way, and everything is reached from that descriptor; before
every use the root's path is checked to lead to the same directory still, so that answers never come from a directory
that the operator has replaced. Called by the file adapters; it refuses to know what is read below a root.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from adapters.filesystem.beneath import Opener
from adapters.filesystem.errors import RETRYABLE
from runner.api import ErrorCode, RunnerError, WorkspaceRef


@dataclass(frozen=True)
class _Held:
    fd: int
    device: int
    inode: int


class Roots:
    """Root path to descriptor. Thread-safe; descriptors stay open until `close`."""

    def __init__(self, opener: Opener) -> None:
        self._opener = opener
        self._held: dict[str, _Held] = {}
        self._lock = threading.Lock()
        self._closed = False

    @contextmanager
    def root_fd(self, workspace: WorkspaceRef) -> Iterator[int]:
        """A descriptor of the workspace's root, valid inside the block whatever `close` does meanwhile.

        Raises `RunnerError`: FILE_OPERATION_FAILED where the root is missing, no directory, reached through a link or
        no longer the directory that was opened first; RUNNER_UNAVAILABLE after `close`.
        """
        found = self._look(workspace)  # outside the lock: a file system that hangs must not hold up the other roots
        with self._lock:
            held = self._held.get(workspace.root)
            try:
                if self._closed:
                    raise RunnerError(ErrorCode.RUNNER_UNAVAILABLE, "the file service has been closed", retryable=True)
                if held is not None and (held.device, held.inode) != (found.device, found.inode):
                    what = "is another directory than the one being served; put it back or restart the appliance"
                    raise _root_error(workspace, what)
                fd = os.dup(found.fd if held is None else held.fd)
            except BaseException:
                os.close(found.fd)
                raise
            if held is None:
                self._held[workspace.root] = found
            else:
                os.close(found.fd)
        try:
            yield fd
        finally:
            os.close(fd)

    def _look(self, workspace: WorkspaceRef) -> _Held:
        try:
            fd = open_root(self._opener, workspace.root)
        except OSError as error:
            raise _root_error(workspace, _why(error), error.errno) from error
        status = os.fstat(fd)
        return _Held(fd, status.st_dev, status.st_ino)

    def close(self) -> None:
        """Closes every descriptor. Idempotent; calls under way finish on their own duplicates."""
        with self._lock:
            self._closed = True
            for held in self._held.values():
                os.close(held.fd)
            self._held.clear()


def open_root(opener: Opener, root: str) -> int:
    """An O_PATH descriptor of the directory at an absolute path, reached through no link. Raises `OSError`."""
    top = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fd = opener.open_name(top, [part for part in root.split("/") if part])
    finally:
        os.close(top)
    if not stat.S_ISDIR(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), root)
    return fd


def _why(error: OSError) -> str:
    if error.errno == errno.ENOENT:
        return "does not exist any more; restore it or correct the registry"
    if error.errno == errno.ENOTDIR:
        return "is not a directory; correct the registry"
    if error.errno == errno.ELOOP:
        return "is reached through a symbolic link; register its real path"
    name = errno.errorcode.get(error.errno or 0, "EIO")
    if error.errno in RETRYABLE:
        return f"cannot be opened just now ({name}); try again later"
    return f"cannot be opened ({name}); check its permissions"


def _root_error(workspace: WorkspaceRef, what: str, number: int | None = None) -> RunnerError:
    details = {"workspace_id": workspace.workspace_id}
    if number is not None:
        details["errno"] = errno.errorcode.get(number, "EIO")
    return RunnerError(
        ErrorCode.FILE_OPERATION_FAILED,
        f"the root of workspace {workspace.workspace_id} {what}",
        retryable=number in RETRYABLE,
        details=details,
    )
