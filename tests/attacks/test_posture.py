"""What a running command is, against what is declared in `posture/`: one file a mode, compared field by field.

A new right, a new mount, another descriptor: each shows as a difference and fails. `CODESPACE_WRITE_POSTURE=1` writes
what is found instead, so that the change can be read as a diff and judged.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.attacks.harness import REPOSITORY, Launched, Place, SandboxDriver

DECLARED = Path(__file__).parent / "posture"
OBSERVERS = ["as the runner", *(["as root"] if os.geteuid() == 0 else [])]


def observe(sandbox: SandboxDriver, place: Place, command: Launched, observer: str) -> dict[str, Any]:
    spec = {"init": command.pid, "runner": sandbox.pid, "workspace": str(place.workspace), "tools": str(place.tools)}
    run = subprocess.run(
        [sys.executable, "-m", "tests.attacks.posture", json.dumps(spec)],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        timeout=60,
        check=True,
        **({} if observer == "as root" else sandbox.identity.popen_arguments()),
    )
    record = json.loads(run.stdout)
    assert isinstance(record, dict)
    return record


ANY_OF = "any of"
"""{"any of": [values]} is declared where machines rightly differ: with a control group of its own, or without."""


def flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted field, value) for every leaf; lists are leaves."""
    if isinstance(value, Mapping) and value and ANY_OF not in value:
        for key, inner in value.items():
            yield from flat(inner, f"{name}.{key}" if name else str(key))
    else:
        yield name, value


