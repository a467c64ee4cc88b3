"""The wrapper that runs the program in the image: its container ends with it, whenever and however that ends."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.integration.containers import READY_S, ROOT, RUN_S, UID, home
from tests.integration.daemon import OWNER, listed, owner
from tests.integration.held_requests import ENGINE, HOLD_S, door
from tests.leaks import await_end_of, children_of

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

REPETITIONS = 3
EARLY_S = 1.0


@dataclass(frozen=True)
class Wrapped:
    """`process`: awaits everything that the wrapper starts. `pid`: the wrapper's. `label`: of its container."""

    process: subprocess.Popen[str]
    pid: int
    label: str

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def await_end(self) -> None:
        """Until the wrapper and its guard are gone."""
        _, errors = self.process.communicate(timeout=RUN_S)
        assert "left running" not in errors, errors

    def containers(self) -> list[str]:
        return listed("container", "ls", "--all", "--quiet", "--filter", f"label={OWNER}={self.label}")


def install(folder: Path) -> Path:
    """The wrapper and its profile where an ordinary user can read them."""
    for name in ("tests/integration/codespace_in_image.py", "image/seccomp.json"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    program = folder / "tests/integration/codespace_in_image.py"
    program.chmod(0o755)
    return program


@contextmanager
def wrapped(folder: Path, *arguments: str, engine: str) -> Iterator[Wrapped]:
    """The wrapper, started by an ordinary user who may use the engine, whose socket is `engine`."""
    label = f"{owner(os.getpid())}.{uuid.uuid4().hex[:8]}"
    user: list[str] = []
    if os.getuid() == 0:
        group = os.stat("/var/run/docker.sock").st_gid
        user = ["setpriv", "--reuid", str(UID), "--regid", str(UID), "--groups", str(group)]
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.contained", "--grace", str(READY_S), *user, str(install(folder)), *arguments],
        cwd=ROOT, env={**os.environ, "CODESPACE_TEST_OWNER": label, "HOME": str(folder), "DOCKER_HOST": f"unix://{engine}"},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        while not (children := children_of(process.pid)):
            assert process.poll() is None
        running = Wrapped(process, next(iter(children)), label)
        yield running
    finally:
        for pid in children_of(process.pid):
            os.kill(pid, signal.SIGKILL)
        process.communicate(timeout=RUN_S)


@contextmanager
def serve_wrapped(engine: str = ENGINE) -> Iterator[tuple[Wrapped, Path]]:
    """`serve`, with the paths of the machine; (it, its socket)."""
    with home() as folder:
        registry = {"workspaces": {"demo": {"root": str(folder / "workspaces/demo"), "profile": "workspace-write"}}}
        (folder / "etc/registry.json").write_text(json.dumps(registry))
        socket = folder / "run/mcp.sock"
        given = ["--registry", str(folder / "etc/registry.json"), "--socket", str(socket)]
        with wrapped(folder, "serve", *given, "--data-dir", str(folder / "data"), engine=engine) as running:
            yield running, socket


def await_ready(running: Wrapped) -> None:
    assert running.process.stderr is not None
    assert any('"ready"' in line for line in running.process.stderr)


@pytest.mark.parametrize("asked", ["/containers/create", "/attach", "/start"])
@pytest.mark.parametrize("repetition", range(REPETITIONS))
def test_a_wrapper_that_is_killed_while_the_engine_is_asked_leaves_no_container(asked: str, repetition: int) -> None:
    """The request is on its way when its sender dies, and reaches the engine all the same."""
    folder = Path(tempfile.mkdtemp(prefix="cs", dir="/tmp"))
    folder.chmod(0o755)
    try:
        with door(folder / "engine.sock", asked) as held, serve_wrapped(str(held.path)) as (running, _):
            assert held.reached.wait(HOLD_S)
            running.kill()
            # Whoever does not await its request has cleaned up too early by now, and ended.
            await_end_of({running.process.pid: "it"}, timeout_s=EARLY_S)
            held.release.set()
            running.await_end()
        # By now the engine has answered whatever it was asked.
        assert running.containers() == []
    finally:
        shutil.rmtree(folder)


@pytest.mark.parametrize("moment", ["at once", "with a guard", "ready"])
def test_a_wrapper_that_is_killed_leaves_no_container(moment: str) -> None:
    with serve_wrapped() as (running, socket):
        if moment == "with a guard":
            while not children_of(running.pid):
                assert running.process.poll() is None
        elif moment == "ready":
            await_ready(running)
            assert socket.is_socket()
            assert len(running.containers()) == 1
        running.kill()
        running.await_end()
        assert running.containers() == []


def test_a_wrapper_passes_signals_and_the_exit_status_on() -> None:
    with serve_wrapped() as (running, _):
        await_ready(running)
        os.kill(running.pid, signal.SIGTERM)
        assert await_end_of({running.process.pid: "it"}, timeout_s=RUN_S) == {}
        assert running.process.wait() == 0
        assert running.containers() == []


def test_a_wrapper_says_what_the_engine_refuses() -> None:
    with home() as folder:
        program = install(folder)
        ended = subprocess.run(
            [str(program), "doctor"], capture_output=True, text=True, timeout=RUN_S, check=False,
            env={**os.environ, "CODESPACE_TEST_IMAGE": "codespace.invalid/none:none"},
        )  # fmt: skip
    assert ended.returncode == 125
    assert "codespace.invalid" in ended.stderr
