"""The image: from `docker run` to ready beside `docker run … true`, and what it takes at rest.

The image is built of this checkout. As root on Debian an engine is started where none answers, and ended; where one
cannot be had it says so instead.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import statistics
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.measure import REPOSITORY, Contender, Options, Table, interleave
from tests.integration.daemon import NoEngine, engine, gate
from tests.integration.engine import image

TITLE = "start of the container, and its memory at rest"
SAMPLES = 20
MORE_AT_MOST_S = 3
RESIDENT_AT_MOST_MB = 200
_UID = os.getuid() or 10001


@contextmanager
def home() -> Iterator[Path]:
    """What an operator mounts, with one workspace."""
    folder = Path(tempfile.mkdtemp(prefix="cs", dir="/tmp"))
    try:
        folder.chmod(0o755)
        for name in ("etc", "ws", "ws/demo", "data", "run"):
            (folder / name).mkdir(mode=0o700 if name == "data" else 0o755)
            os.chown(folder / name, _UID, _UID)
        (folder / "etc/registry.json").write_text('{"workspaces": {"demo": {"root": "/workspaces/demo"}}}')
        yield folder
    finally:
        shutil.rmtree(folder)


def flags(folder: Path) -> list[str]:
    return [
        "--user", f"{_UID}:{_UID}", "--cap-drop", "ALL", "--security-opt", "no-new-privileges",
        "--security-opt", f"seccomp={REPOSITORY / 'image/seccomp.json'}", "--security-opt", "systempaths=unconfined",
        "--read-only", "--tmpfs", "/tmp", "--volume", f"{folder}/etc:/etc/codespace:ro",
        "--volume", f"{folder}/ws:/workspaces", "--volume", f"{folder}/data:/data",
        "--volume", f"{folder}/run:/run/codespace",
    ]  # fmt: skip


@contextmanager
def ready(folder: Path, tag: str) -> Iterator[tuple[float, str]]:
    """(seconds until it said ready, the container's name)."""
    name = f"codespace-bench-{uuid.uuid4().hex[:12]}"
    began = time.perf_counter()
    process = subprocess.Popen(
        ["docker", "run", "--rm", "--name", name, *flags(folder), tag],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    try:
        last = next((line for line in process.stderr if '"ready"' in line or line.startswith("error: ")), "")
        took = time.perf_counter() - began
        if '"ready"' not in last:
            raise RuntimeError(f"{tag} did not start: {last or 'it said nothing'}")
        yield took, name
    finally:
        subprocess.run(["docker", "rm", "--force", name], capture_output=True, check=False, timeout=60)
        process.wait(60)
        process.stderr.close()


def resident_mb(name: str) -> float:
    """Resident memory of every process of the container together; shared pages count for each."""
    listed = subprocess.run(["docker", "top", name, "-eo", "pid,rss"], capture_output=True, text=True, check=True)
    return sum(int(line.split()[1]) for line in listed.stdout.splitlines()[1:]) / 1024


async def measure(options: Options) -> list[Table]:
    """Raises RuntimeError where the container does not start."""
    try:
        with engine(lambda: None):
            with gate():
                tag = image()
            return await _measure(options, tag)
    except NoEngine as reason:
        print(f"\nno figures: {reason}")
        return []


async def _measure(options: Options, tag: str) -> list[Table]:
    resident: list[float] = []

    async def nothing() -> float:
        began = time.perf_counter()
        command = ["docker", "run", "--rm", "--entrypoint", "true", tag]
        await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True)
        return time.perf_counter() - began

    def start() -> float:
        with home() as folder, ready(folder, tag) as (took, name):
            resident.append(resident_mb(name))
            return took

    async def appliance() -> float:
        return await asyncio.to_thread(start)

    contenders = [Contender("docker run … true", nothing), Contender("docker run … serve, ready", appliance)]
    samples = await interleave(contenders, options.samples(SAMPLES), warm_up=1)
    more = statistics.median(samples["docker run … serve, ready"]) - statistics.median(samples["docker run … true"])
    notes = {"start beyond true": f"{more:.2f} s (bound: at most {MORE_AT_MOST_S}: {_verdict(more, MORE_AT_MOST_S)})"}
    memory = {"resident, at rest": resident}
    verdict = _verdict(max(resident), RESIDENT_AT_MOST_MB)
    return [
        Table("start", "s", samples, notes=notes),
        Table("memory", "MB", memory, notes={"bound": f"at most {RESIDENT_AT_MOST_MB} MB: {verdict}"}),
    ]


def _verdict(value: float, bound: float) -> str:
    return "held" if value <= bound else "NOT HELD"
