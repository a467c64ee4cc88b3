"""The attack corpus through the container's socket: what a command of the image can do is what the targets allow."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.attacks import corpus
from tests.integration.containers import RUN_S, UID, Appliance, home, serving
from tests.requirements import ATTACK_GAPS

# Without the corpus, which is not part of the repository, CI has nothing to insist on.
pytestmark = [*([pytest.mark.engine] if corpus.PROGRAM.exists() else []), corpus.needs_corpus, pytest.mark.timeout(300)]

TOOLS = "/usr/local/probes"
"""Mounted there: writable for the appliance's user, and read-only in a sandbox, like all of /usr."""
PROBE = ["python3", f"{TOOLS}/attacks.py", "/workspaces/demo", "/run/codespace/secret", "--canary", f"{TOOLS}/canary"]


@contextmanager
def bait(appliance: Appliance) -> Iterator[None]:
    """Fixtures, listeners and the secret in the container, outside every sandbox."""
    process = subprocess.Popen(
        ["docker", "exec", "--interactive", appliance.name, *PROBE, "--bait"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"ready\n"
        yield
    finally:
        process.stdin.close()
        process.wait(RUN_S)
        process.stdout.close()


@pytest.mark.covers("IMG-4", "BOX-7")
def test_every_probe_meets_its_target_in_the_image() -> None:
    terms: dict[str, Any] = {
        "protect": list(corpus.PROTECTED),
        "limits": {"timeout_s": 150, "output_retained_kb": 1024},
    }
    with home(**terms) as folder:
        tools = folder / "probes"
        tools.mkdir()
        (tools / "attacks.py").write_bytes(corpus.PROGRAM.read_bytes())
        for path in (tools, tools / "attacks.py"):
            os.chown(path, UID, UID)
        with serving(folder, "--volume", f"{tools}:{TOOLS}") as appliance, bait(appliance):
            output = appliance.output_of(*PROBE, "--max-files", "8192")
    differences = [line for line in corpus.judge(output).splitlines() if " as required" not in line]
    assert {line.split(":")[0] for line in differences} == set(ATTACK_GAPS), (differences, output)
