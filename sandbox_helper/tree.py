"""Laid-out trees: what is equal for every command of one plan, mounted once and copied for each.

A tree stands at `/t/N/root`. Mounts below a private file system of the command's own (a workspace below /tmp) cannot
be part of it: they wait beside it, and the child attaches them. Read-only, nosuid and nodev, recursively; the workspace
alone is writable, with an id map where its owner is another than the command. Sources are trusted (the operator's),
and resolved in the host's tree; targets below another mount are walked without links, since a command may have made
them. Refuses to know commands. Called by the server.
"""

from __future__ import annotations

import errno
import os
import stat

from sandbox_helper import syscalls as sc
from sandbox_helper.identity import IdMaps
from sandbox_helper.namespaces import OLD_ROOT, TREES
from sandbox_helper.protocol import Mount, Plan, is_below

MAX_COPY_BYTES = 4 * 1024 * 1024
EMPTY_FILE = "/.empty"
"""A read-only empty file of every tree: the cover for names that must not be there."""
DEVICE_NODES = ("null", "zero", "full", "random", "urandom", "tty")
_DEV_LINKS = (
    ("fd", "/proc/self/fd"), ("stdin", "/proc/self/fd/0"), ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"), ("ptmx", "pts/ptmx"),
)  # fmt: skip
_SEALED = sc.MOUNT_ATTR_RDONLY | sc.MOUNT_ATTR_NOSUID | sc.MOUNT_ATTR_NODEV

Stamp = tuple[int, int, int, int]


def tree_key(plan: Plan) -> str:
    """Equal for plans whose trees are: limits, environment and terminal are no part of a tree. Made once a plan."""
    return repr((plan.workspace, plan.uid, plan.gid, plan.idmap, plan.mounts, plan.links, plan.files))


