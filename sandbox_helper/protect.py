"""Protected names of a workspace: read-only covers, pinned ancestors, placeholders for what is absent.

A bind mount pins its own name, and each ancestor inside the workspace is bound onto itself, or renaming that would free
the name. An absent name needs something to mount on: an empty placeholder in the real workspace, which the runner
removes once the command is over. The workspace is hostile, since earlier commands wrote it: every walk is beneath its
descriptor and follows no link. Refuses to know who chose the names. Called by the child, before the pivot.
"""

from __future__ import annotations

import errno
import os
import stat

from sandbox_helper import syscalls as sc
from sandbox_helper.protocol import PLACEHOLDER_MODE, PLACEHOLDER_MTIME_S, Cover
from sandbox_helper.tree import EMPTY_FILE

_SEALED = sc.MOUNT_ATTR_RDONLY | sc.MOUNT_ATTR_NOSUID | sc.MOUNT_ATTR_NODEV


def cover(workspace: str, names: tuple[str, ...], root: str = ".", *, placeholders: bool = True) -> list[Cover]:
    """Covers each name, relative to the workspace at `workspace` of the tree at `root`.

    Without `placeholders` none is made or relied on: ENOENT where one would have to be.

    Returns what was covered or pinned. A name whose parent does not exist is left alone. Raises OSError with the name:
    ELOOP where a link stands at the name or on the way to it, since nothing could be mounted on that safely; ENOTSUP
    for a FIFO, socket or device, which a read-only mount keeps nobody from writing to; EMLINK for a file with another
    name, by which it could be changed.
    """
    workspace_fd = os.open(root + workspace, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    covers: dict[str, Cover] = {}
    try:
        for name in sorted(names, key=lambda n: n.count("/")):
            try:
                if _pin_ancestors(workspace_fd, name, covers):
                    _cover_one(workspace_fd, name, root, covers, placeholders)
            except OSError as error:
                raise OSError(error.errno, error.strerror, name) from error
    finally:
        os.close(workspace_fd)
    return list(covers.values())


def _pin_ancestors(workspace_fd: int, name: str, covers: dict[str, Cover]) -> bool:
    """False where an ancestor is missing or no directory."""
    parts = name.split("/")[:-1]
    for depth in range(1, len(parts) + 1):
        ancestor = "/".join(parts[:depth])
        if ancestor in covers:
            continue
        try:
            fd = sc.openat2(workspace_fd, ancestor, os.O_PATH | os.O_DIRECTORY, sc.RESOLVE_INSIDE)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR):
                return False
            raise
        try:
            covers[ancestor] = _what_stands(fd, ancestor, False)
            _bind_onto_itself(fd, 0)
        finally:
            os.close(fd)
    return True


def _bind_onto_itself(fd: int, attributes: int) -> None:
    tree = sc.open_tree(fd)
    try:
        if attributes:
            sc.mount_setattr(tree, attributes)
        sc.move_mount(tree, fd)
    finally:
        os.close(tree)


def _what_stands(fd: int, name: str, placeholder: bool) -> Cover:
    status = os.fstat(fd)
    return Cover(name, status.st_dev, status.st_ino, placeholder)


def _cover_one(workspace_fd: int, name: str, root: str, covers: dict[str, Cover], placeholders: bool) -> None:
    try:
        fd = sc.openat2(workspace_fd, name, os.O_PATH, sc.RESOLVE_INSIDE)
    except OSError as error:
        if error.errno != errno.ENOENT or not placeholders:
            raise
        fd = _placeholder(workspace_fd, name)
        if fd < 0:
            return
    try:
        status = os.fstat(fd)
        _check_coverable(status)
        stands_in = _is_placeholder(status)
        if stands_in and not placeholders:
            raise OSError(errno.ENOENT, "a placeholder stands there, which another command's end removes")
        covers[name] = _what_stands(fd, name, stands_in)
        if stands_in:
            tree = sc.open_tree(sc.AT_FDCWD, root + EMPTY_FILE)
            try:
                sc.move_mount(tree, fd)
            finally:
                os.close(tree)
        else:
            _bind_onto_itself(fd, _SEALED)
    finally:
        os.close(fd)


def _check_coverable(status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        return
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.ENOTSUP, "a protected name is neither file nor directory")
    if status.st_nlink > 1:
        raise OSError(errno.EMLINK, "a protected file has another name, by which it could be changed")


def _placeholder(workspace_fd: int, name: str) -> int:
    """Makes one; -1 where the place cannot be written, so that no command can make the name either."""
    parent, _, last = name.rpartition("/")
    parent_fd = sc.openat2(workspace_fd, parent or ".", os.O_PATH | os.O_DIRECTORY, sc.RESOLVE_INSIDE)
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            fd = os.open(last, flags, PLACEHOLDER_MODE, dir_fd=parent_fd)
        except FileExistsError:
            pass  # another command of the workspace was faster
        except OSError as error:
            if error.errno in (errno.EROFS, errno.EACCES):
                return -1
            raise
        else:
            try:
                os.utime(fd, (PLACEHOLDER_MTIME_S, PLACEHOLDER_MTIME_S))
            finally:
                os.close(fd)
    finally:
        os.close(parent_fd)
    return sc.openat2(workspace_fd, name, os.O_PATH, sc.RESOLVE_INSIDE)


def _is_placeholder(status: os.stat_result) -> bool:
    return (
        status.st_size == 0
        and status.st_mode == 0o100000 | PLACEHOLDER_MODE
        and status.st_nlink == 1
        and int(status.st_mtime) == PLACEHOLDER_MTIME_S
    )
