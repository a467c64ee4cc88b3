"""Runs a command with a container engine, an image of this checkout and compose at hand, as `make integration`.

    python -m tests.integration.engine COMMAND…

Uses a running engine; as root it installs Debian's docker.io if that is missing and starts dockerd if none answers, and
ends at the end what it started. The image is built once for one content. Where an engine cannot be had, the command
runs all the same with the reason in CODESPACE_NO_ENGINE: its tests are skipped, which is a failure in CI.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.leaks import await_end_of

ROOT = Path(__file__).resolve().parents[2]
_CONTENT = ("gateway", "runner", "sandbox_helper", "adapters", "requirements", "pyproject.toml", "image/Containerfile")
_LOG = "/var/log/dockerd.log"
_END_S = 20.0


class NoEngine(Exception):
    """Why there is none."""


def content_hash() -> str:
    """Of everything that the Containerfile copies, and of itself; twelve hex digits."""
    digest = hashlib.sha256()
    for name in _CONTENT:
        path = ROOT / name
        files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
        for file in files:
            if "__pycache__" not in file.parts:
                digest.update(f"{file.relative_to(ROOT)}\0{file.stat().st_size}\0".encode() + file.read_bytes())
    return digest.hexdigest()[:12]


def answers() -> bool:
    return shutil.which("docker") is not None and _quietly("docker", "info") == 0


def _quietly(*command: str) -> int:
    return subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False
    ).returncode


def install() -> None:
    """Debian's packages, where they are missing. Raises NoEngine."""
    if shutil.which("dockerd") is not None and shutil.which("iptables") is not None:
        return
    if os.getuid() != 0 or shutil.which("apt-get") is None:
        raise NoEngine("no container engine runs here, and only root on Debian can install docker.io")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update", "-qq"], ["install", "-qq", "-y", "--no-install-recommends", "docker.io", "iptables"]):
        if subprocess.run(
            ["apt-get", *command], env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=False
        ).returncode:
            raise NoEngine(f"apt-get {command[0]} failed")


@contextlib.contextmanager
def engine() -> Iterator[None]:
    """An engine that answers. One that this started is ended, with everything below it. Raises NoEngine."""
    if answers():
        yield
        return
    install()
    if os.getuid() != 0:
        raise NoEngine("no container engine answers this user: start docker, or join the group docker")
    with open(_LOG, "ab") as log:
        daemon = subprocess.Popen(["dockerd"], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    try:
        # `docker info` waits for an answer once the socket is there; until then it fails at once, dozens a second.
        for _ in range(1500):
            if daemon.poll() is not None:
                raise NoEngine(f"dockerd ended with {daemon.returncode}: see {_LOG}")
            if Path("/var/run/docker.sock").exists() and _quietly("docker", "info") == 0:
                break
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(0.1)
        else:
            raise NoEngine(f"dockerd does not answer: see {_LOG}")
        yield
    finally:
        daemon.send_signal(signal.SIGTERM)
        try:
            daemon.wait(_END_S)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()


def image() -> str:
    """The tag of an image of this content; built if the engine has none. Raises NoEngine."""
    tag = f"codespace:test-{content_hash()}"
    if _quietly("docker", "image", "inspect", tag) != 0:
        built = subprocess.run([ROOT / "image/build.sh", tag], check=False, stdin=subprocess.DEVNULL)
        if built.returncode:
            raise NoEngine("the image could not be built: see the messages above")
    return tag


def compose(tag: str) -> str:
    """A compose command of version 2 or later, taken out of Debian's package where the client has none. It knows
    `systempaths`, which 1.29 does not. Raises NoEngine."""
    if _quietly("docker", "compose", "version") == 0:
        return "docker compose"
    program = ROOT / "build" / "compose" / "docker-compose"
    if not program.exists():
        program.parent.mkdir(parents=True, exist_ok=True)
        script = (
            "apt-get update -qq && cd /tmp && apt-get download -qq docker-compose >/dev/null 2>&1 && "
            "dpkg-deb --fsys-tarfile docker-compose_*.deb | "
            "tar -xO ./usr/libexec/docker/cli-plugins/docker-compose >/out/new && chmod 755 /out/new && "
            "mv /out/new /out/docker-compose"
        )
        command = ["docker", "run", "--rm", "--user", "0", "--network", "host", "--volume", f"{program.parent}:/out"]
        subprocess.run([*command, "--entrypoint", "sh", tag, "-euc", script], check=False, stdin=subprocess.DEVNULL)
    if not program.exists():
        raise NoEngine("no compose program: docker-compose could not be taken from Debian's package")
    return str(program)


def main(command: list[str]) -> int:
    environment = {**os.environ, "CODESPACE_INTEGRATION": "1"}
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(engine())
            tag = image()
            environment |= {"CODESPACE_TEST_IMAGE": tag, "CODESPACE_TEST_COMPOSE": compose(tag)}
        except NoEngine as reason:
            environment["CODESPACE_NO_ENGINE"] = str(reason)
        child = subprocess.Popen(command, env=environment, cwd=ROOT)
        try:
            return child.wait()
        finally:
            if child.poll() is None:
                child.terminate()
                await_end_of({child.pid: "the tests"}, timeout_s=_END_S)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
