"""The managed child: PID 1 of a command's namespaces, from clone3 to the command's exec.

`prepare` is the order of containment; each step reports its stage first, and any failure ends the child with the
stage, errno and path on the report socket, before the command exists. Refuses to know the server's other children.
Called by the server in a fresh child, and never returns.
"""

from __future__ import annotations

import os
import select
from typing import NamedTuple

from sandbox_helper import (
    bridge,
    command,
    identity,
    init,
    limits,
    network,
    process_control,
    protect,
    seccomp,
    terminal,
    verify,
    waiting,
)
from sandbox_helper import syscalls as sc
from sandbox_helper.namespaces import NEW_ROOT, PROC_SELF, write_own_map
from sandbox_helper.protocol import Cover, Mount, Plan, Run, is_below
from sandbox_helper.status import Reporter
from sandbox_helper.tree import EMPTY_FILE

INODES_PER_MB = 128
MIN_INODES = 4096
"""Room for a test run's temporary directories and a small unpacked wheel, whatever the limit of memory."""
MAX_INODES = 262144
"""256 MiB of kernel memory; no installation into a temporary directory needs more."""
_PROC_MASKED = ("keys", "key-users", "timer_list")
_PROC_READ_ONLY = ("sys", "irq", "bus", "sysrq-trigger")
_PROC_FLAGS = sc.MS_NOSUID | sc.MS_NODEV | sc.MS_NOEXEC


class Facts(NamedTuple):
    """What the server found once, for every child. `namespaces`: the outside ones, by name."""

    privileged: bool
    namespaces: dict[str, str]
    seccomp_program: bytes
    last_capability: int
    liveness_fd: int | None
    fault: str | None


class Descriptors(NamedTuple):
    """What one child was given. `maps_done`: readable once a privileged server has written the id maps, else None.
    `tree`, `late`: detached mounts. `stdin`, `stdout`, `stderr`: None with a terminal."""

    stdin: int | None
    stdout: int | None
    stderr: int | None
    report: int
    status: int
    control: int
    maps_done: int | None
    tree: int
    late: tuple[tuple[int, str], ...]

    def streams(self) -> tuple[int, int, int] | None:
        """For 0, 1 and 2; None with a terminal."""
        if self.stdin is None or self.stdout is None or self.stderr is None:
            return None
        return self.stdin, self.stdout, self.stderr

    def numbers(self) -> set[int]:
        single = (self.stdin, self.stdout, self.stderr, self.report, self.status, self.control, self.maps_done)
        return {fd for fd in single if fd is not None}


class Made(NamedTuple):
    """`slave`: the path of the command's terminal. `covers`: of protected names. `mounts`: a descriptor of the mount
    namespace, of a child that waits."""

    slave: str | None
    covers: list[Cover]
    mounts: int


def run(facts: Facts, plan: Plan, request: Run, given: Descriptors) -> None:
    """Does not return: ends with _exit, and with the command's own end where there was one."""
    reporter = Reporter(given.report, given.status, facts.fault if request.payload == "exec" else None)
    try:
        made = prepare(facts, plan, request, given, reporter)
        if request.waits:
            command.warm_up(plan, given.streams())
            init.warm_up(given.control)
            request = request._replace(argv=waiting.until_used(plan, made.covers, made.mounts, reporter))
        main = command.start(plan, request, given.streams(), reporter, made.slave)
    except Exception as error:  # noqa: BLE001 - the outermost handler of this process
        reporter.fail(error)
        os._exit(1)
    init.settle(given.status, given.control, facts.liveness_fd)
    init.serve(main)


