"""What the kernel said about a path, as the contract's codes (FS-2).

Called by the file adapters for every `OSError` of an open. It shows relative paths alone.
"""

from __future__ import annotations

import errno
import os
import stat

from adapters.filesystem.paths import displayed
from runner.api import ErrorCode, RunnerError

_BY_ERRNO = {
    errno.ENOENT: (ErrorCode.FILE_NOT_FOUND, "does not exist; use find to see what does"),
    errno.ENOTDIR: (ErrorCode.PATH_NOT_DIRECTORY, "uses a file as a directory; shorten the path to that file"),
    errno.ELOOP: (ErrorCode.SYMLINK_REJECTED, "is or passes a symbolic link; use the path of the link's target"),
    # RESOLVE_BENEATH says so where a racing rename moved a directory out of the root: openat2(2).
    errno.EXDEV: (ErrorCode.PATH_ESCAPE, "left the workspace root while it was opened"),
    errno.ENAMETOOLONG: (ErrorCode.INVALID_ARGUMENT, "is longer than the file system allows; shorten it"),
}
RETRYABLE = frozenset({errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.EINTR, errno.ENOMEM})

_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
    stat.S_IFLNK: "a symbolic link",
}


def path_error(path: str, error: OSError, doing: str = "open") -> RunnerError:
    """The error of a failed call on `path` (relative). `doing`: a verb for those without a code of their own."""
    known = _BY_ERRNO.get(error.errno or 0)
    name = errno.errorcode.get(error.errno or 0, "EIO")
    details = {"path": displayed(path), "errno": name}
    if known is not None:
        return RunnerError(known[0], f"path {displayed(path)!r} {known[1]}", details=details)
    return RunnerError(
        ErrorCode.FILE_OPERATION_FAILED,
        f"cannot {doing} {displayed(path)!r}: {os.strerror(error.errno or errno.EIO)} ({name}); "
        "check its permissions and the file system",
        retryable=error.errno in RETRYABLE,
        details=details,
    )


def special_file(path: str, mode: int) -> RunnerError:
    """The error for something that is not a regular file, by its `st_mode`."""
    kind = _KINDS.get(stat.S_IFMT(mode), "not a regular file")
    hint = "use find to list it" if stat.S_ISDIR(mode) else "only regular files are read"
    return RunnerError(
        ErrorCode.SPECIAL_FILE_REJECTED,
        f"path {displayed(path)!r} is {kind}; {hint}",
        details={"path": displayed(path), "kind": kind.removeprefix("a ")},
    )
