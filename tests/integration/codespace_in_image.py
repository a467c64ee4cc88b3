#!/usr/bin/python3
"""Runs a `codespace` subcommand in the image as the calling user, with the paths that it names mounted where they are.

A stand-in for the program: `CODESPACE_BIN=…/codespace_in_image.py`. Registry and token directories are read-only; the
socket's and the data directory, and each root of the registry, are writable. The container shares the machine's
network, so that loopback ports mean the same. It ends with this process, however and whenever that ends: a guard of its
own makes the container, which this process then becomes the client of, and removes it when a pipe between them closes.
Runs alone, with the standard library.

Reads CODESPACE_TEST_IMAGE (default codespace:latest) and ENGINE (default docker).
"""

from __future__ import annotations

import json
import os
import signal
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
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    engine = os.environ.get("ENGINE", "docker")
    image = os.environ.get("CODESPACE_TEST_IMAGE", "codespace:latest")
    arguments = sys.argv[1:]
    name = f"codespace-{uuid.uuid4().hex[:12]}"
    command = [engine, "create", "--rm", "--interactive", "--name", name, "--network", "host", *least_privilege()]
    if owner := os.environ.get("CODESPACE_TEST_OWNER"):
        command += ["--label", f"codespace.tests={owner}"]
    if "--tty" in arguments and os.isatty(0):
        command.append("--tty")
    for path, mode in mounts(arguments, os.environ).items():
        command += ["--volume", f"{path}:{path}:{mode}"]
    for variable, value in os.environ.items():
        if variable in _PASSED or (
            variable.startswith("CODESPACE_") and not variable.startswith(("CODESPACE_BIN", "CODESPACE_TEST_"))
        ):
            command += ["--env", f"{variable}={value}"]
    # The wrapper's callers set these or not; the image's own defaults must not fill in for them.
    for variable in ("CODESPACE_REGISTRY", "CODESPACE_SOCKET", "CODESPACE_DATA_DIR"):
        if variable not in os.environ:
            command += ["--env", f"{variable}="]
    refused = create([*command, image, *arguments], engine, name)
    if refused:
        sys.stderr.buffer.write(refused)
        sys.exit(125)
    os.execvp(engine, [engine, "start", "--attach", "--interactive", name])


# Whoever asks the engine to make a container must outlive the answer: a client that is killed in between leaves a
# container that nobody has seen. So the guard asks, in a session of its own, and tells by its standard output. What it
# removes may be starting or ending; the engine does one after the other, and a removal that is refused is tried again.
_GUARD = """
engine=$1 name=$2; shift 2
if said=$("$@" 2>&1 >/dev/null); then :; else printf '%s\\n' "${said:-the engine made no container}"; fi
exec >/dev/null
cat
while "$engine" container inspect "$name" && [ $((tries += 1)) -le 100 ]; do
  "$engine" rm --force "$name" || sleep 0.1
done
"""


def create(command: list[str], engine: str, name: str) -> bytes:
    """Has the guard run `command`, which makes the container `name`; returns what the engine said if it refused. From
    then on this process, and the program that it becomes, holds the pipe whose closing ends the container."""
    held_by_guard, held = os.pipe()
    report, report_end = os.pipe()
    kept = ("PATH", "HOME", "DOCKER_HOST", "XDG_RUNTIME_DIR")
    subprocess.Popen(
        ["/bin/sh", "-c", _GUARD, "guard", engine, name, *command],
        stdin=held_by_guard, stdout=report_end, stderr=subprocess.DEVNULL, start_new_session=True,
        env={name: os.environ[name] for name in kept if name in os.environ},
    )  # fmt: skip
    os.close(held_by_guard)
    os.close(report_end)
    with open(report, "rb") as said:
        refused = said.read()
    os.set_inheritable(held, True)
    return refused


if __name__ == "__main__":
    main()