def prepare(facts: Facts, plan: Plan, request: Run, given: Descriptors, reporter: Reporter) -> Made:
    """Everything up to the command's own process. Raises OSError."""
    standing = given.numbers() | {0, 1, 2} | ({facts.liveness_fd} if facts.liveness_fd is not None else set())
    sc.close_all_but(standing | {given.tree} | {fd for fd, _ in given.late})
    reporter.enter("maps")
    _enter_identity(facts, plan, given, reporter)
    reporter.enter("parent")
    process_control.die_with_parent()
    _check_runner_lives(given.control)
    reporter.enter("mounts")
    self_fd = os.open(PROC_SELF, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    _build(plan, given)
    reporter.enter("protect")
    covers = protect.cover(plan.workspace, plan.protect, placeholders=not request.waits)
    reporter.note_covers(covers)
    reporter.enter("pivot")
    sc.pivot_root(".", ".")
    sc.umount_detach(".")
    os.chdir("/")
    reporter.enter("network")
    network.raise_loopback()
    if plan.network == "enabled":
        bridge.open_and_hand_over(plan, reporter.fd)
    reporter.enter("terminal")
    slave = terminal.make(reporter.fd, request.tty) if request.tty else None
    reporter.enter("limits")
    limits.core_off()
    reporter.enter("capabilities")
    process_control.drop_bounding_set(facts.last_capability)
    process_control.lock_securebits()
    sc.capset_empty()
    reporter.enter("seccomp")
    process_control.set_no_new_privs()
    seccomp.install_filter(facts.seccomp_program)
    reporter.enter("verify")
    verify.check(self_fd, plan, facts.namespaces, standing)
    mounts = os.open("ns/mnt", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self_fd) if request.waits else -1
    os.close(self_fd)
    # Readable memory of PID 1 would be a way past the filter's and the mounts' promises.
    process_control.become_undumpable()
    return Made(slave, covers, mounts)


def _enter_identity(facts: Facts, plan: Plan, given: Descriptors, reporter: Reporter) -> None:
    if given.maps_done is not None:
        if os.read(given.maps_done, 1) != b"1":
            raise OSError(1, "the server could not write the id maps")
        reporter.enter("identity")
        identity.become(plan.uid, plan.gid)
        return
    # The server is undumpable, and so is its copy; nobody could open the map file of such a process.
    process_control.become_dumpable()
    write_own_map(PROC_SELF, plan.uid, plan.gid)
    reporter.enter("identity")


def _check_runner_lives(control: int) -> None:
    """The parent may have died before the parent-death signal was set; then the pipe has no writer."""
    poll = select.poll()
    poll.register(control, select.POLLIN)
    if any(bits & select.POLLHUP for _, bits in poll.poll(0)):
        raise OSError(32, "the runner is gone")


def _build(plan: Plan, given: Descriptors) -> None:
    """The command's tree at NEW_ROOT, with the working directory there. Raises OSError."""
    sc.move_mount(given.tree, sc.AT_FDCWD, NEW_ROOT)
    os.close(given.tree)
    os.chdir(NEW_ROOT)
    if plan.proc == "own":
        # While the outside proc is still visible: the kernel asks for that (mount_too_revealing).
        sc.mount("proc", "proc", "proc", _PROC_FLAGS)
        _mask_proc()
    elif plan.proc == "processes":
        # Nothing in it needs a mask: keys, timers, settings and the like are not there.
        sc.mount("proc", "proc", "proc", _PROC_FLAGS, "subset=pid")
    else:
        sc.mount("tmpfs", "proc", "tmpfs", _PROC_FLAGS | sc.MS_RDONLY, "size=4k,nr_inodes=4,mode=555")
    sc.mount("devpts", "dev/pts", "devpts", sc.MS_NOSUID | sc.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=620")
    for mount in plan.mounts:
        if mount.kind == "tmpfs":
            size = f"size={mount.size_mb}m," if mount.size_mb else ""
            data = f"{size}nr_inodes={inodes_of(mount)},mode={mount.mode:o}"
            sc.mount("tmpfs", mount.target[1:], "tmpfs", sc.MS_NOSUID | sc.MS_NODEV, data)
    os.mkdir(plan.home[1:], 0o700)
    _attach_late(given.late)


def inodes_of(mount: Mount) -> int:
    """How many files a private file system holds. Its size counts pages alone, and an empty file takes none, but about
    1 KiB of kernel memory (inode, directory entry): at 128 for each MiB they take an eighth of what their content may.
    """
    if not mount.size_mb:
        return MAX_INODES
    return min(MAX_INODES, max(MIN_INODES, mount.size_mb * INODES_PER_MB))


def _attach_late(late: tuple[tuple[int, str], ...]) -> None:
    """Mounts in our fresh private file systems, and below one another. Nobody wrote a link into the former yet; the
    latter hold what earlier commands wrote, so nothing is made there and no link is followed."""
    root_fd = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    placed: list[str] = []
    for tree, target in late:
        if not any(is_below(target, above) for above in placed):
            os.makedirs(target[1:], 0o755, exist_ok=True)
        target_fd = sc.openat2(root_fd, target[1:], os.O_PATH, sc.RESOLVE_INSIDE)
        sc.move_mount(tree, target_fd)
        os.close(target_fd)
        os.close(tree)
        placed.append(target)
    os.close(root_fd)


def _mask_proc() -> None:
    for name in _PROC_MASKED:
        _bind_if_there(EMPTY_FILE[1:], f"proc/{name}")
    for name in _PROC_READ_ONLY:
        place = f"proc/{name}"
        if _bind_if_there(place, place):
            sc.mount(None, place, None, sc.MS_REMOUNT | sc.MS_BIND | sc.MS_RDONLY | _PROC_FLAGS)


def _bind_if_there(source: str, target: str) -> bool:
    """What this kernel does not have needs no cover."""
    try:
        sc.mount(source, target, None, sc.MS_BIND)
    except FileNotFoundError:
        return False
    return True
