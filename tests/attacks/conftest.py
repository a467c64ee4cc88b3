"""Fixtures: a driver a session for each identity, from nothing and with prepared sandboxes; a place a test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.attacks.harness import Identity, Place, SandboxDriver, identities, make_place


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Under each identity, from nothing and, unless a module says that it is about no boundary, prepared."""
    if "sandbox" in metafunc.fixturenames:
        both = (False,) if getattr(metafunc.module, "FROM_NOTHING", False) else (False, True)
        ways = [(identity, prepared) for identity in identities() for prepared in both]
        ids = [f"{identity.name}{' prepared' if prepared else ''}" for identity, prepared in ways]
        metafunc.parametrize("sandbox", ways, ids=ids, indirect=True, scope="session")


@pytest.fixture(scope="session")
def sandbox(request: pytest.FixtureRequest) -> Iterator[SandboxDriver]:
    identity, prepared = request.param
    assert isinstance(identity, Identity)
    driver = SandboxDriver(identity, prepared=prepared)
    yield driver
    assert driver.close() == 0


@pytest.fixture
def place(sandbox: SandboxDriver) -> Iterator[Place]:
    with make_place(sandbox.identity) as made:
        yield made
