"""Starts the two servers that are compared, each as its own program: ours as an operator does, and the bare SDK's.

Both log to files or not at all, live in one scratch directory on a real disk, and are ended with the benchmark.
"""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.callers import environment

START_S = 30.0
WORKSPACE_ID = "bench"
SDK_SERVER = (sys.executable, "-m", "benchmarks.sdk_server")


@dataclass(frozen=True)
class Served:
    """`stdio`: commands that serve the same on their standard input and output, a process each."""

    unix: Path
    tcp: tuple[str, int]
    stdio: tuple[tuple[str, ...], tuple[str, ...]]


@dataclass(frozen=True)
class Servers:
    ours: Served
    sdk: Served
    root: Path
    """Of our workspace, on the disk that also holds our data directory."""
    scratch: Path
    gateway: int
    """The pid of ours."""


@dataclass(frozen=True)
class Appliance:
    """One of ours alone, on a Unix socket. `roots`: workspace id to its directory. `pid`: of the gateway."""

    unix: Path
    roots: dict[str, Path]
    pid: int


@contextmanager
def appliance(workspaces: int, **settings: str) -> Iterator[Appliance]:
    """`settings`: of the environment, without their prefix. Raises `RuntimeError` where it does not come up."""
    base = Path(tempfile.mkdtemp(prefix="codespace-bench-", dir="/var/tmp"))
    try:
        (base / "run").mkdir(mode=0o700)
        roots = {f"{WORKSPACE_ID}-{number}": base / f"ws-{number}" for number in range(workspaces)}
        for root in roots.values():
            root.mkdir()
        entries = {name: {"root": str(root), "profile": "workspace-write"} for name, root in roots.items()}
        (base / "registry.json").write_text(json.dumps({"workspaces": entries}))
        command = [sys.executable, "-X", "utf8", "-m", "gateway", "serve", "--registry", str(base / "registry.json")]
        command += ["--data-dir", str(base / "data"), "--socket", str(base / "run" / "mcp.sock")]
        with ExitStack() as ends:
            given = {f"CODESPACE_{name}": value for name, value in settings.items()}
            process = _start(command, base / "serve.log", ends, more=given)
            _ready_line(process, base / "serve.log")
            yield Appliance(base / "run" / "mcp.sock", roots, process.pid)
    finally:
        shutil.rmtree(base)


@contextmanager
def servers() -> Iterator[Servers]:
    """Both, listening. Raises `RuntimeError` where one does not come up, with the end of its log."""
    base = Path(tempfile.mkdtemp(prefix="codespace-bench-", dir="/var/tmp"))
    try:
        (base / "run").mkdir(mode=0o700)
        with ExitStack() as ends:
            ours, pid = _ours(base, ends)
            sdk = _sdk(base, ends)
            yield Servers(ours, sdk, base / "ws", base, pid)
    finally:
        shutil.rmtree(base)


def _ours(base: Path, ends: ExitStack) -> tuple[Served, int]:
    path = base / "run" / "mcp.sock"
    log = base / "serve.log"
    process = _start([*_gateway(base, "serve", "ws"), "--socket", str(path), "--http", "127.0.0.1:0"], log, ends)
    host, _, port = _ready_line(process, log)["http"][0].removeprefix("http://").rpartition(":")
    # A root and a data directory belong to one process at a time.
    served = Served(path, (host, int(port)), (_gateway(base, "stdio", "ws-1"), _gateway(base, "stdio", "ws-2")))
    return served, process.pid


def _gateway(base: Path, command: str, root: str) -> tuple[str, ...]:
    """A command of ours with a workspace and a data directory of its own."""
    (base / root).mkdir()
    registry = base / f"{root}.json"
    entry = {"root": str(base / root), "profile": "workspace-write"}
    registry.write_text(json.dumps({"workspaces": {WORKSPACE_ID: entry}}))
    options = ("--registry", str(registry), "--data-dir", str(base / f"{root}-data"))
    return (sys.executable, "-X", "utf8", "-m", "gateway", command, *options)


def _ready_line(process: subprocess.Popen[bytes], log: Path) -> dict[str, list[str]]:
    deadline = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < deadline:
        for line in log.read_text().splitlines():
            if '"event": "ready"' in line:
                found: dict[str, list[str]] = json.loads(line)
                return found
        time.sleep(0.02)
    raise RuntimeError(f"the appliance did not come up: {log.read_text()[-1000:]}")


def _sdk(base: Path, ends: ExitStack) -> Served:
    path = base / "run" / "sdk.sock"
    listener = ends.enter_context(socket.create_server(("127.0.0.1", 0)))
    number = listener.fileno()
    processes = [
        _start([*SDK_SERVER, "--uds", str(path)], base / "sdk-unix.log", ends),
        _start([*SDK_SERVER, "--tcp-fd", str(number)], base / "sdk-tcp.log", ends, (number,)),
    ]
    deadline = time.monotonic() + START_S
    while not _accepts(path):
        if any(process.poll() is not None for process in processes) or time.monotonic() > deadline:
            raise RuntimeError(f"the SDK server did not come up: {(base / 'sdk-unix.log').read_text()[-1000:]}")
        time.sleep(0.02)
    host, port = listener.getsockname()[:2]
    return Served(path, (host, port), ((*SDK_SERVER, "--stdio"),) * 2)


def _accepts(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(str(path)) == 0


def _start(
    command: Sequence[str],
    log: Path,
    ends: ExitStack,
    pass_fds: Sequence[int] = (),
    more: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    given = {**environment(), **(more or {})}
    with open(log, "wb") as stream:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, env=given, pass_fds=pass_fds
        )
    ends.callback(_end, process)
    return process


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(START_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
