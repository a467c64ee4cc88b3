"""Locks on directories, so that no two programs of ours serve one root or one data directory (LEASE-2).

A lock is `flock(2)` on a descriptor of the directory itself: it ends with the process, however that dies, and leaves no
file in the root. The descriptor also remembers which directory it was, so that a path that later leads elsewhere is
noticed. Refuses to know: registries, leases. Used by the application, and by `codespace exec`.
"""

from __future__ import annotations

import errno
import fcntl
import os
from dataclasses import dataclass

from gateway.errors import AlreadyServed, Code, OperatorError, StartFailed, ToolError
from gateway.root_access import REMEDY, enterable, readable

_CLOSED = (
    f"a command may have taken permission away; the operator gives it back with {REMEDY} on that directory, or by "
    "reloading the registry"
)
_CLOSED_DETAILS = {"reason": "root_unreadable", "errno": "EACCES", "remedy": f"{REMEDY} on the workspace's root"}


@dataclass(frozen=True)
class DirectoryLock:
    """A held lock. `descriptor`: O_DIRECTORY, close-on-exec, open for as long as the lock is held."""

    path: str
    device: int
    inode: int
    descriptor: int

    def release(self) -> None:
        """Once: the descriptor is closed, and the lock with it."""
        os.close(self.descriptor)

    def verify(self, workspace_id: str) -> None:
        """Raises `ToolError` FILE_OPERATION_FAILED: `reason: root_replaced` where the path no longer leads to the
        directory that is locked, since nothing protects the one it leads to now; `reason: root_unreadable` where this
        program may not list it. Blocks on the file system."""
        self._verify_same(workspace_id)
        if not readable(self.path):
            raise ToolError(
                Code.FILE_OPERATION_FAILED,
                f'the root of workspace "{workspace_id}" cannot be read (EACCES): {_CLOSED}',
                details={"workspace_id": workspace_id, **_CLOSED_DETAILS},
            )

    def verify_to_run(self, workspace_id: str, *, as_owner: bool) -> None:
        """As `verify`, but PROCESS_SPAWN_FAILED (`reason: root_unreadable`) where no command can start in it; one that
        can may repair the rest. `as_owner`: commands have no more rights than the root's owner."""
        status = self._verify_same(workspace_id)
        if not enterable(self.path, status, as_owner=as_owner):
            raise ToolError(
                Code.PROCESS_SPAWN_FAILED,
                f'no command can enter the root of workspace "{workspace_id}" (EACCES): {_CLOSED}',
                details={"workspace_id": workspace_id, "stage": "chdir", **_CLOSED_DETAILS},
            )

    def _verify_same(self, workspace_id: str) -> os.stat_result:
        try:
            status = os.stat(self.path, follow_symlinks=False)
            if (status.st_dev, status.st_ino) == (self.device, self.inode):
                return status
            now = "another directory or file"
        except OSError as error:
            now = errno.errorcode.get(error.errno or 0, "nothing")
        raise ToolError(
            Code.FILE_OPERATION_FAILED,
            f'the root of workspace "{workspace_id}" was moved or replaced since it was registered ({now} is in its '
            "place): the operator puts it back, or reloads the registry to serve what is there now",
            details={"workspace_id": workspace_id, "reason": "root_replaced"},
        )


def lock_directory(path: str, what: str) -> DirectoryLock:
    """Locks `path`, a canonical directory. `what`: what it is to the operator, such as `root of workspace demo`.

    Raises `AlreadyServed` where another process holds it (or this one, under another lock), `StartFailed` where the
    directory cannot be opened or locked. Blocks on the file system, never on the lock.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise StartFailed(
            f"the {what} cannot be opened ({errno.errorcode.get(error.errno or 0, '?')})",
            path,
            "name a directory that this user can read",
        ) from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        status = os.fstat(descriptor)
        return DirectoryLock(path, status.st_dev, status.st_ino, descriptor)
    except OSError as error:
        raise _refusal(error, descriptor, path, what) from None
    except BaseException:
        os.close(descriptor)
        raise


def _refusal(error: OSError, descriptor: int, path: str, what: str) -> OperatorError:
    holder = _holder(descriptor)
    os.close(descriptor)
    if error.errno == errno.EWOULDBLOCK:
        # Whose it is cannot be told: another codespace program holds it in this way, and so does any `flock DIRECTORY`.
        by = f"process {holder}" if holder else "a process that cannot be named from here"
        see = f"look at it with `ps -p {holder}`; if" if holder else f"find it with `fuser -v {path}`; if"
        return AlreadyServed(
            f"the {what} is locked (flock) by {by}",
            path,
            f"{see} it is a codespace program, stop it or use it; otherwise let it end or release the lock",
        )
    return StartFailed(
        f"the {what} cannot be locked ({errno.errorcode.get(error.errno or 0, '?')})",
        path,
        "use a file system that supports flock",
    )


def _holder(descriptor: int) -> int | None:
    """The process that took the lock, from /proc/locks (proc_locks(5)); None where it is hidden. For the message."""
    status = os.fstat(descriptor)
    place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    try:
        with open("/proc/locks", encoding="ascii", errors="replace") as table:
            for line in table:
                fields = line.split()
                if len(fields) > 5 and fields[1] == "FLOCK" and fields[5] == place and fields[4] not in ("0", "-1"):
                    return int(fields[4])
    except (OSError, ValueError):
        return None
    return None


class LockSet:
    """The roots this program holds, by device and inode, so that a reload keeps what stays. Not thread-safe."""

    def __init__(self) -> None:
        self._held: dict[tuple[int, int], DirectoryLock] = {}

    def get(self, device: int, inode: int) -> DirectoryLock | None:
        return self._held.get((device, inode))

    def acquire(self, path: str, device: int, inode: int, what: str) -> bool:
        """True if the lock is new, False if this directory was held already. Raises as `lock_directory`, and
        `StartFailed` where the directory is no longer the one that was checked."""
        known = self._held.get((device, inode))
        if known is not None and known.path == path:
            return False
        if known is not None:  # the same directory under a new name: the lock stays, the name to verify changes
            self._held[device, inode] = DirectoryLock(path, device, inode, known.descriptor)
            return False
        lock = lock_directory(path, what)
        if (lock.device, lock.inode) != (device, inode):
            lock.release()
            raise StartFailed(f"the {what} was replaced while it was being checked", path, "start again")
        self._held[device, inode] = lock
        return True

    def release(self, device: int, inode: int) -> None:
        """Idempotent."""
        lock = self._held.pop((device, inode), None)
        if lock is not None:
            lock.release()

    def held(self) -> tuple[tuple[int, int], ...]:
        return tuple(self._held)

    def close(self) -> None:
        """Gives every lock back. Idempotent."""
        for key in self.held():
            self.release(*key)
