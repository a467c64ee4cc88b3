"""What an operator does about a missing protection, in words to paste. Pure tables; facts of sandbox engines.

Refuses to probe. Called by the launcher and the report.
"""

from __future__ import annotations

from sandbox_helper.protocol import INTERPRETER_MISSING, Failure

_SECCOMP = (
    "Docker: --security-opt seccomp=image/seccomp.json. Podman: its default profile suffices. "
    "Kubernetes: a Localhost seccomp profile with image/seccomp.json."
)
_UBUNTU = (
    "Ubuntu 24.04 (kernel.apparmor_restrict_unprivileged_userns=1): load an AppArmor profile with the rule `userns,` "
    "for a small executable of its own, since an interpreter's path would be too broad; or, for the whole machine: "
    "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0."
)
_USERNS = {
    "EPERM": f"User namespaces are refused, most likely by the container engine's seccomp profile. {_SECCOMP} "
    "Debian: sysctl kernel.unprivileged_userns_clone=1.",
    "EACCES": "AppArmor refuses user namespaces. Docker: --security-opt apparmor=unconfined, or a profile with "
    f"`userns, mount, umount, pivot_root`. {_UBUNTU}",
    "EAGAIN": "The runner's user has as many processes as it may have: wait until some have ended, or raise its limit "
    "(ulimit -u, systemd's TasksMax, --pids-limit of the container engine).",
    "ENOMEM": "The machine or its control group has no memory left: wait until commands have ended, or give it more.",
    "ENOSPC": "No namespaces are left. The limits are in /proc/sys/user: sysctl -w user.max_user_namespaces=16384, and "
    "the same for user.max_mnt_namespaces, max_pid_, max_net_, max_ipc_, max_uts_ and max_cgroup_namespaces. They hold "
    "for each user in each user namespace, a container's too. Where they are high, end what holds so many.",
}
_MOUNT = (
    f"Mounts inside the sandbox are refused. {_SECCOMP} Docker with AppArmor: --security-opt apparmor=unconfined. "
    f"{_UBUNTU}"
)
_MISSING = (
    "A directory that the sandbox shows is missing or was replaced: restore it, or correct `root` and "
    "`mounts_read_only` in the registry and reload it."
)
_MOUNTS = {"EPERM": _MOUNT, "EACCES": _MOUNT, "ENOENT": _MISSING, "ENOTDIR": _MISSING, "ELOOP": _MISSING} | {
    "ENOSPC": "No mounts or mount namespaces are left: raise fs.mount-max and user.max_mnt_namespaces with sysctl -w, "
    "or free memory where a tmpfs is full.",
}
OWN_PROC = (
    "Docker: --security-opt systempaths=unconfined. Podman: --security-opt unmask=ALL. "
    "Kubernetes: procMount: Unmasked with hostUsers: false."
)
CGROUP_NAMESPACE = "Allow CLONE_NEWCGROUP in the container engine's seccomp profile."
IDENTITY = (
    "Run as an ordinary user, or chown the workspace to one: its file system cannot be mounted with an id map "
    "(needs Linux 5.12, a file system that supports it, and root of the machine: root of a user namespace never can)."
)
MEMORY = "for each process, not for all of them together, and private memory only"
"""What RLIMIT_DATA counts: no shared mapping, no page cache."""
LIMITS = (
    "Delegate a cgroup v2 subtree with the memory and pids controllers: systemd: Delegate=memory pids in the unit, or "
    "systemd-run --user --scope -p Delegate=yes codespace serve … In a container the groups are read-only by default; "
    "there --memory and --pids-limit of Docker and Podman bound all commands together."
)

_FEW_IDS = (
    "In a user namespace (unshare -r, a rootless container) root has no ids but those mapped there "
    "(cat /proc/self/uid_map): run it outside, as yourself, or map a range of ids (/etc/subuid, /etc/subgid)."
)
_MAPS = (
    "The id maps were refused. As root the helper needs CAP_SETUID, CAP_SETGID and CAP_SYS_ADMIN: run it as an "
    f"ordinary user instead. {_FEW_IDS} {_UBUNTU}"
)
_NO_PROC = (
    "CodeSpace needs /proc where it runs, also to give commands one: mount -t proc proc /proc, or start it without "
    "what hides /proc (a chroot, a service's ProcSubset= or InaccessiblePaths=)."
)
_PROTECT = (
    "Replace what is not a plain file or directory at a protected name (a link, a FIFO, a socket), or take the name "
    "out of the workspace's `protect`. A file with another name loses it so: cp NAME NAME.copy && mv NAME.copy NAME."
)
_EXEC = (
    "Check the command's first word: it must exist in the sandbox and be executable there. Programs outside /usr need "
    "their directory under `mounts_read_only`."
)
_UNREADABLE = (
    "A directory on the way to a protected name belongs to somebody else and lets the runner not look into it: give "
    "the runner's user the permission (chmod u+rwx, after a chown where needed), or take the name out of `protect`."
)
_ROOT = (
    "Look at the permissions of the workspace's root: its owner needs to search it (chmod u+rwx ROOT). "
    "Commands run with the permissions of the root's owner where CodeSpace runs as root, else of CodeSpace's own user."
)
_INTERPRETER = (
    "The program is there, but what should run it is not: its first line (#!) names an interpreter that does not exist "
    "in the sandbox, or its loader is missing. Correct the line, or show the interpreter's directory under "
    "`mounts_read_only`."
)
_BY_STAGE = {
    "maps": ("user_namespace", _MAPS),
    "network": ("network_namespace", _SECCOMP),
    "seccomp": ("seccomp", "The kernel needs CONFIG_SECCOMP_FILTER."),
    "protect": ("protected_names", _PROTECT),
    "chdir": ("workspace", _ROOT),
    "exec": ("exec", _EXEC),
}


_ROOM = "Give the temporary directory (TMPDIR, else /tmp) some room, and the permission to make directories in it."


def remedy_without_place(errno: str) -> str:
    """What to do where the probe's workspace could not be made. EINVAL: its owner is no id of this user namespace."""
    return _FEW_IDS if errno == "EINVAL" else _ROOM


def remedy_for(failure: Failure) -> tuple[str, str | None]:
    """(the protection or step that is missing, what to do)."""
    if failure.errno in ("ENOENT", "ENOTDIR") and f"{failure.path}/".startswith("/proc/"):
        return "proc", _NO_PROC
    if failure.stage == "namespace":
        return "user_namespace", _USERNS.get(failure.errno, _MOUNT)
    if failure.stage in ("mounts", "pivot"):
        return "mount_namespace", _MOUNTS.get(failure.errno)
    if failure.message == INTERPRETER_MISSING:
        return "exec", _INTERPRETER
    if failure.stage == "protect" and failure.errno in ("EACCES", "EPERM"):
        return "protected_names", _UNREADABLE
    return _BY_STAGE.get(failure.stage, (failure.stage, None))
