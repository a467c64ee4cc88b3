"""Containers of the image for tests: flags as data, so that a test can take one away, and a serving appliance.

Containers are run attached, so that their log is read as it is written and their exit status is that of `docker run`.
Whoever runs the tests owns the workspaces, or uid 10001 where that is root. Called by the tests of this folder.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.gateway.transport.serving import modern_call, request
from tests.integration.daemon import OWNER
from tests.program import Refused

ROOT = Path(__file__).resolve().parents[2]
UID = os.getuid() or 10001
READY_S = 90.0
RUN_S = 120.0
OWNED = ("--label", f"{OWNER}={os.environ.get('CODESPACE_TEST_OWNER', '')}")
"""By which what a killed run leaves is found by the next."""

FLAGS: Mapping[str, tuple[str, ...]] = {
    "user": ("--user", f"{UID}:{UID}"),
    "capabilities": ("--cap-drop", "ALL"),
    "no-new-privileges": ("--security-opt", "no-new-privileges"),
    "seccomp": ("--security-opt", f"seccomp={ROOT / 'image' / 'seccomp.json'}"),
    "proc": ("--security-opt", "systempaths=unconfined"),
    "read-only": ("--read-only",),
    "tmp": ("--tmpfs", "/tmp"),
}
"""What the image needs and no more, by name."""


def image() -> str:
    return os.environ["CODESPACE_TEST_IMAGE"]


def flags(**changed: Sequence[str]) -> list[str]:
    """All flags, with some replaced; an empty one is left out. Underscores stand for dashes."""
    wanted: dict[str, Sequence[str]] = {**FLAGS}
    for name, value in changed.items():
        key = name.replace("_", "-")
        assert key in FLAGS, name
        wanted[key] = value
    return [word for value in wanted.values() for word in value]


@dataclass(frozen=True)
class Ended:
    status: int
    output: str
    errors: str


def run(*command: str, options: Sequence[str] | None = None, timeout_s: float = RUN_S) -> Ended:
    """One container to its end. `options`: `flags()` where not given."""
    name = f"codespace-test-{uuid.uuid4().hex[:12]}"
    given = flags() if options is None else list(options)
    try:
        done = subprocess.run(
            ["docker", "run", "--rm", "--name", name, *OWNED, *given, image(), *command],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        subprocess.run(["docker", "rm", "--force", name], capture_output=True, timeout=RUN_S, check=False)
        raise
    return Ended(done.returncode, done.stdout, done.stderr)


@contextmanager
def home(**workspace: Any) -> Iterator[Path]:
    """`etc`, `workspaces`, `data` and `run` as an operator prepares them, with one workspace, `demo`. Removed after."""
    folder = Path(tempfile.mkdtemp(prefix="cs", dir="/tmp"))
    try:
        folder.chmod(0o755)
        for name in ("etc", "workspaces", "workspaces/demo", "data", "run"):
            (folder / name).mkdir(mode=0o700 if name == "data" else 0o755)
            os.chown(folder / name, UID, UID)
        patient = {"limits": {"timeout_s": 120}}
        write_registry(folder, demo={"root": "/workspaces/demo", "profile": "workspace-write", **patient, **workspace})
        yield folder
    finally:
        shutil.rmtree(folder)


def write_registry(folder: Path, **workspaces: Any) -> None:
    """Replaces the file, as an editor does: only a mounted directory shows that inside."""
    new = folder / "etc" / "registry.new"
    new.write_text(json.dumps({"workspaces": workspaces}))
    new.chmod(0o644)
    new.replace(folder / "etc" / "registry.json")


def volumes(folder: Path) -> list[str]:
    mounted = (
        ("etc", "/etc/codespace:ro"),
        ("workspaces", "/workspaces"),
        ("data", "/data"),
        ("run", "/run/codespace"),
    )
    return [word for name, place in mounted for word in ("--volume", f"{folder / name}:{place}")]


@dataclass
class Appliance:
    """`folder`: as `home` makes it. `name`: of the container. `process`: `docker run`; `log`: its lines."""

    folder: Path
    name: str
    process: subprocess.Popen[str] | None = None
    log: list[dict[str, Any]] = field(default_factory=list)
    ready: threading.Event = field(default_factory=threading.Event)

    @property
    def socket(self) -> Path:
        return self.folder / "run" / "mcp.sock"

    @property
    def workspace(self) -> Path:
        return self.folder / "workspaces" / "demo"

    def call(self, tool: str, /, **arguments: Any) -> dict[str, Any]:
        """Structured content of one tool call. Raises Refused for a tool error."""
        body, headers = modern_call(tool, arguments)
        result = request(self.socket, "POST", "/mcp", body, headers, timeout_s=RUN_S).json()["result"]
        if result.get("isError"):
            raise Refused(result["structuredContent"]["error"])
        content: dict[str, Any] = result["structuredContent"]
        return content

    def run(self, *argv: str) -> dict[str, Any]:
        """Runs a sandboxed command to its end; its status."""
        process_id = self.call("exec_command", workspace_id="demo", command=list(argv))["process_id"]
        return self.ended(process_id)

    def ended(self, process_id: str) -> dict[str, Any]:
        """The status of a command once it is over; each wait also ends with new output."""
        while (status := self.call("process_status", process_id=process_id, wait_ms=5_000))["state"] == "running":
            pass
        return status

    def get(self, path: str) -> int:
        return request(self.socket, "GET", path).status

    def is_ready(self) -> bool:
        try:
            return self.get("/readyz") == 200
        except OSError:
            return False

    def inside(self, *command: str, user: int = UID, stdin: bytes = b"") -> Ended:
        """A command beside the appliance in its container, outside every sandbox."""
        done = subprocess.run(
            ["docker", "exec", "--interactive", "--user", str(user), self.name, *command],
            input=stdin, capture_output=True, timeout=RUN_S, check=False,
        )  # fmt: skip
        return Ended(done.returncode, done.stdout.decode(), done.stderr.decode())

    def signal(self, name: str) -> None:
        subprocess.run(["docker", "kill", "--signal", name, self.name], capture_output=True, timeout=RUN_S, check=True)

    def output_of(self, *argv: str) -> str:
        """All output of one sandboxed command."""
        process_id = self.call("exec_command", workspace_id="demo", command=list(argv))["process_id"]
        text: str = ""
        cursor: int = 0
        while True:
            part = self.call("read_process", process_id=process_id, cursor=cursor, wait_ms=5_000)
            text, cursor = text + str(part["chunk"]), int(part["cursor"])
            if part["eof"]:
                # The end of the output may be seen before the exit, and until then the workspace is the command's.
                self.ended(process_id)
                return text

    def wait(self) -> int:
        """The exit status of the container, which is ending."""
        assert self.process is not None
        return self.process.wait(READY_S)

    def read_log(self) -> None:
        """To its end, on a thread of its own, so that the appliance never waits for its reader."""
        assert self.process is not None
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(json.loads(line) if line.startswith("{") else {"event": line.strip()})
            if self.log[-1]["event"] == "ready":
                self.ready.set()
        self.ready.set()


@contextmanager
def serving(folder: Path, *options: str, given: Sequence[str] | None = None) -> Iterator[Appliance]:
    """A ready appliance. `given`: flags in place of `flags()`. Removed at the end."""
    name = f"codespace-test-{uuid.uuid4().hex[:12]}"
    wanted = [*(flags() if given is None else given), *volumes(folder), *options]
    process = subprocess.Popen(
        ["docker", "run", "--rm", "--name", name, *OWNED, *wanted, image()],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    appliance = Appliance(folder, name, process)
    reader = threading.Thread(target=appliance.read_log)
    reader.start()
    try:
        assert appliance.ready.wait(READY_S), appliance.log
        assert process.poll() is None, appliance.log
        assert "ready" in {line["event"] for line in appliance.log}, appliance.log
        yield appliance
    finally:
        subprocess.run(["docker", "rm", "--force", name], capture_output=True, timeout=RUN_S, check=False)
        process.wait(RUN_S)
        reader.join(READY_S)
        assert process.stderr is not None
        process.stderr.close()
