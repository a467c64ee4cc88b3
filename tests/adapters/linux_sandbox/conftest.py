"""Real launchers and real workspaces. Run as root, and once more as an ordinary user (test_ordinary_user)."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator

import pytest

from adapters.linux_sandbox.launcher import LinuxSandboxLauncher


@pytest.fixture
def workspace() -> Iterator[str]:
    root = os.path.realpath(tempfile.mkdtemp(prefix="codespace-test-"))
    yield root
    shutil.rmtree(root)


@pytest.fixture
async def launcher() -> AsyncIterator[LinuxSandboxLauncher]:
    made = LinuxSandboxLauncher()
    await made.start()
    yield made
    await made.close()
