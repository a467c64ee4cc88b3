"""The tests of the image. They run by `make integration`, which brings engine and image; elsewhere they are not
collected."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.containers import ROOT, UID, Appliance, home, image, serving
from tests.integration.daemon import OWNER

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
def docker_compose_project_name() -> str:
    return f"codespace-test-{os.getpid()}"


@pytest.fixture(scope="session")
def docker_compose_file(composed_home: Path) -> list[str]:
    """As it is, and labels by which what a killed run leaves is found by the next."""
    labels = {"labels": {OWNER: os.environ["CODESPACE_TEST_OWNER"]}}
    more = composed_home / "labels.yaml"
    more.write_text(json.dumps({"services": {"codespace": labels}, "networks": {"outside": labels}}))
    return [str(ROOT / "deploy" / "compose.yaml"), str(more)]


@pytest.fixture(scope="session")
def docker_setup() -> list[str]:
    return ["up --detach"]


@pytest.fixture(scope="session")
def docker_cleanup() -> list[str]:
    return ["down --volumes --timeout 5"]
