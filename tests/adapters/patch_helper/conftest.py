"""One warm engine for a test's workspaces, and a workspace."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from adapters.patch_helper.engine import PatchHelperEngine
from tests.adapters.patch_helper.workspaces import Workspace, workspace


@pytest.fixture
async def engine() -> AsyncIterator[PatchHelperEngine]:
    engine = PatchHelperEngine()
    yield engine
    await engine.close()


@pytest.fixture
def demo() -> Iterator[Workspace]:
    with workspace() as made:
        yield made
