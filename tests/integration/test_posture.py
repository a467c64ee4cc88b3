"""What a running command of the image *is*, against what is declared: as tests/attacks/test_posture.py does outside it.

The record is taken inside the container, by the appliance's user and by the machine's root.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.attacks import declared
from tests.attacks.harness import Identity, Place
from tests.integration.containers import ROOT, RUN_S, UID, Appliance, home, serving, write_registry
from tests.integration.daemon import listed

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

IMAGE = Identity("image", UID)
TOOLS = "/srv/tools"
NETWORKS = ("restricted", "enabled")
FIND = """
import os, sys
def fields(pid):
    return open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()
wanted = "\\0".join(sys.argv[1:]) + "\\0"
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        if open(f"/proc/{pid}/cmdline").read() == wanted:
            init = fields(pid)[1]
            print(init, fields(init)[1])
    except OSError:
        pass
"""
"""Prints PID 1 of the command's namespace, and the runner, whose child that is."""


@pytest.fixture(scope="module")
def appliance() -> Iterator[Appliance]:
    """With a workspace of each network, on the terms that the declared records are of."""
    with home() as folder:
        tools = folder / "tools"
        tools.mkdir()
        workspaces: dict[str, Any] = {}
        for network in NETWORKS:
            root = folder / "workspaces" / network
            root.mkdir()
            os.chown(root, UID, UID)
            terms = declared.prepare(IMAGE, Place(folder, root, tools, folder))
            lists = {"network_allow": ["allowed.example"]} if network == "enabled" else {}
            workspaces[network] = {
                **terms, **lists, "root": f"/workspaces/{network}", "profile": "workspace-write", "network": network,
                "mounts_read_only": [TOOLS], "limits": {**terms["limits"], "timeout_s": 250},
            }  # fmt: skip
        write_registry(folder, **workspaces)
        with serving(folder, "--volume", f"{tools}:{TOOLS}") as running:
            yield running


def observe(appliance: Appliance, network: str, observer: str) -> dict[str, Any]:
    found = appliance.inside("python3", "-c", FIND, *declared.COMMAND).output.split()
    assert len(found) == 2, found
    spec = {"init": int(found[0]), "runner": int(found[1]), "workspace": f"/workspaces/{network}", "tools": TOOLS}
    if observer == "as root":
        # The machine's root, since the engine gives no container more rights than it has itself.
        (outer,) = listed("inspect", "--format", "{{.State.Pid}}", appliance.name)
        enter = ["nsenter", "--target", outer, "--mount", "--pid"]
    else:
        enter = ["docker", "exec", "--interactive", "--user", str(UID), appliance.name]
    run = subprocess.run(
        [*enter, "python3", "-", json.dumps(spec)],
        input=(ROOT / "tests/attacks/posture.py").read_bytes(), capture_output=True, timeout=RUN_S, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr.decode()
    record: dict[str, Any] = json.loads(run.stdout)
    return record


@pytest.mark.covers("BOX-1", "BOX-6", "BOX-7", "NET-1", "NET-2", "IMG-1")
@pytest.mark.parametrize("observer", declared.OBSERVERS)
@pytest.mark.parametrize("terminal", [False, True], ids=["pipes", "tty"])
@pytest.mark.parametrize("network", NETWORKS)
def test_a_command_in_the_image_is_exactly_what_is_declared(
    appliance: Appliance, network: str, terminal: bool, observer: str
) -> None:
    started = appliance.call("exec_command", workspace_id=network, command=declared.COMMAND, tty=terminal)
    try:
        found = observe(appliance, network, observer)
    finally:
        appliance.call("terminate_process", process_id=started["process_id"])
        appliance.ended(started["process_id"])
    declared.check(IMAGE, terminal, observer, found, network=network)


def test_every_declared_record_of_the_image_is_compared() -> None:
    modes = {
        f"{n}-{t}-image-{o}.json" for n in NETWORKS for t in ("pipes", "tty") for o in ("as-root", "as-the-runner")
    }
    assert {path.name for path in Path(declared.DECLARED).glob("*-image-*.json")} == modes
