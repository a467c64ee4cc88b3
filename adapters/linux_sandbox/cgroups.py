"""Control groups (version 2): the subtree that this program was given, and a leaf of it for each command.

Where a subtree was delegated, memory and process limits hold for a command as a whole, and the kernel tells when one
struck. Delegated means: writable, and marked so by systemd (`user.delegate`) or the root of a container's own control
groups; anything else is somebody else's to arrange, even where root could. The kernel lets no group have both processes
and controlled children, so this program's own processes move into a group beside the leaves. Refuses to know plans.
Called by the launcher, in threads: everything here blocks, briefly.
"""

from __future__ import annotations

import errno
import itertools
import os
import select
from dataclasses import dataclass
from typing import Literal

from runner.api import Limits

CONTROLLERS = frozenset({"memory", "pids"})
SUPERVISOR = "supervisor"
_LEAF = "command-"
_MOVES = 20
_GONE_MS = 2000
_numbers = itertools.count(1)
Struck = Literal["memory_mb", "processes"]


@dataclass(frozen=True)
class Subtree:
    """`path`: of the group whose children are leaves. `controllers`: of CONTROLLERS, in force for them."""

    path: str
    controllers: frozenset[str]


@dataclass(frozen=True)
class NoSubtree:
    """`detail`: why there is none. `errno`: a name, where a call failed."""

    detail: str
    errno: str | None = None


# --- finding ----------------------------------------------------------------------------------------------------------
def find(wanted: frozenset[str] = CONTROLLERS, proc_self: str = "/proc/self") -> Subtree | NoSubtree:
    """The subtree for this process, ready for leaves; stale leaves of dead runners are gone from it. Moves this
    program's processes where it has to. Never raises: limits by setrlimit(2) stand in."""
    try:
        place = own_place(_read(f"{proc_self}/mountinfo"), _read(f"{proc_self}/cgroup"))
        if place is None:
            return NoSubtree("no cgroup v2 hierarchy is mounted")
        mount, relative = place
        own = os.path.join(mount, relative.strip("/")).rstrip("/")
        candidates = [(own, relative)]
        if relative.strip("/"):
            candidates.insert(0, (os.path.dirname(own), os.path.dirname(relative)))
        chosen = next((path for path, name in candidates if is_delegated(path, name)), None)
        if chosen is None:
            return NoSubtree(f"the control group {relative} is not delegated to this program", "EACCES")
        return prepare(chosen, wanted)
    except OSError as error:
        return NoSubtree(f"control groups: {error.strerror}: {error.filename or ''}".rstrip(": "), _name(error))


def own_place(mountinfo: str, cgroup: str) -> tuple[str, str] | None:
    """(mount point, own group's path below it) of the version 2 hierarchy, or None where it cannot be seen.

    Source: proc_pid_mountinfo(5), cgroups(7).
    """
    own = next((line[3:] for line in cgroup.splitlines() if line.startswith("0::/")), None)
    if own is None:
        return None
    for line in mountinfo.splitlines():
        fields, _, kind = line.partition(" - ")
        root, point = fields.split(" ")[3:5]
        if kind.startswith("cgroup2 ") and (root == "/" or own == root or own.startswith(root + "/")):
            return point, own if root == "/" else own[len(root) :] or "/"
    return None


def is_delegated(path: str, relative: str) -> bool:
    """Whether leaves may be made in this group. Raises nothing: what cannot be looked at is not ours."""
    files = (path, f"{path}/cgroup.procs", f"{path}/cgroup.subtree_control")
    if not all(os.access(file, os.W_OK) for file in files):
        return False
    if relative == "/":
        # The root of a container's groups; the machine's own root has no type.
        return os.path.exists(f"{path}/cgroup.type")
    try:
        return os.getxattr(path, "user.delegate") == b"1"
    except OSError:
        return False


def prepare(path: str, wanted: frozenset[str]) -> Subtree | NoSubtree:
    """Puts the controllers in force for children of `path`. Raises OSError."""
    available = frozenset(_read(f"{path}/cgroup.controllers").split()) & wanted
    if available != wanted:
        missing = ", ".join(sorted(wanted - available))
        return NoSubtree(f"the delegated control group lacks the controllers {missing}", "ENOENT")
    if not available <= frozenset(_read(f"{path}/cgroup.subtree_control").split()):
        move_all(path, f"{path}/{SUPERVISOR}")
        _write(f"{path}/cgroup.subtree_control", " ".join(f"+{name}" for name in sorted(available)))
    sweep(path)
    return Subtree(path, available)


def move_all(source: str, target: str) -> None:
    """Every process of one group into another, which is made. Raises OSError; EBUSY where they never become none."""
    os.makedirs(target, exist_ok=True)
    for _ in range(_MOVES):
        pids = _read(f"{source}/cgroup.procs").split()
        if not pids:
            return
        for pid in pids:
            try:
                _write(f"{target}/cgroup.procs", pid)
            except ProcessLookupError:
                continue  # it ended meanwhile
    raise OSError(errno.EBUSY, "processes keep appearing in the group", source)


