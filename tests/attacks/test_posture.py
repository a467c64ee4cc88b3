"""What a running command is, against what is declared in `posture/`: one file a mode, compared field by field.

A new right, a new mount, another descriptor: each shows as a difference and fails.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.attacks import declared
from tests.attacks.harness import Place, SandboxDriver


@pytest.mark.covers("BOX-1", "BOX-2", "BOX-6", "BOX-7", "BOX-8", "NET-1", "NET-2", "PROC-2")
@pytest.mark.parametrize("observer", declared.OBSERVERS)
@pytest.mark.parametrize("terminal", [False, True], ids=["pipes", "tty"])
@pytest.mark.parametrize("network", ["restricted", "enabled"])
def test_a_running_command_is_exactly_what_is_declared(
    sandbox: SandboxDriver, place: Place, network: str, terminal: bool, observer: str
) -> None:
    lists = {"network": "enabled", "network_allow": ["allowed.example"]} if network == "enabled" else {}
    terms = place.terms(**declared.prepare(sandbox.identity, place), **lists)
    command = sandbox.launch(terms, declared.COMMAND, tty=(24, 80) if terminal else None)
    try:
        found = declared.observe(sandbox.identity, place, sandbox.pid, command.pid, observer)
    finally:
        sandbox.kill(command)
        sandbox.wait(command)
    declared.check(sandbox.identity, terminal, observer, found, network=network)
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
    assert declared.differences(expected, found) == [
        "a.b: expected 1, found 2",
        "gone: expected x, found nothing",
        "new.field: expected nothing, found y",
        "there: expected {'any of': ['ro', 'nothing']}, found rw",
    ]
