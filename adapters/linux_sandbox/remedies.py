"""What an operator does about a missing protection, in words to paste. Pure tables; facts of sandbox engines.

Refuses to probe. Called by the launcher and the report.
"""

from __future__ import annotations

from sandbox_helper.protocol import Failure

_SECCOMP = (
    "Docker: --security-opt seccomp=image/seccomp.json. Podman: its default profile suffices. "
    "Kubernetes: a Localhost seccomp profile with image/seccomp.json."
)
_USERNS = {
    "EPERM": f"User namespaces are refused, most likely by the container engine's seccomp profile. {_SECCOMP} "
    "Debian: sysctl kernel.unprivileged_userns_clone=1.",
    "EACCES": "AppArmor refuses user namespaces. Docker: --security-opt apparmor=unconfined, or a profile with "
    "`userns, mount, umount, pivot_root`. Ubuntu 24.04: install the AppArmor profile of this program.",
    "ENOSPC": "No namespaces are left: raise user.max_user_namespaces and its siblings with sysctl.",
}
_MOUNT = (
    f"Mounts inside the sandbox are refused. {_SECCOMP} Docker with AppArmor: --security-opt apparmor=unconfined. "
    "Ubuntu 24.04: install the AppArmor profile of this program (kernel.apparmor_restrict_unprivileged_userns)."
)
OWN_PROC = (
    "Docker: --security-opt systempaths=unconfined. Podman: --security-opt unmask=ALL. "
    "Kubernetes: procMount: Unmasked with hostUsers: false."
)
CGROUP_NAMESPACE = "Allow CLONE_NEWCGROUP in the container engine's seccomp profile."
IDENTITY = (
    "Run as an ordinary user, or chown the workspace to one: its file system cannot be mounted with an id map "
    "(needs Linux 5.12 and a file system that supports it)."
)
LIMITS = "Delegate a cgroup v2 subtree to this program's user (systemd: Delegate=yes)."

_MAPS = (
    "The id maps were refused. As root the helper needs CAP_SETUID, CAP_SETGID and CAP_SYS_ADMIN: run it as an "
    "ordinary user instead. Ubuntu 24.04: install the AppArmor profile of this program "
    "(kernel.apparmor_restrict_unprivileged_userns)."
)
_PROTECT = (
    "Replace a link at a protected name by a real file or directory, or take the name out of the workspace's `protect`."
)
_EXEC = (
    "Check the command's first word: it must exist in the sandbox and be executable there. Programs outside /usr need "
    "their directory under `mounts_read_only`."
)
_BY_STAGE = {
    "maps": ("user_namespace", _MAPS),
    "mounts": ("mount_namespace", _MOUNT),
    "pivot": ("mount_namespace", _MOUNT),
    "network": ("network_namespace", _SECCOMP),
    "seccomp": ("seccomp", "The kernel needs CONFIG_SECCOMP_FILTER."),
    "protect": ("protected_names", _PROTECT),
    "exec": ("exec", _EXEC),
}


def remedy_for(failure: Failure) -> tuple[str, str | None]:
    """(the protection or step that is missing, what to do)."""
    if failure.stage == "namespace":
        return "user_namespace", _USERNS.get(failure.errno, _MOUNT)
    return _BY_STAGE.get(failure.stage, (failure.stage, None))
