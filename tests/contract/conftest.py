"""Every check of the suite runs on each of these runners (UDS-3). One of each serves a whole module."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from runner.__main__ import build_service
from tests.contract.rig import RecordingLog, Rig, in_process, make_service, over_the_socket
from tests.fakes.launcher import FakeLauncher
from tests.fakes.worker_host import REAL_WORKER

NEEDS_KERNEL = pytest.mark.kernel("namespaces")
SANDBOXED = (
    pytest.param("in-process/sandbox", marks=NEEDS_KERNEL),
    pytest.param("worker/sandbox", marks=NEEDS_KERNEL),
)
KINDS = ("in-process/fake", *SANDBOXED)


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=KINDS)
async def shared_rig(request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    place, launcher = request.param.split("/")
    if place == "worker":
        made = over_the_socket(REAL_WORKER, launcher)
    else:
        service = build_service(max_processes=8, liveness_fd=None, log=RecordingLog())
        made = in_process(service if launcher == "sandbox" else make_service(FakeLauncher()), launcher)
    async with made as rig:
        yield rig


@pytest_asyncio.fixture(loop_scope="module")
async def rig(shared_rig: Rig) -> AsyncIterator[Rig]:
    yield shared_rig
    await shared_rig.tidy()
