"""Facts about this machine that plans depend on, looked up once: ids, links at the root, which of /etc exists.

It refuses to know workspaces. Called by the launcher at its start.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

ROOT_STAND_IN_ID = 61000
"""The command's uid and gid where the runner is root: in no range that Debian or systemd gives to anybody."""

_LINKS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_ETC_COPIED = (
    "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/nsswitch.conf", "/etc/gai.conf", "/etc/protocols", "/etc/services",
    "/etc/mime.types", "/etc/timezone", "/etc/os-release", "/etc/debian_version", "/etc/bash.bashrc", "/etc/profile",
    "/etc/inputrc", "/etc/gitattributes", "/etc/ca-certificates.conf", "/etc/locale.alias", "/etc/magic",
)  # fmt: skip
_ETC_BOUND = (
    "/etc/alternatives", "/etc/ssl", "/etc/pki", "/etc/ca-certificates", "/etc/crypto-policies", "/etc/ld.so.conf.d",
    "/etc/fonts", "/etc/terminfo", "/etc/python3", "/etc/python3.11", "/etc/perl", "/etc/java-17-openjdk",
)  # fmt: skip


@dataclass(frozen=True)
class HostFacts:
    """`root_links`: (path, target) for a merged /usr. `root_directories`: those of the same names that are real.
    `etc_copied`, `etc_bound`: the part of the allow-list that exists. `localtime`: the link's target or None."""

    uid: int
    gid: int
    hostname: str
    root_links: tuple[tuple[str, str], ...]
    root_directories: tuple[str, ...]
    etc_copied: tuple[str, ...]
    etc_bound: tuple[str, ...]
    localtime: str | None

    @property
    def command_uid(self) -> int:
        return self.uid or ROOT_STAND_IN_ID

    @property
    def command_gid(self) -> int:
        """Group 0 alone would be a right as well."""
        return ROOT_STAND_IN_ID if self.uid == 0 else self.gid


def look_up() -> HostFacts:
    """Reads the file system; never fails for what is missing."""
    localtime = os.readlink("/etc/localtime") if os.path.islink("/etc/localtime") else None
    return HostFacts(
        uid=os.geteuid(),
        gid=os.getegid(),
        hostname=os.uname().nodename,
        root_links=tuple((path, os.readlink(path)) for path in _LINKS if os.path.islink(path)),
        root_directories=tuple(path for path in _LINKS if os.path.isdir(path) and not os.path.islink(path)),
        etc_copied=tuple(path for path in _ETC_COPIED if _is_readable_file(path)),
        etc_bound=tuple(path for path in _ETC_BOUND if os.path.isdir(path)),
        localtime=localtime if localtime and localtime.startswith("/usr/") else None,
    )


def _is_readable_file(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.R_OK) and os.path.getsize(path) <= 4 * 1024 * 1024
