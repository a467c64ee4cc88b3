"""What the appliance refuses inside its container image beyond what it refuses anywhere (IMG-3).

The image marks itself by `CODESPACE_IMAGE`. Refuses to know: engines and their flags beyond the words of a remedy; the
sandbox, whose own report names what is missing. Called by `gateway.__main__`, `registry` and the start of `serve`.
"""

from __future__ import annotations

import os

from gateway.answers import Profile
from gateway.errors import ConfigurationError, RegistryRefused, StartFailed
from runner.api import IsolationReport

_RUN_AS = "add --user 10001:10001, or the uid and gid that own the workspaces"


def in_image() -> bool:
    """Whether this is the program of the image."""
    return os.environ.get("CODESPACE_IMAGE", "") not in ("", "0")


def check_container() -> None:
    """Raises `ConfigurationError` for what no start inside the image gets over.

    uid 0: with /proc unmasked, which the sandbox needs, files there that reach the whole machine, such as
    /proc/sys/kernel/core_pattern, open for writing to uid 0 whatever its capabilities. No temporary directory: a
    read-only root needs one beside it.
    """
    if not in_image():
        return
    if 0 in (os.getuid(), os.geteuid()):
        raise ConfigurationError("the image does not run as root", "uid 0", _RUN_AS)
    temporary = os.environ.get("TMPDIR", "") or "/tmp"
    if not os.access(temporary, os.W_OK | os.X_OK):
        raise ConfigurationError("no temporary directory is writable", temporary, f"add --tmpfs {temporary}")


def mount_of(path: str) -> str:
    """Id of the mount that a path is on (`mnt_id` of /proc/self/fdinfo, proc(5)). Raises OSError.

    The device number does not tell: an engine may keep an image in a plain directory, of the same file system as
    what is mounted into it, as rootless Podman does.
    """
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        with open(f"/proc/self/fdinfo/{descriptor}", encoding="ascii") as file:
            fields = dict(line.split(":", 1) for line in file)
    finally:
        os.close(descriptor)
    return fields["mnt_id"].strip()


def check_root_inside(file: str, key: str, root: str, profile: Profile, *, shut: bool = False) -> None:
    """A root inside the image must be mounted, and writable where its profile writes. Raises `RegistryRefused`.

    `shut`: only its owner's own permission is lacking, which is given back.
    A directory of the image's own would vanish with the container.
    """
    if mount_of(root) == mount_of("/"):
        remedy = f"add --volume HOST_DIRECTORY:{root}, with the directory on the host"
        raise RegistryRefused(file, key, f"{root} is not mounted into the container", remedy)
    read_only = bool(os.statvfs(root).f_flag & os.ST_RDONLY)
    closed = read_only or (not shut and not os.access(root, os.W_OK | os.X_OK))
    if profile == "workspace-write" and closed:
        uid, gid = os.geteuid(), os.getegid()
        if read_only:
            remedy = "take :ro off the volume, or make the profile read-only"
        else:
            remedy = (
                f"run on the host: chown -R {uid}:{gid} HOST_DIRECTORY; or run the container as its owner with --user"
            )
        raise RegistryRefused(file, key, f"{root} is not writable by uid {uid}", remedy)


def require_sandbox(report: IsolationReport) -> None:
    """Raises `StartFailed` naming each required protection that cannot be had, and the flag that gives it."""
    missing = [p for p in report.protections if p.required and p.state == "off"]
    if report.available and not missing:
        return
    names = ", ".join(f"{p.name} ({p.errno})" if p.errno else p.name for p in missing) or "the probe"
    remedies = dict.fromkeys(p.remedy for p in missing if p.remedy)
    raise StartFailed(
        "the sandbox cannot be had", names, " ".join(remedies) or "run `codespace doctor` in the container"
    )