def differences(expected: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """`field: expected …, found …`, also for fields that only one side has."""
    wanted, got = dict(flat(expected)), dict(flat(found))
    complaints = []
    for field in sorted(wanted.keys() | got.keys()):
        want, have = wanted.get(field, "nothing"), got.get(field, "nothing")
        allowed = want[ANY_OF] if isinstance(want, Mapping) and ANY_OF in want else [want]
        if have not in allowed:
            complaints.append(f"{field}: expected {want}, found {have}")
    return complaints


def declare(found: dict[str, Any]) -> dict[str, Any]:
    """What is found, with room for what machines rightly lack or have: written for review, not as the truth."""
    for point, shown in found["mounts"].items():
        if point.startswith(("/etc/", "/proc/")):
            found["mounts"][point] = {ANY_OF: [shown, "nothing"]}
    found["mounts"]["/proc/sysrq-trigger"] = {ANY_OF: ["proc nodev,noexec,nosuid,ro", "nothing"]}
    for name in ("lib32", "lib64", "libx32"):
        found["top"][name] = {ANY_OF: ["link", "directory", "nothing"]}
    for role in ("command", "init"):
        found[role]["confinement"]["control group"] = {ANY_OF: ["own", "runner"]}
    return found


@pytest.mark.covers("BOX-1", "BOX-2", "BOX-6", "BOX-7", "BOX-8", "NET-1", "PROC-2")
@pytest.mark.parametrize("observer", OBSERVERS)
@pytest.mark.parametrize("terminal", [False, True], ids=["pipes", "tty"])
def test_a_running_command_is_exactly_what_is_declared(
    sandbox: SandboxDriver, place: Place, terminal: bool, observer: str
) -> None:
    (place.workspace / ".git").mkdir()
    sandbox.identity.own(place.workspace / ".git")
    terms = place.terms(
        protect=[".git/hooks", ".git/config", ".codex", "absent/parent"], env={"CI": "1"}, limits={"cpu_s": 600}
    )
    command = sandbox.launch(terms, ["/bin/sleep", "1000"], tty=(24, 80) if terminal else None)
    try:
        found = observe(sandbox, place, command, observer)
    finally:
        sandbox.kill(command)
        sandbox.wait(command)
    mode = f"restricted-{'tty' if terminal else 'pipes'}-{sandbox.identity.name}-{observer.replace(' ', '-')}"
    declared = DECLARED / f"{mode}.json"
    if os.environ.get("CODESPACE_WRITE_POSTURE"):
        declared.write_text(json.dumps(declare(json.loads(json.dumps(found))), indent=1) + "\n")
    assert differences(json.loads(declared.read_text()), found) == []
    assert unproved(command.isolation, found) == []


def unproved(isolation: Mapping[str, Any], record: Mapping[str, Any]) -> list[str]:
    """What the launcher says is in force and the record does not show."""
    states, confinement = isolation["protections"], record["command"]["confinement"]
    limits = record["command"]["place"]["limits"]
    shown = {
        "user_namespace": confinement["namespaces"]["user"] == "own",
        "mount_namespace": confinement["namespaces"]["mnt"] == "own",
        "pid_namespace": confinement["namespaces"]["pid"] == "own",
        "network_namespace": confinement["namespaces"]["net"] == "own",
        "ipc_namespace": confinement["namespaces"]["ipc"] == "own",
        "uts_namespace": confinement["namespaces"]["uts"] == "own",
        "cgroup_namespace": confinement["namespaces"]["cgroup"] == "own",
        "capabilities": not any(confinement["capabilities"].values()),
        "no_new_privs": confinement["NoNewPrivs"] == "1",
        "seccomp": confinement["Seccomp"] == "2",
        "process_limit": limits["processes"] == "256",
        "cpu_limit": limits["cpu time"] == "600",
        "file_size_limit": limits["file size"] == str(1024 << 20),
        "open_files_limit": limits["open files"] == "1024",
    }
    wrong = [
        f"{name}: said {states.get(name)}, seen {seen}"
        for name, seen in shown.items()
        if (states.get(name, "off") != "off") != seen
    ]
    if confinement["control group"] == "runner" and states["memory_limit"] == "active":
        wrong.append("memory_limit: said active, without a control group")
    return wrong


THREADS = """
import threading
for _ in range(3):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
print("ready", flush=True)
threading.Event().wait()
"""
PER_THREAD = ("Uid", "Gid", "Groups", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp")


@pytest.mark.covers("BOX-1")
def test_every_thread_of_a_command_is_confined_alike(sandbox: SandboxDriver, place: Place) -> None:
    command = sandbox.launch(place.terms(), ["/usr/bin/python3", "-c", THREADS])
    try:
        sandbox.expect(command, "ready")
        children = Path(f"/proc/{command.pid}/task/{command.pid}/children").read_text().split()
        tasks = list(Path(f"/proc/{children[0]}/task").iterdir())
        confinement = {
            tuple(re.findall(rf"^({'|'.join(PER_THREAD)}):\s*(.*)$", (task / "status").read_text(), re.MULTILINE))
            for task in tasks
        }
    finally:
        sandbox.kill(command)
        sandbox.wait(command)
    assert len(tasks) == 4
    assert len(confinement) == 1
    fields = dict(next(iter(confinement)))
    assert fields["NoNewPrivs"] == "1"
    assert fields["Seccomp"] == "2"
    assert {int(fields[name], 16) for name in fields if name.startswith("Cap")} == {0}


@pytest.mark.covers("BOX-1", "NET-1")
def test_two_commands_share_no_namespace(sandbox: SandboxDriver, place: Place) -> None:
    commands = [sandbox.launch(place.terms(), ["/bin/sleep", "1000"]) for _ in range(2)]
    try:
        inodes = []
        for command in commands:
            child = Path(f"/proc/{command.pid}/task/{command.pid}/children").read_text().split()[0]
            names = ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup")
            inodes.append({name: os.stat(f"/proc/{child}/ns/{name}").st_ino for name in names})
    finally:
        for command in commands:
            sandbox.kill(command)
            sandbox.wait(command)
    assert [name for name, inode in inodes[0].items() if inode == inodes[1][name]] == []


def test_a_difference_names_the_field_and_both_values() -> None:
    maybe = {"any of": ["ro", "nothing"]}
    expected = {"a": {"b": 1, "c": [1]}, "gone": "x", "maybe": maybe, "there": maybe}
    found = {"a": {"b": 2, "c": [1]}, "new": {"field": "y"}, "there": "rw"}
    assert differences(expected, found) == [
        "a.b: expected 1, found 2",
        "gone: expected x, found nothing",
        "new.field: expected nothing, found y",
        "there: expected {'any of': ['ro', 'nothing']}, found rw",
    ]
