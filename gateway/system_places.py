"""Places of the system and of the sandbox itself that no root and no mount may take.

Text alone: canonical paths in, a reason or nothing out. Refuses to know: the disk beside where the well-known names
lead, the registry. Used by the registry.
"""

from __future__ import annotations

import os

_KERNEL = ("/proc", "/sys", "/dev")
_SHOWN = ("/bin", "/boot", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/sbin", "/usr")
"""What every sandbox shows, or this machine starts from: a command that could write in it would change what others
run, outside any sandbox too."""
_HELD = ("/run", "/tmp", "/var", "/var/cache", "/var/lib", "/var/log", "/var/spool", "/var/tmp")
"""Not as a whole; below them operators do keep projects."""
_RUN_KEPT = ("/run/user", "/run/media")
"""Of /run, what belongs to users: /run/user/UID/NAME, and disks they put in at /run/media/USER/NAME."""
_SANDBOX_OWN = ("/etc", "/run", "/tmp", "/var")
"""Where the sandbox has directories, links and files of its own, which a mount would hide."""
_SANDBOX_FILES = frozenset(
    "/etc/" + name
    for name in (
        *("group", "hostname", "hosts", "localtime", "machine-id", "mtab", "passwd", "resolv.conf", "shells"),
        *("bash.bashrc", "ca-certificates.conf", "debian_version", "gai.conf", "gitattributes", "inputrc"),
        *("ld.so.cache", "ld.so.conf", "locale.alias", "magic", "mime.types", "nsswitch.conf", "os-release"),
        *("profile", "protocols", "services", "timezone"),
    )
)
"""Files that each sandbox has at these names: its own, or copies of the machine's."""


def inside(path: str, directory: str) -> bool:
    """Whether canonical `path` is `directory` or lies below it."""
    return directory == "/" or path == directory or path.startswith(directory + "/")


def why_no_root(root: str) -> str | None:
    """Why the canonical path `root` is none, or None."""
    for kernel in _KERNEL:
        if inside(root, kernel) or inside(kernel, root):
            return f"{root} is of the kernel's own file systems"
    for system in _SHOWN:
        for place in {system, os.path.realpath(system)}:
            if inside(place, root):
                return f"{root} is or holds the system directory {system}"
            if inside(root, place):
                return f"{root} lies in the system directory {system}"
    for system in _HELD:
        if inside(system, root) or inside(os.path.realpath(system), root):
            return f"{root} is or holds the system directory {system}"
    if inside(root, "/run") and not (root.startswith(tuple(f"{kept}/" for kept in _RUN_KEPT)) and root.count("/") >= 4):
        return f"{root} lies in the system directory /run"
    return None


def why_no_mount(path: str) -> str | None:
    """Why the canonical `path` cannot be shown read-only, or None."""
    if path == "/" or any(inside(kernel, path) or inside(path, kernel) for kernel in _KERNEL):
        return f"{path} would show the whole system or the kernel's files"
    for own in _SANDBOX_OWN:
        if path == own:
            return f"{path} would hide what the sandbox itself has in {own}"
    if path in _SANDBOX_FILES:
        return f"{path} would hide the sandbox's own file of that name"
    return None
