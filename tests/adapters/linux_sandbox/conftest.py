"""Real launchers and real workspaces. Run as root, and once more as an ordinary user (test_ordinary_user)."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator

import pytest

from adapters.linux_sandbox.launcher import LinuxSandboxLauncher
from tests.adapters.linux_sandbox.prepared import PreparedLauncher

UNPREPARED, PREPARED = "unprepared", "prepared"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A module that says `BOTH_WAYS = True` has its commands without a pool, and with a waiting sandbox for each."""
    if getattr(metafunc.module, "BOTH_WAYS", False) and "launcher" in metafunc.fixturenames:
        metafunc.parametrize("launcher", [UNPREPARED, PREPARED], indirect=True)


@pytest.fixture
def workspace() -> Iterator[str]:
    root = os.path.realpath(tempfile.mkdtemp(prefix="codespace-test-"))
    yield root
    shutil.rmtree(root)


@pytest.fixture
async def launcher(request: pytest.FixtureRequest) -> AsyncIterator[LinuxSandboxLauncher]:
    """Without a pool, unless the parameter says `prepared`."""
    made = PreparedLauncher() if getattr(request, "param", None) == PREPARED else LinuxSandboxLauncher()
    await made.start()
    yield made
    await made.close()
