"""What a command would be, printed by a process that stands in its place: the payload of a probe.

Reads the kernel's own account and tries nothing. Refuses to judge: the adapter compares. Called instead of exec.
"""

from __future__ import annotations

import json
import os
import resource
import sys

_NAMESPACES = ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup")
_LIMITS = ("CPU", "DATA", "NPROC", "NOFILE", "FSIZE", "CORE")


def print_own() -> None:
    """One JSON object on standard output. What cannot be read (no proc inside) is null."""
    record = {
        "pid": os.getpid(),
        "uid": os.getuid(),
        "gid": os.getgid(),
        "cwd": os.getcwd(),
        "status": _status(),
        "namespaces": {name: _link(f"/proc/self/ns/{name}") for name in _NAMESPACES},
        "mounts": _mounts(),
        "limits": {name: resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))[1] for name in _LIMITS},
        "workspace_writable": os.access(".", os.W_OK),
    }
    sys.stdout.flush()
    os.write(1, json.dumps(record).encode())


def _status() -> dict[str, str] | None:
    try:
        with open("/proc/self/status", encoding="utf-8") as status:
            return {name: value.strip() for name, _, value in (line.partition(":") for line in status)}
    except OSError:
        return None


def _mounts() -> list[list[str]] | None:
    try:
        with open("/proc/self/mountinfo", encoding="utf-8") as mounts:
            return [line.split()[4:6] for line in mounts]
    except OSError:
        return None


def _link(path: str) -> str | None:
    try:
        return os.readlink(path)
    except OSError:
        return None
