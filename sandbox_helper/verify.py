"""The last look before the command: what the kernel says of this process, compared with what was asked for.

Everything here is read back from the kernel; nothing is remembered from the steps. Refuses to repair: a difference ends
the start. Called by the child with all restrictions in place.
"""

from __future__ import annotations

import fcntl
import os

from sandbox_helper import syscalls as sc
from sandbox_helper.protocol import Plan
from sandbox_helper.status import VerifyFailed

_CAP_LINES = (b"CapInh:", b"CapPrm:", b"CapEff:", b"CapBnd:", b"CapAmb:")
_NO_CAPS = b"0000000000000000"


def check(self_fd: int, plan: Plan, outside_namespaces: dict[str, str], open_fds: set[int]) -> None:
    """`self_fd`: this process's directory in a proc mounted outside. `open_fds`: every descriptor that may be open.

    Raises VerifyFailed with the first difference, OSError where something cannot be read.
    """
    if any(sc.capget()):
        raise VerifyFailed("capabilities are left")
    _check_status(_read(self_fd, "status"), plan)
    for name in plan.namespaces:
        if os.readlink(f"ns/{name}", dir_fd=self_fd) == outside_namespaces[name]:
            raise VerifyFailed(f"the {name} namespace is the outside one")
    _check_mounts(_read(self_fd, "mountinfo"), plan)
    fds_dir = os.open("fd", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self_fd)
    try:
        found = {int(entry) for entry in os.listdir(fds_dir)}
    finally:
        os.close(fds_dir)
    # listdir works on a duplicate of fds_dir, which it lists too.
    extra = {fd for fd in found - open_fds - {self_fd, fds_dir} if _is_open(fd)}
    if extra:
        raise VerifyFailed(f"descriptor {min(extra)} is open")
    for fd in open_fds - {0, 1, 2}:
        if not fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC:
            raise VerifyFailed(f"descriptor {fd} would stay open in the command")


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def _read(self_fd: int, name: str) -> bytes:
    fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self_fd)
    try:
        parts = []
        while part := os.read(fd, 65536):
            parts.append(part)
        return b"".join(parts)
    finally:
        os.close(fd)


def _check_status(status: bytes, plan: Plan) -> None:
    lines = dict(line.split(b"\t", 1) for line in status.split(b"\n") if b"\t" in line)
    for name in _CAP_LINES:
        if lines[name] != _NO_CAPS:
            raise VerifyFailed(f"{name.decode()} {lines[name].decode()}")
    for name, number in ((b"Uid:", plan.uid), (b"Gid:", plan.gid)):
        # Shown as the reader's own user namespace has them.
        if set(lines[name].split()) != {b"%d" % number}:
            raise VerifyFailed(f"{name.decode()} {lines[name].decode()}")
    for name, value in ((b"NoNewPrivs:", b"1"), (b"Seccomp:", b"2")):
        if lines[name] != value:
            raise VerifyFailed(f"{name.decode()} {lines[name].decode()}")


def _check_mounts(mountinfo: bytes, plan: Plan) -> None:
    """Every mount private; read-only, or one of those that are meant to be written."""
    workspace = os.fsencode(plan.workspace)
    writable = {os.fsencode(m.target) for m in plan.mounts if m.kind == "tmpfs"} | {b"/proc", b"/dev/pts"}
    for line in mountinfo.splitlines():
        mount, _, _ = line.partition(b" - ")
        fields = mount.split(b" ")
        point, options = fields[4], fields[5].split(b",")
        point = point if b"\\" not in point else point.decode("unicode_escape").encode("latin-1")
        if len(fields) > 6 and fields[6]:
            raise VerifyFailed(f"mount {os.fsdecode(point)} is not private")
        if b"nosuid" not in options:
            raise VerifyFailed(f"mount {os.fsdecode(point)} is not nosuid")
        if b"ro" in options or point in writable or point == workspace:
            continue
        # Device nodes; pins of ancestors, and what the operator had mounted below the workspace already.
        if point.startswith((b"/dev/", workspace + b"/")):
            continue
        raise VerifyFailed(f"mount {os.fsdecode(point)} is writable")
