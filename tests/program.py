"""The real program as a child of a test: `codespace serve` on a temporary registry, called over its Unix socket."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.gateway.transport.serving import modern_call, request
from tests.leaks import await_end_of, children_of

ROOT = Path(__file__).resolve().parents[1]
END_S = 30.0


class Refused(Exception):
    """A tool error; `code` and `details` as answered."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        super().__init__(f"{error['code']}: {error['message']}")
        self.code: str = error["code"]
        self.details: Mapping[str, Any] = error["details"]
        self.approval_id: str | None = error.get("approval_id")


@dataclass
class Program:
    """`folder` holds the registry, the socket, the data directory and `tmp`, which is the program's TMPDIR."""

    folder: Path
    process: subprocess.Popen[str]
    command: list[str]
    environment: dict[str, str]
    log: list[dict[str, Any]] = field(default_factory=list)
    ready: threading.Event = field(default_factory=threading.Event)
    _reader: threading.Thread = field(init=False, repr=False)

    @property
    def workspace(self) -> Path:
        return self.folder / "workspace"

    def call(self, tool: str, /, **arguments: Any) -> dict[str, Any]:
        """Structured content of one tool call. Raises Refused for a tool error."""
        body, headers = modern_call(tool, arguments)
        result = request(self.folder / "mcp.sock", "POST", "/mcp", body, headers).json()["result"]
        if result.get("isError"):
            raise Refused(result["structuredContent"]["error"])
        content: dict[str, Any] = result["structuredContent"]
        return content

    def run(self, *argv: str, tty: bool = False) -> dict[str, Any]:
        """Runs a command to its end; its status."""
        process_id = self.call("exec_command", workspace_id="demo", command=list(argv), tty=tty)["process_id"]
        return self.ended(process_id)

    def ended(self, process_id: str) -> dict[str, Any]:
        """Status of a command once it is over; each wait also ends with new output."""
        while (status := self.call("process_status", process_id=process_id, wait_ms=10_000))["state"] == "running":
            pass
        return status

    def family(self) -> dict[int, str]:
        """The program and everything below it: pid to state and command line, zombies included."""
        found = {self.process.pid: "the program"}
        waiting = [self.process.pid]
        while waiting:
            children = children_of(waiting.pop())
            found |= children
            waiting += children
        return found

    def stop(self) -> tuple[int, dict[int, str]]:
        """SIGTERM; (exit status, what of the family is alive afterwards)."""
        family = self.family()
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(END_S)
        return status, self.await_end(family)

    def restart(self, number: signal.Signals) -> None:
        """Ends it by this signal and starts it again on the same folder; returns once it is ready."""
        self.process.send_signal(number)
        self.process.wait(END_S)
        self._reader.join(END_S)
        assert self.process.stderr is not None
        self.process.stderr.close()
        self.ready = threading.Event()
        self.process = subprocess.Popen(self.command, cwd=ROOT, env=self.environment, stderr=subprocess.PIPE, text=True)
        self.follow_log()

    def follow_log(self) -> None:
        """Reads the log from now on and waits for it to say ready."""
        self._reader = threading.Thread(target=self.read_log)
        self._reader.start()
        assert self.ready.wait(END_S), self.log
        assert self.process.poll() is None, self.log

    def close(self) -> None:
        self.process.kill()
        self.process.wait(END_S)
        self._reader.join(END_S)
        assert self.process.stderr is not None
        self.process.stderr.close()

    @staticmethod
    def await_end(family: dict[int, str]) -> dict[int, str]:
        """Waits for processes to end; those that do not."""
        return await_end_of(family, timeout_s=END_S)

    def read_log(self) -> None:
        """Reads the log to its end, on a thread of its own, so that the program never waits for its reader."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(json.loads(line) if line.startswith("{") else {"event": line.strip()})
            if self.log[-1]["event"] == "ready":
                self.ready.set()
        self.ready.set()


@contextmanager
def running_program(*more: str, **workspace: Any) -> Iterator[Program]:
    """A ready program with one workspace, `demo`; keyword arguments are its registry entry's, `more` the command
    line's. Killed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="cs"))
    for name in ("workspace", "tmp", "data"):
        (folder / name).mkdir(mode=0o700)
    entry = {"root": str(folder / "workspace"), "profile": "workspace-write", **workspace}
    (folder / "registry.json").write_text(json.dumps({"workspaces": {"demo": entry}}))
    command = [sys.executable, "-m", "gateway", "serve", "--registry", str(folder / "registry.json")]
    command += ["--socket", str(folder / "mcp.sock"), "--data-dir", str(folder / "data"), *more]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("CODESPACE_")}
    environment["TMPDIR"] = str(folder / "tmp")
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)
    program = Program(folder, process, command, environment)
    try:
        program.follow_log()
        yield program
    finally:
        program.close()
        shutil.rmtree(folder)