def sweep(path: str) -> list[str]:
    """Removes leaves of runners that are dead; returns their names. One that is in use stays: the kernel says EBUSY."""
    removed = []
    for name in os.listdir(path):
        owner = name.removeprefix(_LEAF).partition("-")[0]
        if not name.startswith(_LEAF) or not owner.isdigit() or os.path.exists(f"/proc/{owner}"):
            continue
        try:
            os.rmdir(f"{path}/{name}")
            removed.append(name)
        except OSError:
            continue
    return removed


# --- leaves -----------------------------------------------------------------------------------------------------------
class Leaf:
    """The group of one command. `fd`: of its directory, for CLONE_INTO_CGROUP. Closed by `close`, once."""

    def __init__(self, path: str, controllers: frozenset[str]) -> None:
        self.path, self.name = path, os.path.basename(path)
        self._controllers = controllers
        self.fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def holds(self, pid: int) -> bool:
        """Whether a child that was not reaped yet is, or was, in this group. What cannot be read proves nothing."""
        try:
            lines = _read(f"/proc/{pid}/cgroup").splitlines()
        except OSError:
            return False
        return any(line.startswith("0::/") and line.endswith(f"/{self.name}") for line in lines)

    def struck(self) -> frozenset[Struck]:
        """The limits that the kernel counted as struck so far. Raises OSError."""
        found: set[Struck] = set()
        if "memory" in self._controllers and _counter(_read(f"{self.path}/memory.events"), "oom_kill"):
            found.add("memory_mb")
        if "pids" in self._controllers and _counter(_read(f"{self.path}/pids.events"), "max"):
            found.add("processes")
        return frozenset(found)

    def kill(self) -> None:
        """Every process of the group, those it is forking included. Raises OSError. Source: cgroup v2, cgroup.kill."""
        _write(f"{self.path}/cgroup.kill", "1")

    def close(self) -> frozenset[Struck]:
        """What struck; then ends what is left, and removes the group. One that cannot be removed is swept later."""
        try:
            found = self.struck()
        except OSError:
            found = frozenset()
        os.close(self.fd)
        try:
            os.rmdir(self.path)
        except OSError:
            self._remove_by_force()
        return found

    def _remove_by_force(self) -> None:
        try:
            self.kill()
            _until_empty(self.path)
            os.rmdir(self.path)
        except OSError:
            pass


def make_leaf(subtree: Subtree, limits: Limits) -> Leaf:
    """With the limits set and read back. Raises OSError, leaving nothing."""
    path = f"{subtree.path}/{_LEAF}{os.getpid()}-{next(_numbers)}"
    os.mkdir(path, 0o755)
    try:
        for name, value in leaf_settings(subtree.controllers, limits):
            _set(f"{path}/{name}", value)
        return Leaf(path, subtree.controllers)
    except OSError:
        os.rmdir(path)
        raise


def leaf_settings(controllers: frozenset[str], limits: Limits) -> list[tuple[str, str]]:
    """(file, value) for a command of these limits; 0 means none. Source: the kernel's cgroup-v2 document."""
    settings = []
    if "memory" in controllers and limits.memory_mb:
        settings.append(("memory.max", str(limits.memory_mb << 20)))
        settings.append(("memory.oom.group", "1"))
        # Or the limit would only bound what is not swapped out yet; absent where the machine has no swap accounting.
        settings.append(("memory.swap.max", "0"))
    if "pids" in controllers and limits.processes:
        settings.append(("pids.max", str(limits.processes)))
    return settings


def _set(path: str, value: str) -> None:
    try:
        _write(path, value)
    except FileNotFoundError:
        if path.endswith("/memory.swap.max"):
            return
        raise
    said = _read(path).strip()
    # memory.max is kept in whole pages.
    if said != value and not (said.isdigit() and value.isdigit() and 0 <= int(value) - int(said) < 1 << 16):
        raise OSError(errno.EIO, f"reads {said} after {value} was written", path)


def _until_empty(path: str) -> None:
    """Waits, within a bound, for the kernel's word that no process is left. Raises OSError."""
    fd = os.open(f"{path}/cgroup.events", os.O_RDONLY | os.O_CLOEXEC)
    try:
        poll = select.poll()
        poll.register(fd, select.POLLPRI)
        while "populated 0" not in os.pread(fd, 4096, 0).decode() and poll.poll(_GONE_MS):
            pass
    finally:
        os.close(fd)


def _counter(text: str, name: str) -> int:
    return next((int(line.split()[1]) for line in text.splitlines() if line.split()[:1] == [name]), 0)


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        return file.read()


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None
    finally:
        os.close(fd)


def _name(error: OSError) -> str:
    return errno.errorcode.get(error.errno or 0, str(error.errno))
