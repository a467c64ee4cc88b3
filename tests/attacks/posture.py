"""What a running command *is*, seen from outside: a normalised record of the command, its PID 1 and their surroundings.

A program, so that it can look with the runner's rights or with root's; it reads /proc and changes nothing. It refuses
to know what is right: `test_posture` compares the record with a declared one. What varies is normalised: ids become
roles, namespaces `own` or `runner`, descriptors classes, paths of the test `$WORKSPACE` and `$TOOLS`. What cannot be
read is said as its errno and never left out.

    posture.py {"init": pid, "runner": pid, "workspace": path, "tools": path}   ->   the record, as JSON
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import sys
from collections.abc import Callable
from typing import Any

NAMESPACES = ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup", "time")
CAPABILITY_SETS = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
OWN_TYPES = {"proc", "devpts", "mqueue", "sysfs", "cgroup", "cgroup2", "securityfs", "debugfs"}
CONFIGURED = {"cpu time", "file size", "data size", "core file size", "processes", "open files", "address space"}
FLAGS = {"ro", "rw", "nosuid", "nodev", "noexec", "idmapped"}


def readable(read: Callable[..., Any], *arguments: Any) -> Any:
    """What `read` gives, or the name of the errno that refused it."""
    try:
        return read(*arguments)
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error.errno))


def text_of(pid: int, name: str) -> str:
    with open(f"/proc/{pid}/{name}", encoding="utf-8", errors="surrogateescape") as file:
        return file.read()


def status_of(pid: int) -> dict[str, str]:
    lines = (line.split(":", 1) for line in text_of(pid, "status").splitlines())
    return {name: value.strip() for name, value in lines}


def stat_fields(pid: int) -> list[str]:
    """From the state on: the name before it may hold anything."""
    return text_of(pid, "stat").rpartition(")")[2].split()


class Observer:
    def __init__(self, spec: dict[str, Any]) -> None:
        self.init, self.runner = int(spec["init"]), int(spec["runner"])
        self.names = {str(spec["workspace"]): "$WORKSPACE", str(spec["tools"]): "$TOOLS"}
        # Directories above the workspace exist in the sandbox only to hold it.
        self.command = self._only_child(self.init)

    def _only_child(self, parent: int) -> int:
        children = [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if self._parent(pid) == parent]
        if len(children) != 1:
            raise SystemExit(f"PID 1 has children {children}, expected the command alone")
        return children[0]

    @staticmethod
    def _parent(pid: int) -> int | None:
        try:
            return int(stat_fields(pid)[1])
        except OSError:
            return None

    def role(self, number: str, field: str) -> str:
        if number == "0":
            return "0"
        own = status_of(self.runner)[field].split()[0]
        return "runner" if number == own else "unprivileged"

    def path(self, path: str) -> str:
        for place, name in self.names.items():
            if path == place or path.startswith(place + "/"):
                return name + path[len(place) :]
        return path

    # --- one process
    def identity(self, pid: int) -> dict[str, Any]:
        status = status_of(pid)
        record: dict[str, Any] = {}
        for field in ("Uid", "Gid"):
            record[field] = sorted({self.role(number, field) for number in status[field].split()})
        groups = status["Groups"].split()
        as_runner = groups == status_of(self.runner)["Groups"].split()
        record["Groups"] = "none" if not groups else "the runner's" if as_runner else groups
        for name in ("uid_map", "gid_map"):
            lines = [line.split() for line in text_of(pid, name).splitlines()]
            own = status["Uid" if name == "uid_map" else "Gid"].split()[0]
            record[name] = "own onto itself" if lines == [[own, own, "1"]] else lines
        record["setgroups"] = text_of(pid, "setgroups").strip()
        return record

    def confinement(self, pid: int) -> dict[str, Any]:
        status = status_of(pid)
        around = int(status_of(self.runner)["Seccomp_filters"])
        return {
            "capabilities": {name: int(status[name], 16) for name in CAPABILITY_SETS},
            "NoNewPrivs": status["NoNewPrivs"],
            "Seccomp": status["Seccomp"],
            "filters of its own": int(status["Seccomp_filters"]) - around,
            "environ belongs to": readable(self.owner_of_environ, pid),
            "namespaces": {name: readable(self.namespace, pid, name) for name in NAMESPACES},
            "control group": "runner" if text_of(pid, "cgroup") == text_of(self.runner, "cgroup") else "own",
        }

    def owner_of_environ(self, pid: int) -> str:
        owner = os.stat(f"/proc/{pid}/environ").st_uid
        return "itself" if str(owner) == status_of(pid)["Uid"].split()[0] else "another"

    def namespace(self, pid: int, name: str) -> str:
        own = os.stat(f"/proc/{pid}/ns/{name}")
        runner = os.stat(f"/proc/{self.runner}/ns/{name}")
        return "runner" if (own.st_dev, own.st_ino) == (runner.st_dev, runner.st_ino) else "own"

    def place(self, pid: int) -> dict[str, Any]:
        status, fields = status_of(pid), stat_fields(pid)
        inner = status["NSpid"].split()[1:]
        terminal = int(fields[4])
        parents = {self.runner: "runner", self.init: "init"}
        return {
            "pid inside": [int(number) for number in inner],
            "parent": parents.get(int(fields[1]), "another"),
            "leads its session": int(fields[3]) == pid,
            "leads its group": int(fields[2]) == pid,
            "session inside": int(status["NSsid"].split()[-1]),
            "terminal": "none" if terminal == 0 else f"pty {terminal & 0xFF}" if terminal >> 8 == 136 else "another",
            "foreground": terminal != 0 and int(fields[5]) == pid,
            "signals": {name: int(status[name], 16) for name in ("SigBlk", "SigIgn", "SigCgt")},
            "umask": status["Umask"],
            "personality": readable(lambda: text_of(pid, "personality").strip()),
            "limits": self.limits(pid),
        }

    def limits(self, pid: int) -> dict[str, str]:
        """`as the runner's` where nothing was set: all of PID 1's, and those of a command that no setting has."""
        own, around = self.limits_of(pid), self.limits_of(self.runner)
        shown = CONFIGURED if pid == self.command else {"core file size"}
        return {
            name: value if name in shown or value != around[name] else "as the runner's" for name, value in own.items()
        }

    @staticmethod
    def limits_of(pid: int) -> dict[str, str]:
        found = {}
        for line in text_of(pid, "limits").splitlines()[1:]:
            fields = re.split(r"\s{2,}", line.strip())
            soft, hard = fields[1], fields[2]
            found[fields[0].removeprefix("Max ")] = soft if soft == hard else f"{soft} of {hard}"
        return found

    def descriptors(self, pid: int) -> dict[str, str]:
        folder = f"/proc/{pid}/fd"
        return {number: self.descriptor_class(f"{folder}/{number}") for number in sorted(os.listdir(folder), key=int)}

    @staticmethod
    def descriptor_class(link: str) -> str:
        target, mode = os.readlink(link), os.stat(link).st_mode
        if stat.S_ISDIR(mode):
            return "directory"
        if stat.S_ISFIFO(mode):
            return "pipe" if target.startswith("pipe:") else "fifo"
        if stat.S_ISSOCK(mode):
            return "socket"
        if stat.S_ISCHR(mode):
            return re.sub(r"\d+$", "N", target)
        return target if target.startswith("anon_inode:") else "file"

    def program(self, pid: int) -> dict[str, Any]:
        return {
            "exe": readable(self.executable, pid),
            "can be overwritten": readable(self.can_overwrite_program, pid),
            "cwd": readable(lambda: self.path(os.readlink(f"/proc/{pid}/cwd"))),
            "root": readable(lambda: os.readlink(f"/proc/{pid}/root")),
            "environment": readable(
                lambda: sorted(filter(None, text_of(pid, "environ").replace(*self.workspace_name()).split("\0")))
            ),
        }

    def executable(self, pid: int) -> str:
        path = os.readlink(f"/proc/{pid}/exe")
        return "the runner's interpreter" if path == os.path.realpath(sys.executable) else path

    def can_overwrite_program(self, pid: int) -> bool:
        """Whether neither the mount nor the file's mode stands before a write by the process' own ids."""
        path = f"/proc/{pid}/exe"
        file, status = os.stat(path), status_of(pid)
        if os.statvfs(path).f_flag & os.ST_RDONLY:
            return False
        if str(file.st_uid) == status["Uid"].split()[0]:
            return True
        group = str(file.st_gid) in [*status["Gid"].split(), *status["Groups"].split()]
        return bool(file.st_mode & (0o020 if group else 0o002))

    def workspace_name(self) -> tuple[str, str]:
        return next(iter(self.names.items()))

    def process(self, pid: int) -> dict[str, Any]:
        return {
            "identity": readable(self.identity, pid),
            "confinement": readable(self.confinement, pid),
            "place": readable(self.place, pid),
            "descriptors": readable(self.descriptors, pid),
            "program": self.program(pid),
        }

    # --- around them
    def mounts(self) -> dict[str, str]:
        """Mount point to `type flags [source]`. A point that is covered twice shows both, in order."""
        found: dict[str, str] = {}
        for line in text_of(self.command, "mountinfo").splitlines():
            left, _, right = line.partition(" - ")
            fields, kind = left.split(), right.split()[0]
            point = re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), fields[4])
            flags = [flag for flag in fields[5].split(",") if flag in FLAGS]
            propagation = [field.split(":")[0] for field in fields[6:]]
            own = kind in OWN_TYPES or (kind == "tmpfs" and fields[3] == "/")
            shown = " ".join([kind if own else "bind", ",".join(sorted(flags)), *propagation])
            if not own:
                shown += f" of {readable(self.source, point)}"
            name = self.path(point)
            found[name] = f"{found[name]} + {shown}" if name in found else shown
        return dict(sorted(found.items()))

    def source(self, point: str) -> str:
        inside = os.stat(f"/proc/{self.command}/root{point}")
        inner_root = f"/proc/{self.command}/root"
        candidates = {point: "the same path", f"{inner_root}/.empty": "the empty file", "/dev/null": "/dev/null"}
        for candidate, name in candidates.items():
            outside = readable(os.stat, candidate)
            if isinstance(outside, os.stat_result) and os.path.samestat(inside, outside):
                return name
        return "something else"

    def network(self) -> dict[str, Any]:
        lines = text_of(self.command, "net/dev").splitlines()[2:]
        routes = [line.split() for line in text_of(self.command, "net/route").splitlines()[1:]]
        six = [line.split() for line in text_of(self.command, "net/ipv6_route").splitlines()]
        listening = sorted(line.split()[1] for line in text_of(self.command, "net/tcp").splitlines()[1:])
        return {
            "interfaces": sorted(line.split(":")[0].strip() for line in lines),
            "routes": [route[0] for route in routes],
            "IPv6 routes beside lo": [route[0] for route in six if route[-1] != "lo"],
            "listeners": listening,
        }

    def devices(self) -> list[str]:
        return sorted(os.listdir(f"/proc/{self.command}/root/dev"))

    def top(self) -> dict[str, str]:
        """Entry of the root to `link` or `directory` or `file`."""
        kinds = {stat.S_IFLNK: "link", stat.S_IFDIR: "directory", stat.S_IFREG: "file"}
        with os.scandir(f"/proc/{self.command}/root/") as entries:
            found = {entry.name: stat.S_IFMT(entry.stat(follow_symlinks=False).st_mode) for entry in entries}
        return {name: kinds.get(kind, oct(kind)) for name, kind in sorted(found.items())}

    @staticmethod
    def pid_namespace(pid: int) -> int:
        return os.stat(f"/proc/{pid}/ns/pid").st_ino

    def neighbours(self) -> list[str]:
        """Who is in the command's PID namespace, told from outside."""
        wanted = readable(self.pid_namespace, self.command)
        roles = {self.init: "init", self.command: "command"}
        found = []
        for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
            inode = readable(self.pid_namespace, pid)
            if inode == wanted or pid == self.init:
                found.append(roles.get(pid, "another"))
        return sorted(found)

    def record(self) -> dict[str, Any]:
        return {
            "command": self.process(self.command),
            "init": self.process(self.init),
            "mounts": readable(self.mounts),
            "devices": readable(self.devices),
            "top": readable(self.top),
            "network": readable(self.network),
            "neighbours": readable(self.neighbours),
            "arguments": {
                "command": text_of(self.command, "cmdline").split("\0")[:-1],
                "init names the test's place": any(place in text_of(self.init, "cmdline") for place in self.names),
            },
        }


if __name__ == "__main__":
    observer = Observer(json.loads(sys.argv[1]))
    first, second = observer.record(), observer.record()
    if first != second:
        raise SystemExit("two records of one command differ")
    print(json.dumps(first))
