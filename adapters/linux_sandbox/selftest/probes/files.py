"""Attacks on files: what lies outside the workspace, what is shown read-only, devices, and protected names."""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import stat
import tempfile
from collections.abc import Callable

from .base import Outcome, Place, call, found_any, probe, tried, works


@probe("filesystem", "read-a-file-outside")
def _read_outside(place: Place) -> Outcome:
    return tried(lambda: os.close(os.open(place.bait["secret"], os.O_RDONLY)))


@probe("filesystem", "read-a-file-outside-through-a-link")
def _read_through_link(place: Place) -> Outcome:
    link = f"{place.workspace}/probe-link-{os.getpid()}"
    os.symlink(place.bait["secret"], link)
    try:
        return tried(lambda: os.close(os.open(link, os.O_RDONLY)))
    finally:
        os.unlink(link)


@probe("filesystem", "write-where-it-is-read-only")
def _write_read_only(place: Place) -> Outcome:
    path = place.bait["read_only"]
    return tried(lambda: os.close(os.open(path, os.O_WRONLY)))


@probe("filesystem", "make-it-writable-by-its-mode")
def _chmod_read_only(place: Place) -> Outcome:
    path = place.bait["read_only"]
    return tried(lambda: os.chmod(path, stat.S_IMODE(os.stat(path).st_mode)))


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


@probe("filesystem", "see-sockets-outside-the-workspace")
def _sockets(place: Place) -> Outcome:
    if not place.control:
        return found_any(visible("/", ("/proc", "/sys", place.workspace), stat.S_ISSOCK))
    with socket.socket(socket.AF_UNIX) as kept:
        kept.bind(f"{place.workspace}/probe.sock")
        found = visible(place.workspace, (), stat.S_ISSOCK)
    os.unlink(f"{place.workspace}/probe.sock")
    return found_any(found)


@probe("filesystem", "see-devices")
def _devices(place: Place) -> Outcome:
    harmless = {f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "tty", "console", "ptmx")}
    # Character devices that are bound over something else are the null device.
    null = os.stat("/dev/null").st_rdev
    if place.control:
        # A container shows no other; its terminals' folder is what the sandbox's own is not looked into for.
        found = visible("/dev", (), lambda mode: not stat.S_ISSOCK(mode))
        return found_any([path for path in found if path not in harmless or path == "/dev/ptmx"])
    found = visible("/", ("/sys", "/dev/pts"), lambda mode: not stat.S_ISSOCK(mode))
    return found_any([path for path in found if path not in harmless and os.lstat(path).st_rdev not in (null, 0)])


@probe("filesystem", "mounts-where-set-user-id-counts")
def _set_user_id(place: Place) -> Outcome:
    with open("/proc/self/mountinfo") as file:
        points = [line.split()[4] for line in file]
    return found_any([point for point in points if works(os.statvfs, point) and _counts(point)])


def _counts(point: str) -> bool:
    return not os.statvfs(point).f_flag & os.ST_NOSUID


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


def _probe_protected(name: str) -> None:
    @probe("filesystem", f"protected: {name}")
    def _(place: Place) -> Outcome:
        workspace = place.workspace
        if place.control:  # each of them changes the tree, so each gets its own
            workspace = tempfile.mkdtemp(dir=workspace)
            os.makedirs(f"{workspace}/.git/hooks")
            os.close(os.open(f"{workspace}/.git/config", os.O_CREAT | os.O_WRONLY))
        os.stat(f"{workspace}/.git/config")
        os.makedirs(f"{workspace}/probe-tree/hooks", exist_ok=True)
        os.close(os.open(f"{workspace}/.git/probe-other", os.O_CREAT | os.O_WRONLY))
        return tried(protected_actions(workspace)[name])


for _name in protected_actions(""):
    _probe_protected(_name)
