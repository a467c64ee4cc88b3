"""The declared posture: how a record is taken, which file it is held against, and what counts as a difference.

`CODESPACE_WRITE_POSTURE=1` writes what is found instead, so that a change can be read as a diff and judged.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.attacks.harness import REPOSITORY, Identity, Place

DECLARED = Path(__file__).parent / "posture"
OBSERVERS = ["as the runner", *(["as root"] if os.geteuid() == 0 else [])]


def observe(identity: Identity, place: Place, runner: int, init: int, observer: str) -> dict[str, Any]:
    """The record of the command below PID 1 `init`, of the runner `runner`, seen with the rights of `observer`."""
    spec = {"init": init, "runner": runner, "workspace": str(place.workspace), "tools": str(place.tools)}
    run = subprocess.run(
        [sys.executable, "-m", "tests.attacks.posture", json.dumps(spec)],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        timeout=60,
        check=True,
        **({} if observer == "as root" else identity.popen_arguments()),
    )
    record = json.loads(run.stdout)
    assert isinstance(record, dict)
    return record


def prepare(identity: Identity, place: Place) -> dict[str, Any]:
    """The terms that the declared records are of, and what they ask of the workspace."""
    (place.workspace / ".git").mkdir()
    identity.own(place.workspace / ".git")
    return {
        "protect": [".git/hooks", ".git/config", ".codex", "absent/parent"],
        "mounts_read_only": [str(place.tools)],
        "env": {"CI": "1"},
        "limits": {"cpu_s": 600},
    }


COMMAND = ["/bin/sleep", "1000"]


def check(
    identity: Identity, terminal: bool, observer: str, found: dict[str, Any], *, network: str = "restricted"
) -> None:
    """Fails with every difference from the declared record of that mode."""
    mode = f"{network}-{'tty' if terminal else 'pipes'}-{identity.name}-{observer.replace(' ', '-')}"
    declared = DECLARED / f"{mode}.json"
    if os.environ.get("CODESPACE_WRITE_POSTURE"):
        declared.write_text(json.dumps(declare(json.loads(json.dumps(found))), indent=1) + "\n")
    complaints = differences(json.loads(declared.read_text()), found)
    assert not complaints, "\n".join([declared.name, *complaints])


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
        if "runner" in found[role]["identity"]["Uid"]:
            # An ordinary user cannot drop them once setgroups is denied.
            found[role]["identity"]["Groups"] = {ANY_OF: ["none", "the runner's"]}
        found[role]["confinement"]["control group"] = {ANY_OF: ["own", "runner"]}
    if isinstance(found["init"]["descriptors"], dict):
        # The liveness pipe has a name where a gateway made it.
        found["init"]["descriptors"]["2"] = {ANY_OF: ["pipe", "fifo"]}
    return found
