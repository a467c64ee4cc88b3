"""Namespaces: the helper's own, in which trees are laid out, and those of each command.

The helper leaves the host's mount namespace at its start, for a copy whose root is a small tmpfs: `/old` is the host's
tree, `/t` holds laid-out trees, `/new` is where a child attaches its own. As an ordinary user it needs a user
namespace for that; as root it does not. Refuses to know plans. Called by the server at its start and by the child.
"""

from __future__ import annotations

import os

from sandbox_helper import syscalls as sc
from sandbox_helper.status import at_stage

OLD_ROOT = "/old"
TREES = "/t"
NEW_ROOT = "/new"
PROC_SELF = f"{OLD_ROOT}/proc/self"

FLAGS = {
    "user": sc.CLONE_NEWUSER,
    "mnt": sc.CLONE_NEWNS,
    "pid": sc.CLONE_NEWPID,
    "net": sc.CLONE_NEWNET,
    "ipc": sc.CLONE_NEWIPC,
    "uts": sc.CLONE_NEWUTS,
    "cgroup": sc.CLONE_NEWCGROUP,
}
"""By the names of /proc/PID/ns."""


def clone_flags(names: tuple[str, ...]) -> int:
    """For clone3: the caller's parent becomes the child's, and a pidfd comes back."""
    flags = sc.CLONE_PARENT | sc.CLONE_PIDFD
    for name in names:
        flags |= FLAGS[name]
    return flags


def current_ids(proc_self: str, names: tuple[str, ...]) -> dict[str, str]:
    """Name to what the kernel calls the namespace, such as `user:[4026531837]`. Raises OSError."""
    return {name: os.readlink(f"{proc_self}/ns/{name}") for name in names}


def write_own_map(proc_self: str, uid: int, gid: int) -> None:
    """The caller's own ids onto themselves, one of each. Needs a dumpable caller. Raises OSError.

    `setgroups` is denied first: an unprivileged gid_map needs it, and it keeps access lists that exclude a group true.
    """
    _write(f"{proc_self}/setgroups", "deny")
    _write(f"{proc_self}/uid_map", f"{uid} {uid} 1")
    _write(f"{proc_self}/gid_map", f"{gid} {gid} 1")


def write_map_of(pid: int, uid: int, gid: int) -> None:
    """Another id for a child, by a privileged caller. Raises OSError."""
    write_own_map(f"{OLD_ROOT}/proc/{pid}", uid, gid)


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def leave_the_host(privileged: bool) -> None:
    """Gives the calling process the namespace described above. No import works afterwards. Raises StageFailed.

    Mounts made on the host later still arrive below `/old` (slave propagation); nothing travels back.
    """
    uid, gid = os.geteuid(), os.getegid()
    if privileged:
        with at_stage("maps"):
            # The first step that root without its capabilities fails at.
            os.setgroups([])
    with at_stage("namespace"):
        sc.unshare(sc.CLONE_NEWNS | (0 if privileged else sc.CLONE_NEWUSER))
    if not privileged:
        with at_stage("maps"):
            write_own_map("/proc/self", uid, gid)
    with at_stage("mounts"):
        _stand_on_a_small_root()


def _stand_on_a_small_root() -> None:
    sc.mount(None, "/", None, sc.MS_REC | sc.MS_SLAVE)
    # Any directory serves as the place to stand on; it is uncovered again by the pivot.
    sc.mount("tmpfs", "/usr", "tmpfs", sc.MS_NOSUID | sc.MS_NODEV, "mode=755,size=1m,nr_inodes=4096")
    for name in (OLD_ROOT, TREES, NEW_ROOT):
        os.mkdir("/usr" + name, 0o755)
    os.chdir("/usr")
    sc.pivot_root(".", "." + OLD_ROOT)
    os.chdir("/")
