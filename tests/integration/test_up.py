"""`make up` and `make down`, with Docker and, where it is installed, with Podman, as whoever runs the tests.

Podman is optional: where it is missing or cannot run anything, its tests are skipped with the reason, in CI too.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.containers import OWNED, ROOT, RUN_S, UID, Appliance, image

pytestmark = [pytest.mark.timeout(300), pytest.mark.covers("IMG-1")]


@contextmanager
def up(environment: dict[str, str], tag: str) -> Iterator[Appliance]:
    """The appliance as `make up` starts it, with a folder of its own; ended by `make down`."""
    name = f"codespace-test-{uuid.uuid4().hex[:12]}"
    with tempfile.TemporaryDirectory(prefix="cs", dir="/tmp") as folder:
        given = {**environment, "HOME_DIR": f"{folder}/home", "NAME": name, "FLAGS": " ".join(OWNED)}
        Path(folder).chmod(0o755)

        def script(file: str, *arguments: str) -> str:
            done = subprocess.run(
                [str(ROOT / file), *arguments], env=given, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                timeout=RUN_S, check=False,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
            return done.stderr

        try:
            assert f"{name} serves at {folder}/home/run/mcp.sock as uid {UID}" in script("deploy/up.sh", tag)
            yield Appliance(Path(folder) / "home", name)
            script("deploy/down.sh")
        finally:
            remove = [environment["ENGINE"], "rm", "--force", name]
            subprocess.run(remove, env=environment, capture_output=True, timeout=RUN_S, check=False)


def serves(appliance: Appliance) -> None:
    status = appliance.output_of("cat", "/proc/self/status")
    fields = dict(line.split(":\t", 1) for line in status.splitlines())
    assert {fields[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
    assert fields["Uid"].split() == [str(UID)] * 4
    appliance.run("sh", "-c", "echo mine >file")
    assert (appliance.workspace / "file").stat().st_uid == UID


@pytest.mark.engine
def test_make_up_serves_with_docker_and_make_down_ends_it() -> None:
    with up({**os.environ, "ENGINE": "docker"}, image()) as appliance:
        serves(appliance)
    assert not appliance.is_ready()


@pytest.fixture
def podman() -> Iterator[dict[str, str]]:
    """An environment in which Podman runs the image. Its store is the test's own."""
    if shutil.which("podman") is None:
        pytest.skip("podman is not installed")
    if "CODESPACE_TEST_IMAGE" not in os.environ:
        pytest.skip("there is no image")
    folder = Path(tempfile.mkdtemp(prefix="cs", dir="/tmp"))
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    lines = [
        # Podman asks for more than the machine may give, unless it is told.
        "[containers]", f'default_ulimits = ["nofile={files}:{files}", "nproc=4096:4096"]',
        "[engine]", 'cgroup_manager = "cgroupfs"', 'events_logger = "file"',
        *(['runtime = "runc"'] if shutil.which("runc") else []),
    ]  # fmt: skip
    (folder / "containers.conf").write_text("\n".join(lines) + "\n")
    (folder / "storage.conf").write_text(
        f'[storage]\ndriver = "overlay"\ngraphroot = "{folder}/store"\nrunroot = "{folder}/run"\n'
    )
    environment = {
        **os.environ, "ENGINE": "podman", "CONTAINERS_CONF": str(folder / "containers.conf"),
        "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
    }  # fmt: skip
    try:
        yield environment
    finally:
        for command in (["rm", "--all", "--force"], ["system", "reset", "--force"]):
            subprocess.run(["podman", *command], env=environment, capture_output=True, timeout=RUN_S, check=False)
        shutil.rmtree(folder, ignore_errors=True)


def test_make_up_serves_with_podman_and_make_down_ends_it(podman: dict[str, str]) -> None:
    with subprocess.Popen(["docker", "save", image()], stdout=subprocess.PIPE) as saved:
        loaded = subprocess.run(
            ["podman", "load", "--quiet"],
            env=podman, stdin=saved.stdout, capture_output=True, text=True, timeout=RUN_S, check=False,
        )  # fmt: skip
    tag = f"localhost/{image()}"
    tried = subprocess.run(
        ["podman", "run", "--rm", "--no-healthcheck", "--entrypoint", "true", tag], env=podman, capture_output=True,
        text=True, timeout=RUN_S, check=False,
    )  # fmt: skip
    if loaded.returncode or tried.returncode:
        pytest.skip(f"podman runs nothing here: {loaded.stderr}{tried.stderr}")
    with up(podman, tag) as appliance:
        serves(appliance)
    assert not appliance.is_ready()
