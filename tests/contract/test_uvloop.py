"""In process the runner shares the gateway's loop, which is uvloop: the same descriptors, another loop (UDS-3)."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.contract.uvloop_scenes import SCENES
from tests.fakes.worker_host import REPOSITORY


@pytest.mark.kernel("namespaces")
@pytest.mark.covers("UDS-3")
def test_the_runner_works_on_the_gateway_s_loop_and_leaves_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.contract.uvloop_scenes"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=15,
    )
    assert (done.returncode, done.stderr) == (0, ""), done
    assert done.stdout.split() == [*(scene.__name__ for scene in SCENES), "left:"]
