"""Runs a command with a container engine, an image of this checkout and compose at hand, as `make integration`.

    python -m tests.integration.engine COMMAND…

Uses a running engine; as root on Debian it installs and starts one where none answers, and ends what it started: see
`tests.integration.daemon`. The image is built once for one content. Where an engine cannot be had, the command runs all
the same with the reason in CODESPACE_NO_ENGINE: its tests are skipped, which is a failure in CI.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType

from tests.integration.daemon import OWNER, NoEngine, engine, gate, listed, owner, quietly
from tests.leaks import await_end_of

ROOT = Path(__file__).resolve().parents[2]
_CONTENT = ("gateway", "runner", "sandbox_helper", "adapters", "requirements", "pyproject.toml", "image/Containerfile")
_NAME = "codespace:test-"
_END_S = 20.0
_ATTEMPTS = 2
"""A download may fail once."""


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


def image() -> str:
    """The tag of an image of this content; built if the engine has none. Raises NoEngine."""
    tag = f"{_NAME}{content_hash()}"
    if quietly("docker", "image", "inspect", tag) == 0:
        return tag
    for _ in range(_ATTEMPTS):
        built = subprocess.run([ROOT / "image/build.sh", tag], check=False, stdin=subprocess.DEVNULL)
        if built.returncode == 0:
            return tag
    raise NoEngine("the image could not be built: see the messages above")


def tools(tag: str) -> str:
    """The tag of an image with programs that tests put beside the appliance: a reverse proxy, and Debian's compose,
    which knows `systempaths` as 1.29 does not. `tag`: the appliance's, whose base it takes. Raises NoEngine."""
    base = listed("image", "inspect", "--format", '{{index .Config.Labels "org.opencontainers.image.base.name"}}', tag)
    recipe = f"""
FROM {"".join(base)}
RUN export DEBIAN_FRONTEND=noninteractive; apt-get -qq -o Acquire::Retries=5 update \
 && apt-get -qq -y -o Acquire::Retries=5 install --no-install-recommends nginx-light >/dev/null \
 && cd /tmp && apt-get -qq -o Acquire::Retries=5 download docker-compose \
 && dpkg-deb --fsys-tarfile docker-compose_*.deb | tar -xO ./usr/libexec/docker/cli-plugins/docker-compose >/compose \
 && chmod 755 /compose && rm -rf docker-compose_*.deb /var/lib/apt/lists
"""
    name = f"codespace-tools:test-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"
    if quietly("docker", "image", "inspect", name) == 0:
        return name
    for _ in range(_ATTEMPTS):
        built = subprocess.run(
            ["docker", "build", "--quiet", "--network", "host", "--tag", name, "-"], input=recipe, text=True,
            env={**os.environ, "DOCKER_BUILDKIT": "0"}, stdout=subprocess.DEVNULL, check=False,
        )  # fmt: skip
        if built.returncode == 0:
            return name
    raise NoEngine("the image with the tests' tools could not be built: see the messages above")


def compose(tools_tag: str) -> str:
    """A compose command of version 2 or later: the client's, else the one in `tools`. Raises NoEngine."""
    if quietly("docker", "compose", "version") == 0:
        return "docker compose"
    program = ROOT / "build" / tools_tag.replace(":", "-") / "docker-compose"
    if not program.exists():
        program.parent.mkdir(parents=True, exist_ok=True)
        made_by = ["--label", f"{OWNER}={owner(os.getpid())}"]
        container = "".join(listed("create", *made_by, tools_tag, "true"))
        # Another run may do the same: each its own file, the last one stays.
        new = program.with_suffix(f".{os.getpid()}")
        copied = quietly("docker", "cp", f"{container}:/compose", str(new))
        quietly("docker", "rm", container)
        if copied:
            raise NoEngine(f"no compose program: it could not be copied out of {tools_tag}")
        new.replace(program)
    return str(program)


def remove_older(keep: str) -> None:
    """Images that runs on other contents have made; those in use stay."""
    for tag in listed("image", "ls", "--filter", f"reference={_NAME}*", "--format", "{{.Repository}}:{{.Tag}}"):
        if tag != keep:
            quietly("docker", "image", "rm", tag)


def _stop(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


def main(command: list[str]) -> int:
    me = owner(os.getpid())
    environment = {**os.environ, "CODESPACE_INTEGRATION": "1", "CODESPACE_TEST_OWNER": me}
    signal.signal(signal.SIGTERM, _stop)
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(engine(lambda: remove_older(environment.get("CODESPACE_TEST_IMAGE", ""))))
            with gate():
                tag = image()
                beside = tools(tag)
            environment |= {
                "CODESPACE_TEST_IMAGE": tag,
                "CODESPACE_TEST_TOOLS": beside,
                "CODESPACE_TEST_COMPOSE": compose(beside),
            }
        except NoEngine as reason:
            environment["CODESPACE_NO_ENGINE"] = str(reason)
            print(f"no container engine for the tests: {reason}", file=sys.stderr)
        child = subprocess.Popen(command, env=environment, cwd=ROOT)
        try:
            return child.wait()
        finally:
            if child.poll() is None:
                child.terminate()
                await_end_of({child.pid: "the tests"}, timeout_s=_END_S)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