class Tree:
    """One laid-out plan. `late`: (descriptor of a mounted place, target) of the mounts that the child attaches."""

    __slots__ = ("_host_root", "_nested", "_sources", "_workspace", "late", "plan", "root_fd", "slot")

    def __init__(self, slot: str, plan: Plan, host_root: int, id_maps: IdMaps) -> None:
        """Lays the plan out at `slot`, which must not exist. Raises OSError, with nothing left behind."""
        self.slot = slot
        self.plan = plan
        self._host_root = host_root
        self._sources: list[tuple[str, Stamp]] = []
        self._nested: list[str] = []
        self._workspace: Stamp | None = None
        self.late: list[tuple[int, str]] = []
        self.root_fd = -1
        os.makedirs(slot + "/root", 0o755)
        try:
            sc.mount("tmpfs", slot + "/root", "tmpfs", sc.MS_NOSUID | sc.MS_NODEV, "mode=755,size=32m,nr_inodes=32768")
            self.root_fd = os.open(slot + "/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            self._lay_out(id_maps)
        except OSError:
            self.remove()
            raise

    def _lay_out(self, id_maps: IdMaps) -> None:
        root = self.slot + "/root"
        for name in ("/proc", "/dev", "/dev/pts"):
            os.makedirs(root + name, 0o755, exist_ok=True)
        self._write(EMPTY_FILE, b"")
        for path, target in self.plan.links:
            self._parents(path)
            os.symlink(target, root + path)
        for path, text in self.plan.files:
            self._write(path, text.encode())
        for name, target in _DEV_LINKS:
            os.symlink(target, f"{root}/dev/{name}")
        private = [m.target for m in self.plan.mounts if m.kind == "tmpfs"]
        placed: list[str] = []
        for mount in sorted(self.plan.mounts, key=lambda m: m.target):
            if mount.kind == "copy":
                self._copy(mount)
            elif any(is_below(mount.target, target) for target in private):
                if mount.kind != "tmpfs":
                    self._wait_beside(mount, id_maps)
            else:
                self._place(mount, placed, id_maps)
                placed.append(mount.target)
        for name in DEVICE_NODES:
            self._write(f"/dev/{name}", b"")
            # No nodev here: it is what makes a device file one.
            device = sc.open_tree(self._host_root, f"dev/{name}", sc.OPEN_TREE_CLONE)
            self._attach(device, sc.MOUNT_ATTR_NOSUID | sc.MOUNT_ATTR_NOEXEC, self._target_fd(f"/dev/{name}"))
        flags = sc.MS_REMOUNT | sc.MS_BIND | sc.MS_RDONLY | sc.MS_NOSUID | sc.MS_NODEV
        sc.mount(None, root, None, flags)

    def _place(self, mount: Mount, placed: list[str], id_maps: IdMaps) -> None:
        """A mount in the tree itself; of a private file system only its directory."""
        covered = any(is_below(mount.target, target) for target in placed)
        source = -1 if mount.kind == "tmpfs" else self._source(mount)
        try:
            is_directory = source < 0 or stat.S_ISDIR(os.fstat(source).st_mode)
            if not covered:
                self._make_target(mount.target, is_directory)
            elif mount.kind == "tmpfs":
                raise OSError(errno.EBUSY, "a private file system below another mount", mount.target)
            if source >= 0:
                self._bind(mount, source, self._target_fd(mount.target), id_maps)
                if covered:
                    self._nested.append(mount.target)
        finally:
            if source >= 0:
                os.close(source)

    def _wait_beside(self, mount: Mount, id_maps: IdMaps) -> None:
        source = self._source(mount)
        try:
            place = f"{self.slot}/late{len(self.late)}"
            if stat.S_ISDIR(os.fstat(source).st_mode):
                os.mkdir(place, 0o755)
            else:
                os.close(os.open(place, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o444))
            self._bind(mount, source, os.open(place, os.O_PATH | os.O_CLOEXEC), id_maps)
            self.late.append((os.open(place, os.O_PATH | os.O_CLOEXEC), mount.target))
        finally:
            os.close(source)

    def _source(self, mount: Mount) -> int:
        """The workspace's path is canonical, and so is what is shown in it: a link on the way means that somebody
        replaced it, who may put the directory back before the target is looked for."""
        canonical = mount.kind == "workspace" or is_below(mount.source, self.plan.workspace)
        links = sc.RESOLVE_NO_SYMLINKS if canonical else 0
        resolve = sc.RESOLVE_IN_ROOT | sc.RESOLVE_NO_MAGICLINKS | links
        try:
            return sc.openat2(self._host_root, mount.source, os.O_PATH, resolve)
        except OSError as error:
            raise OSError(error.errno, error.strerror, mount.source) from error

    def _bind(self, mount: Mount, source: int, target_fd: int, id_maps: IdMaps) -> None:
        if mount.kind != "workspace":
            self._sources.append((mount.source, _stamp(os.fstat(source))))
            self._attach(sc.open_tree(source), _SEALED, target_fd)
            return
        status = os.fstat(source)
        if not stat.S_ISDIR(status.st_mode):
            raise OSError(errno.ENOTDIR, "the workspace is not a directory", mount.source)
        self._workspace = _workspace_stamp(status)
        attributes, userns = sc.MOUNT_ATTR_NOSUID | sc.MOUNT_ATTR_NODEV, 0
        plan = self.plan
        if plan.idmap and (status.st_uid, status.st_gid) != (plan.uid, plan.gid):
            attributes |= sc.MOUNT_ATTR_IDMAP
            userns = id_maps.userns(status.st_uid, status.st_gid, plan.uid, plan.gid)
        self._attach(sc.open_tree(source), attributes, target_fd, userns)

    @staticmethod
    def _attach(tree: int, attributes: int, target_fd: int, userns: int = 0) -> None:
        try:
            sc.mount_setattr(tree, attributes, propagation=sc.MS_PRIVATE, userns_fd=userns)
            sc.move_mount(tree, target_fd)
        finally:
            os.close(tree)
            os.close(target_fd)

    def _target_fd(self, target: str) -> int:
        return sc.openat2(self.root_fd, target[1:], os.O_PATH, sc.RESOLVE_INSIDE)

    def _parents(self, path: str) -> None:
        os.makedirs(os.path.dirname(self.slot + "/root" + path), 0o755, exist_ok=True)

    def _make_target(self, target: str, is_directory: bool) -> None:
        if is_directory:
            os.makedirs(self.slot + "/root" + target, 0o755, exist_ok=True)
        else:
            self._write(target, b"")

    def _write(self, path: str, data: bytes) -> None:
        self._parents(path)
        fd = os.open(self.slot + "/root" + path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        try:
            os.fchmod(fd, 0o444)
            if os.write(fd, data) != len(data):
                raise OSError(errno.ENOSPC, "short write while laying out", path)
        finally:
            os.close(fd)

    def _copy(self, mount: Mount) -> None:
        resolve = sc.RESOLVE_IN_ROOT | sc.RESOLVE_NO_MAGICLINKS
        fd = sc.openat2(self._host_root, mount.source, os.O_RDONLY | os.O_NONBLOCK, resolve)
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_COPY_BYTES:
                raise OSError(errno.EFBIG, "not a small regular file", mount.source)
            self._write(mount.target, os.read(fd, MAX_COPY_BYTES))
        finally:
            os.close(fd)
        self._sources.append((mount.source, _stamp(status)))

    def is_current(self) -> bool:
        """Whether the workspace, and what was bound or copied, are still what was laid out. Raises OSError."""
        resolve = sc.RESOLVE_IN_ROOT | sc.RESOLVE_NO_MAGICLINKS | sc.RESOLVE_NO_SYMLINKS
        fd = sc.openat2(self._host_root, self.plan.workspace, os.O_PATH, resolve)
        try:
            status = os.fstat(fd)
        finally:
            os.close(fd)
        if _workspace_stamp(status) != self._workspace:
            return False
        # A mount in somebody else's directory goes with it, and the same inode may be there again.
        if not all(self._is_mounted(target) for target in self._nested):
            return False
        return all(self._unchanged(source, stamp) for source, stamp in self._sources)

    def _is_mounted(self, target: str) -> bool:
        """Raises OSError."""
        fd = self._target_fd(target)
        try:
            return sc.statx("", fd).mount_root
        finally:
            os.close(fd)

    def _unchanged(self, source: str, stamp: Stamp) -> bool:
        try:
            if _stamp(os.stat(OLD_ROOT + source)) == stamp:
                return True
        except OSError:
            pass
        # A link on the way that starts at the root points elsewhere from here: resolve it as it was resolved before.
        fd = sc.openat2(self._host_root, source, os.O_PATH, sc.RESOLVE_IN_ROOT | sc.RESOLVE_NO_MAGICLINKS)
        try:
            return _stamp(os.fstat(fd)) == stamp
        finally:
            os.close(fd)

    def standing(self) -> list[list[str | int]]:
        """What it stands on, the workspace first; see `protocol.Standing`."""
        assert self._workspace is not None
        return [[path, *stamp] for path, stamp in ((self.plan.workspace, self._workspace), *self._sources)]

    def open(self) -> tuple[int, list[tuple[int, str]]]:
        """Fresh detached copies for one command: of the tree, and of each waiting mount with its target."""
        base = sc.open_tree(self.root_fd)
        late: list[tuple[int, str]] = []
        try:
            late.extend((sc.open_tree(fd), target) for fd, target in self.late)
        except OSError:
            os.close(base)
            for fd, _ in late:
                os.close(fd)
            raise
        return base, late

    def remove(self) -> None:
        """Detaches everything; commands keep their own copies."""
        for fd, _ in self.late:
            os.close(fd)
        if self.root_fd >= 0:
            os.close(self.root_fd)
        for entry in os.listdir(self.slot):
            place = f"{self.slot}/{entry}"
            try:
                sc.umount_detach(place)
            except OSError as error:
                if error.errno != errno.EINVAL:  # not mounted (yet)
                    raise
            if os.path.isdir(place):
                os.rmdir(place)
            else:
                os.unlink(place)
        os.rmdir(self.slot)


def _workspace_stamp(status: os.stat_result) -> Stamp:
    return status.st_dev, status.st_ino, status.st_uid, status.st_gid


def _stamp(status: os.stat_result) -> Stamp:
    """A directory stays bound when its contents change; a file may have been copied."""
    if stat.S_ISDIR(status.st_mode):
        return status.st_dev, status.st_ino, 0, 0
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


class Trees:
    """The laid-out trees of the helper, at most `limit`: the least recently used goes first."""

    __slots__ = ("_count", "_host_root", "_id_maps", "_limit", "_trees")

    def __init__(self, host_root: int, id_maps: IdMaps, limit: int) -> None:
        self._host_root, self._id_maps, self._limit = host_root, id_maps, limit
        self._trees: dict[str, Tree] = {}
        self._count = 0

    def get(self, key: str, plan: Plan) -> Tree:
        """The tree of a plan with this `tree_key`, laid out anew where it is missing or what it stands on was replaced.

        Raises OSError.
        """
        tree = self._trees.pop(key, None)
        if tree is not None and not self._is_current(tree):
            tree.remove()
            tree = None
        if tree is None:
            while len(self._trees) >= self._limit:
                self._trees.pop(next(iter(self._trees))).remove()
            self._count += 1
            tree = Tree(f"{TREES}/{self._count}", plan, self._host_root, self._id_maps)
        self._trees[key] = tree
        return tree

    @staticmethod
    def _is_current(tree: Tree) -> bool:
        try:
            return tree.is_current()
        except OSError:
            return False
