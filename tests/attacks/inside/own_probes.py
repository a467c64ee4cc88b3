"""Attack probes beside the corpus, for what a small sandbox helper is likely to leave open.

A program that is run inside the sandbox, as the command, with an interpreter that the command sees; standard library
only. Each probe runs in a forked child and prints one JSON object a line: `{"id", "state", "errno", "detail"}`. `open`:
what the probe tries works. `refused`: it was stopped, with the errno. `untried`: it could not be tried, with the
reason. With `--control`, outside and without a sandbox, every probe must come out `open` (or `untried`, for want of
root): it then shows that it can succeed, against processes and files of its own. Run by `test_own_probes`.

    own_probes.py WORKSPACE [--control]
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import platform
import signal
import socket
import stat
import sys
import tempfile
from collections.abc import Callable
from typing import NamedTuple


class Outcome(NamedTuple):
    state: str
    errno: str | None = None
    detail: str = ""


Probe = Callable[[str, bool], Outcome]
PROBES: dict[str, Probe] = {}
X86_64 = platform.machine() == "x86_64"
NUMBERS = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "clone": (56, 220),
    "unshare": (272, 97),
    "setns": (308, 268),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "clock_settime": (227, 112),
    "ioctl": (16, 29),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438),
    "mount_setattr": (442, 442),
    "statmount": (457, 457),
    "renameat2": (316, 276),
}
NAMESPACE_FLAGS = (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000)
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


def probe(name: str) -> Callable[[Probe], Probe]:
    def register(function: Probe) -> Probe:
        PROBES[name] = function
        return function

    return register


def call(name: str, *arguments: object) -> tuple[int, str]:
    """(result, errno name or `ok`) of a call by number, so that libc cannot fall back to another."""
    number = NUMBERS[name][0 if X86_64 else 1]
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = int(libc.syscall(ctypes.c_long(number), *words))
    return result, "ok" if result >= 0 else errno.errorcode[ctypes.get_errno()]


def tried(action: Callable[..., object], *arguments: object) -> Outcome:
    try:
        action(*arguments)
    except OSError as error:
        return Outcome("refused", errno.errorcode.get(error.errno or 0))
    return Outcome("open")


def works(action: Callable[..., object], *arguments: object) -> bool:
    return tried(action, *arguments).state == "open"


def read_some(path: str) -> None:
    with open(path, "rb", buffering=0) as file:
        if not path.endswith("/mem"):  # its first page is never mapped
            file.read(1)


def can_write(path: str) -> bool:
    return works(lambda: os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)))


def reached(answers: dict[str, str], refusals: set[str]) -> Outcome:
    """Calls with impossible arguments: whatever is not one of `refusals` came from the kernel behind the filter."""
    through = {name: answer for name, answer in answers.items() if answer not in refusals}
    if through:
        return Outcome("open", None, str(through))
    return Outcome("refused", "/".join(sorted(set(answers.values()))))


def child_that_waits() -> int:
    child = os.fork()
    if child == 0:
        signal.pause()
        os._exit(0)
    return child


def end(child: int) -> None:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def victim(control: bool) -> int:
    return os.getppid() if control else 1


def own_user_namespace(extra: int = 0) -> None:
    uid, gid = os.getuid(), os.getgid()
    result, answer = call("unshare", 0x10000000 | extra)
    if result < 0:
        raise OSError(getattr(errno, answer), "unshare")
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


# --- PID 1
@probe("steal-descriptor-of-init")
def _(workspace: str, control: bool) -> Outcome:
    child = child_that_waits()
    target = child if control else 1
    pidfd, answer = call("pidfd_open", target, 0)
    if pidfd < 0:
        return Outcome("refused", answer, "pidfd_open")
    _, answer = call("pidfd_getfd", pidfd, 0, 0)
    end(child)
    return Outcome("open") if answer == "ok" else Outcome("refused", answer)


@probe("read-memory-of-init")
def _(workspace: str, control: bool) -> Outcome:
    child = child_that_waits()
    buffer = ctypes.create_string_buffer(8)
    here = (ctypes.c_ulong * 2)(ctypes.addressof(buffer), 8)
    # The same address in a forked child is mapped as well.
    _, answer = call("process_vm_readv", child if control else 1, here, 1, here, 1, 0)
    end(child)
    if answer == "EFAULT":
        return Outcome("open", None, "reached the kernel: EFAULT")
    return Outcome("open") if answer == "ok" else Outcome("refused", answer)


@probe("look-into-init")
def _(workspace: str, control: bool) -> Outcome:
    base = f"/proc/{victim(control)}"
    seen = [name for name in ("fd", "fdinfo", "map_files") if works(os.listdir, f"{base}/{name}")]
    seen += [name for name in ("cwd", "root", "exe") if works(os.readlink, f"{base}/{name}")]
    files = ("environ", "maps", "mem", "auxv", "pagemap", "syscall", "stack", "io", "task/1/mem")
    seen += [name for name in files if works(read_some, f"{base}/{name}")]
    return Outcome("open", None, " ".join(seen)) if seen else Outcome("refused", "EACCES")


@probe("change-init")
def _(workspace: str, control: bool) -> Outcome:
    names = ("oom_score_adj", "oom_adj", "coredump_filter", "autogroup", "comm", "clear_refs", "mem")
    base = f"/proc/{victim(control)}"
    opened = [name for name in names if os.path.exists(f"{base}/{name}") and can_write(f"{base}/{name}")]
    return Outcome("open", None, " ".join(opened)) if opened else Outcome("refused", "EACCES")


@probe("stop-init")
def _(workspace: str, control: bool) -> Outcome:
    if control:
        child = child_that_waits()
        os.kill(child, signal.SIGSTOP)
        _, status = os.waitpid(child, os.WUNTRACED)
        end(child)
        return Outcome("open") if os.WIFSTOPPED(status) else Outcome("refused")
    os.kill(1, signal.SIGSTOP)
    with open("/proc/1/stat") as file:
        state = file.read().rpartition(")")[2].split()[0]
    return Outcome("open", None, state) if state in "Tt" else Outcome("refused", None, state)


@probe("be-traced")
def _(workspace: str, control: bool) -> Outcome:
    result, answer = call("ptrace", 0, 0, 0, 0)
    return Outcome("open") if result >= 0 else Outcome("refused", answer)


# --- namespaces and mounts
@probe("clone-with-namespaces")
def _(workspace: str, control: bool) -> Outcome:
    answers = {}
    for flag in NAMESPACE_FLAGS:
        child, answer = call("clone", flag | signal.SIGCHLD, 0, 0, 0, 0)
        if child == 0:
            os._exit(0)
        if child > 0:
            os.waitpid(child, 0)
        answers[hex(flag)] = answer
    return reached(answers, {"EPERM"})


@probe("enter-a-namespace")
def _(workspace: str, control: bool) -> Outcome:
    return reached({"setns": call("setns", -1, 0)[1], "unshare": call("unshare", 0)[1]}, {"EPERM"})


@probe("new-mount-api")
def _(workspace: str, control: bool) -> Outcome:
    names = ("open_tree", "move_mount", "fsconfig", "fsmount", "fspick", "mount_setattr", "statmount")
    answers = {name: call(name, -1, 0, -1, 0, -1)[1] for name in names}
    if control:  # older kernels lack some
        answers = {name: answer for name, answer in answers.items() if answer != "ENOSYS"}
    return reached(answers, {"ENOSYS"})


@probe("write-a-sysctl")
def _(workspace: str, control: bool) -> Outcome:
    if control:
        own_user_namespace(0x40000000)
    found = []
    for folder, _, names in os.walk("/proc/sys"):
        found += [f"{folder}/{name}" for name in names if can_write(f"{folder}/{name}")]
    return Outcome("open", None, " ".join(found[:4])) if found else Outcome("refused", "EROFS")


@probe("write-to-the-machine-through-proc")
def _(workspace: str, control: bool) -> Outcome:
    if control and os.geteuid() != 0:
        return Outcome("untried", None, "the control needs root")
    # Opened only, never written.
    paths = ["/proc/sysrq-trigger", "/proc/mtrr", "/proc/timer_stats", "/proc/irq/default_smp_affinity"]
    found = [path for path in paths if os.path.exists(path) and can_write(path)]
    return Outcome("open", None, " ".join(found)) if found else Outcome("refused", "EROFS")


def visible(top: str, skip: tuple[str, ...], kind: Callable[[int], bool]) -> list[str]:
    """Entries of that kind below `top`. Only what is neither file, directory nor link is looked at."""
    found, folders = [], [top]
    while folders:
        try:
            entries = list(os.scandir(folders.pop()))
        except OSError:
            continue
        for entry in entries:
            if entry.is_symlink() or entry.is_file(follow_symlinks=False):
                continue
            if entry.is_dir(follow_symlinks=False):
                if entry.path not in skip:
                    folders.append(entry.path)
            elif kind(entry.stat(follow_symlinks=False).st_mode):
                found.append(entry.path)
    return found


@probe("see-sockets-outside-the-workspace")
def _(workspace: str, control: bool) -> Outcome:
    if control:
        with socket.socket(socket.AF_UNIX) as kept:
            kept.bind(f"{workspace}/probe.sock")
            found = visible(workspace, (), stat.S_ISSOCK)
        os.unlink(f"{workspace}/probe.sock")
    else:
        found = visible("/", ("/proc", "/sys", workspace), stat.S_ISSOCK)
    return Outcome("open", None, " ".join(found[:4])) if found else Outcome("refused")


@probe("see-devices")
def _(workspace: str, control: bool) -> Outcome:
    harmless = {f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "tty", "console", "ptmx")}
    # Character devices that are bound over something else are the null device.
    null = os.stat("/dev/null").st_rdev
    found = [
        path
        for path in visible("/dev" if control else "/", ("/sys", "/dev/pts"), lambda mode: not stat.S_ISSOCK(mode))
        if path not in harmless and os.lstat(path).st_rdev not in (null, 0)
    ]
    return Outcome("open", None, " ".join(found[:4])) if found else Outcome("refused")


@probe("mounts-where-set-user-id-counts")
def _(workspace: str, control: bool) -> Outcome:
    with open("/proc/self/mountinfo") as file:
        points = [line.split()[4] for line in file]
    found = [point for point in points if works(os.statvfs, point) and not os.statvfs(point).f_flag & os.ST_NOSUID]
    return Outcome("open", None, " ".join(found[:4])) if found else Outcome("refused")


# --- protected names
def protected_actions(workspace: str) -> dict[str, Callable[[], object]]:
    config, hooks = f"{workspace}/.git/config", f"{workspace}/.git/hooks"
    # In the same directory, since between two mounts every rename fails.
    other = f"{workspace}/.git/probe-other"
    return {
        "chmod": lambda: os.chmod(config, 0o644),
        "utime": lambda: os.utime(config),
        "truncate": lambda: os.truncate(config, os.stat(config).st_size),
        "link": lambda: os.link(config, f"{workspace}/.git/probe-link"),
        "rename over": lambda: os.rename(other, config),
        "rename away": lambda: os.rename(config, f"{workspace}/.git/probe-away"),
        "remove": lambda: os.unlink(config),
        "remove hooks": lambda: os.rmdir(hooks),
        "make a hook": lambda: os.close(os.open(f"{hooks}/probe", os.O_CREAT | os.O_WRONLY, 0o700)),
        "rename parent": lambda: os.rename(f"{workspace}/.git", f"{workspace}/probe-git"),
        "exchange parent": lambda: exchange(f"{workspace}/.git", f"{workspace}/probe-tree"),
        "link over": lambda: link_over(config),
    }


def link_over(path: str) -> None:
    os.symlink("/dev/null", f"{path}.link")
    os.rename(f"{path}.link", path)


def exchange(one: str, other: str) -> None:
    result, answer = call("renameat2", -100, ctypes.c_char_p(one.encode()), -100, ctypes.c_char_p(other.encode()), 2)
    if result < 0:
        raise OSError(getattr(errno, answer), "renameat2")


def probe_protected(name: str) -> None:
    @probe(f"protected: {name}")
    def _(workspace: str, control: bool) -> Outcome:
        if control:  # each of them changes the tree, so each gets its own
            workspace = tempfile.mkdtemp(dir=workspace)
            os.makedirs(f"{workspace}/.git/hooks")
            os.close(os.open(f"{workspace}/.git/config", os.O_CREAT | os.O_WRONLY))
        os.stat(f"{workspace}/.git/config")
        os.makedirs(f"{workspace}/probe-tree/hooks", exist_ok=True)
        os.close(os.open(f"{workspace}/.git/probe-other", os.O_CREAT | os.O_WRONLY))
        return tried(protected_actions(workspace)[name])


for action_name in protected_actions(""):
    probe_protected(action_name)


# --- kernel surface
@probe("packet-socket-by-its-old-name")
def _(workspace: str, control: bool) -> Outcome:
    if control:
        own_user_namespace(0x40000000)
    return tried(lambda: socket.socket(socket.AF_INET, 10, socket.htons(3)).close())


@probe("terminal-injection-with-high-bits")
def _(workspace: str, control: bool) -> Outcome:
    pipe = os.pipe()[0]
    return reached({"ioctl": call("ioctl", pipe, 0x5412 | 1 << 32, 0)[1]}, {"EPERM"})


@probe("directory-notification")
def _(workspace: str, control: bool) -> Outcome:
    descriptor = os.open(workspace, os.O_RDONLY)
    return tried(lambda: fcntl.fcntl(descriptor, fcntl.F_NOTIFY, 0))


@probe("io-uring-and-keys")
def _(workspace: str, control: bool) -> Outcome:
    answers = {
        "io_uring_enter": call("io_uring_enter", -1, 0, 0, 0, 0, 0)[1],
        "io_uring_register": call("io_uring_register", -1, 0, 0, 0)[1],
        "add_key": call("add_key", 0, 0, 0, 0, 0)[1],
        "request_key": call("request_key", 0, 0, 0, 0)[1],
    }
    return reached(answers, {"EPERM"})


@probe("set-the-clock")
def _(workspace: str, control: bool) -> Outcome:
    return reached({"clock_settime": call("clock_settime", 9999, 0)[1]}, {"EPERM"})


def execute(name: str, workspace: str, control: bool) -> Outcome:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            try:
                outcome = PROBES[name](workspace, control)
            except OSError as error:
                outcome = Outcome("untried", None, repr(error))
            os.write(write, json.dumps(outcome).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as answers:
        text = answers.read()
    _, status = os.waitpid(child, 0)
    return Outcome(*json.loads(text)) if text else Outcome("untried", None, f"wait status {status}")


if __name__ == "__main__":
    for wanted in PROBES:
        done = execute(wanted, os.path.abspath(sys.argv[1]), "--control" in sys.argv)
        print(json.dumps({"id": wanted} | done._asdict()), flush=True)
