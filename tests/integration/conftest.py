"""The tests of the image. They run by `make integration`, which brings engine and image; elsewhere they are not
collected."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.containers import ROOT, UID, Appliance, home, image, serving

collect_ignore_glob = [] if os.environ.get("CODESPACE_INTEGRATION") else ["test_*.py"]
"""Set by tests.integration.engine."""


@pytest.fixture(autouse=True)
def needs_an_engine() -> None:
    if reason := os.environ.get("CODESPACE_NO_ENGINE"):
        pytest.skip(reason)


@pytest.fixture(scope="module")
def appliance() -> Iterator[Appliance]:
    """One appliance for the tests of a module that change nothing for each other."""
    if reason := os.environ.get("CODESPACE_NO_ENGINE"):
        pytest.skip(reason)
    with home() as folder, serving(folder) as running:
        yield running


@pytest.fixture(scope="session")
def composed_home() -> Iterator[Path]:
    with home() as folder:
        yield folder


@pytest.fixture(scope="session")
def docker_compose_command(composed_home: Path) -> str:
    """As pytest-docker wants it; compose.yaml reads the rest from the environment."""
    given = {
        "CODESPACE_IMAGE_TAG": image(),
        "CODESPACE_UID": str(UID),
        "CODESPACE_GID": str(UID),
        "CODESPACE_REGISTRY_DIR": str(composed_home / "etc"),
        "CODESPACE_WORKSPACES": str(composed_home / "workspaces"),
        "CODESPACE_DATA": str(composed_home / "data"),
        "CODESPACE_RUN": str(composed_home / "run"),
    }
    return " ".join(
        ["env", *(f"{name}={value}" for name, value in given.items()), os.environ["CODESPACE_TEST_COMPOSE"]]
    )


@pytest.fixture(scope="session")
def docker_compose_file() -> str:
    return str(ROOT / "deploy" / "compose.yaml")


@pytest.fixture(scope="session")
def docker_setup() -> list[str]:
    return ["up --detach"]


@pytest.fixture(scope="session")
def docker_cleanup() -> list[str]:
    return ["down --volumes --timeout 5"]
