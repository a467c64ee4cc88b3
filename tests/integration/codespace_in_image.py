#!/usr/bin/python3
"""Runs a `codespace` subcommand in the image as the calling user, with the paths that it names mounted where they are.

A stand-in for the program: `CODESPACE_BIN=…/codespace_in_image.py`. Registry and token directories are read-only; the
socket's and the data directory, and each root of the registry, are writable. The container shares the machine's
network, so that loopback ports mean the same. It ends with this process, however that ends: a watcher holds a pipe to
it and kills the container when the pipe closes. Runs alone, with the standard library.

Reads CODESPACE_TEST_IMAGE (default codespace:latest) and ENGINE (default docker).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
import uuid
from collections.abc import Mapping, Sequence

SECCOMP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "image", "seccomp.json")
# What the image has of its own: a mount over one of these would break it, and a root there is the program's to refuse.
_OF_THE_IMAGE = ("/", "/bin", "/boot", "/dev", "/etc", "/lib", "/lib64", "/opt", "/proc", "/root", "/run", "/sbin",
                 "/sys", "/tmp", "/usr", "/var")  # fmt: skip
_PASSED = ("HOME", "XDG_RUNTIME_DIR", "XDG_STATE_HOME", "TERM")


def least_privilege(seccomp: str = SECCOMP) -> list[str]:
    """The flags of `docker run` under which the image works."""
    return [
        "--user", f"{os.getuid()}:{os.getgid()}", "--cap-drop", "ALL", "--security-opt", "no-new-privileges",
        "--security-opt", f"seccomp={seccomp}", "--security-opt", "systempaths=unconfined", "--read-only",
        "--tmpfs", "/tmp",
    ]  # fmt: skip


def mounts(arguments: Sequence[str], environment: Mapping[str, str]) -> dict[str, str]:
    """Directory to `ro` or `rw`, from the options, the environment and the registry. Directories that are missing are
    left out: what is wrong with them is the program's to say."""
    named = {option: _value(arguments, option) for option in ("--registry", "--socket", "--data-dir", "--token-file")}
    registry = named["--registry"]
    if registry is None and list(arguments[:2]) == ["registry", "check"] and len(arguments) > 2:
        registry = arguments[2]
    found: dict[str, str] = {}
    for file in (registry, named["--token-file"]):
        if file is not None:
            found[os.path.dirname(os.path.abspath(file))] = "ro"
    for variable in ("XDG_RUNTIME_DIR", "XDG_STATE_HOME"):
        if environment.get(variable):
            found[environment[variable]] = "rw"
    if named["--socket"] is not None:
        found[os.path.dirname(os.path.abspath(named["--socket"]))] = "rw"
    if named["--data-dir"] is not None:
        found[os.path.abspath(named["--data-dir"])] = "rw"
    for root in _roots(registry):
        found.setdefault(os.path.realpath(root), "rw")
        found.setdefault(os.path.abspath(root), "rw")
    return {
        path: mode
        for path, mode in found.items()
        if os.path.isdir(path)
        and path not in _OF_THE_IMAGE
        and not path.startswith(("/proc/", "/sys/", "/usr/", "/dev/"))
    }


def _value(arguments: Sequence[str], option: str) -> str | None:
    for at, argument in enumerate(arguments):
        if argument == "--":
            return None
        if argument == option and at + 1 < len(arguments):
            return arguments[at + 1]
        if argument.startswith(option + "="):
            return argument.partition("=")[2]
    return None


def _roots(registry: str | None) -> list[str]:
    """Roots and read-only mounts of a registry; none of one that cannot be read, which the program itself refuses."""
    if registry is None:
        return []
    try:
        with open(registry, "rb") as file:
            document = tomllib.load(file) if registry.endswith(".toml") else json.load(file)
        entries = list(document["workspaces"].values())
        found = [entry["root"] for entry in entries] + [m for e in entries for m in e.get("mounts_read_only", ())]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []
    return [root for root in found if isinstance(root, str) and root.startswith("/")]


def main() -> None:
    engine = os.environ.get("ENGINE", "docker")
    image = os.environ.get("CODESPACE_TEST_IMAGE", "codespace:latest")
    arguments = sys.argv[1:]
    name = f"codespace-{uuid.uuid4().hex[:12]}"
    command = [engine, "run", "--rm", "--interactive", "--name", name, "--network", "host", *least_privilege()]
    if "--tty" in arguments and os.isatty(0):
        command.append("--tty")
    for path, mode in mounts(arguments, os.environ).items():
        command += ["--volume", f"{path}:{path}:{mode}"]
    for variable, value in os.environ.items():
        if variable in _PASSED or (
            variable.startswith("CODESPACE_") and variable not in ("CODESPACE_BIN", "CODESPACE_TEST_IMAGE")
        ):
            command += ["--env", f"{variable}={value}"]
    # The wrapper's callers set these or not; the image's own defaults must not fill in for them.
    for variable in ("CODESPACE_REGISTRY", "CODESPACE_SOCKET", "CODESPACE_DATA_DIR"):
        if variable not in os.environ:
            command += ["--env", f"{variable}="]
    held = _watch(engine, name)
    os.set_inheritable(held, True)
    os.execvp(engine, [*command, image, *arguments])


def _watch(engine: str, name: str) -> int:
    """Starts the watcher; returns the end of the pipe whose closing ends the container."""
    read_end, write_end = os.pipe()
    script = f'cat; {engine} rm --force "$0" >/dev/null 2>&1'
    subprocess.Popen(
        ["/bin/sh", "-c", script, name],
        stdin=read_end, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        env={name: os.environ[name] for name in ("PATH", "HOME", "DOCKER_HOST") if name in os.environ},
    )  # fmt: skip
    os.close(read_end)
    return write_end


if __name__ == "__main__":
    main()
