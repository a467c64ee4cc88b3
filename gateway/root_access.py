"""What the owner of a root may do in it, which a command can take away: `chmod 000 .` is its right.

A command runs as the root's owner and may change the root's own mode. Were that to decide whether a registry is
accepted, one workspace could keep every other from being served at the next start. So a root whose owner is shut out
is accepted and given back to its owner, at start and at each reload: the same command could have done it a moment
before. Meanwhile its own calls alone fail, with the remedy. A root that belongs to somebody else no command of ours
can close, so there the registry is wrong and is refused. Nothing else that a command can do to its root outlives it:
it cannot rename or remove it, nor set attributes that its owner cannot take away, and what lies in it is not looked
at when a registry is loaded.

Refuses to know: policy, locks. Used by the registry, by locks and before roots are locked.
"""

from __future__ import annotations

import errno
import os

from gateway.errors import StartFailed

REMEDY = "chmod u+rwx"


def lacking(status: os.stat_result, *, writes: bool = False) -> int:
    """Which mode bits the owner of this root lacks and needs; 0 if none, or if it is not ours to give them.

    `writes`: the right to write is needed too. Otherwise a root without it is served: the operator may want it so.
    """
    if os.geteuid() not in (0, status.st_uid):
        return 0
    return (0o700 if writes else 0o500) & ~status.st_mode


def open_to_owner(path: str, device: int, inode: int, what: str, *, shut: bool) -> bool:
    """Gives u+rwx back on `path`, if it still is that directory and its owner cannot use it; whether it did. `shut`:
    found so before. It is looked at once more: a command of a killed predecessor may have run until a moment ago.
    Raises `StartFailed`. Blocks on the file system."""
    try:
        # O_PATH needs no permission on the directory itself; /proc/self/fd leads to it whatever the name does now.
        descriptor = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            status = os.fstat(descriptor)
            if (status.st_dev, status.st_ino) != (device, inode):
                raise StartFailed(f"the {what} was replaced while it was being checked", path, "start again")
            if not shut and not lacking(status):
                return False
            os.chmod(f"/proc/self/fd/{descriptor}", status.st_mode & 0o7777 | 0o700)
            return True
        finally:
            os.close(descriptor)
    except OSError as error:
        name = errno.errorcode.get(error.errno or 0, "?")
        raise StartFailed(f"the {what} cannot be opened to its owner ({name})", path, f"{REMEDY} {path}") from None


def readable(path: str) -> bool:
    """Whether this program can list and enter the directory now."""
    return os.access(path, os.R_OK | os.X_OK, effective_ids=True)


def enterable(path: str, status: os.stat_result, *, as_owner: bool) -> bool:
    """Whether a command can start in it. `as_owner`: it has no more rights than the owner, whatever ours are."""
    return os.access(path, os.X_OK, effective_ids=True) and not (as_owner and not status.st_mode & 0o100)
