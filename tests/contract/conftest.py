"""Every check of the suite runs on each of these runners (UDS-3). One of each serves a whole module."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.contract.rig import Rig, in_process, over_the_socket
from tests.fakes.launcher import FakeLauncher
from tests.fakes.worker_host import FAKE_WORKER

KINDS = ("in-process/fake", "worker/fake")


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=KINDS)
async def shared_rig(request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    if request.param == "in-process/fake":
        async with in_process(FakeLauncher(), "off") as rig:
            yield rig
    else:
        async with over_the_socket(FAKE_WORKER, "off") as rig:
            yield rig


@pytest_asyncio.fixture(loop_scope="module")
async def rig(shared_rig: Rig) -> AsyncIterator[Rig]:
    yield shared_rig
    await shared_rig.tidy()
