"""Fixtures: a driver a session for each identity, a place a test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.attacks.harness import Identity, Place, SandboxDriver, identities, make_place


@pytest.fixture(scope="session", params=identities(), ids=lambda identity: identity.name)
def sandbox(request: pytest.FixtureRequest) -> Iterator[SandboxDriver]:
    identity = request.param
    assert isinstance(identity, Identity)
    driver = SandboxDriver(identity)
    yield driver
    assert driver.close() == 0


@pytest.fixture
def place(sandbox: SandboxDriver) -> Iterator[Place]:
    with make_place(sandbox.identity) as made:
        yield made
