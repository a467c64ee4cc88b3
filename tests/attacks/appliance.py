"""The whole program under one identity: `codespace serve` on a Unix socket, and calls through its command line.

For what must hold on the real path: gateway, worker, helper. Refuses to know what is being tested.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tests.attacks.harness import REPOSITORY, Identity, Place

CALL_WITHIN_S = 90


@dataclass(frozen=True)
class Appliance:
    """`runner_pid`: the process that owns the commands."""

    identity: Identity
    socket: Path
    runner_pid: int

    def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """The structured result. Fails on a tool error."""
        run = subprocess.run(
            [sys.executable, "-m", "gateway", "call", tool, json.dumps(arguments), "--socket", str(self.socket)],
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            timeout=CALL_WITHIN_S,
            check=False,
            **self.identity.popen_arguments(),
        )
        assert run.returncode == 0, f"{tool}: {run.stdout}{run.stderr}"
        result = json.loads(run.stdout)
        assert isinstance(result, dict)
        return result

    def execute(self, workspace_id: str, command: list[str], *, tty: bool = False) -> str:
        """The id of a command that runs."""
        answer = self.call("exec_command", workspace_id=workspace_id, command=command, tty=tty)
        assert answer["dispatch_status"] == "confirmed"
        return str(answer["process_id"])

    def output_of(self, process_id: str) -> str:
        """All output of a command up to its end."""
        chunks: list[str] = []
        cursor = 0
        while True:
            part = self.call("read_process", process_id=process_id, cursor=cursor, wait_ms=60_000)
            chunks.append(part["chunk"])
            cursor = part["cursor"]
            if part["eof"]:
                return "".join(chunks)

    def managed_children(self) -> list[int]:
        """PID 1 of each running command, as seen from here. That of a sandbox which waits for one has no child."""
        found = []
        for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
            try:
                fields = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
                children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            except OSError:
                continue
            if fields["PPid"] == str(self.runner_pid) and fields["NSpid"].split()[1:] == ["1"] and children:
                found.append(pid)
        return found


def _await_ready(log: IO[str]) -> int | None:
    """Reads the log until the program serves; the worker's pid, if there is one. Fails where the log ends before."""
    worker, seen = None, []
    for line in log:
        seen.append(line)
        record = json.loads(line)
        if record.get("event") == "worker_up":
            worker = int(record["pid"])
        if record.get("event") == "ready":
            return worker
    raise AssertionError(f"the appliance did not get ready: {''.join(seen)}")


@contextmanager
def serving(
    identity: Identity,
    place: Place,
    terms: Mapping[str, Any],
    runner: str,
    neighbours: Mapping[str, Place] | None = None,
) -> Iterator[Appliance]:
    """An appliance with one workspace, `place`. `terms`: the registry's keys. `runner`: uds or in-process.
    `neighbours`: more workspaces, under their ids and without a time limit."""
    base = Path(tempfile.mkdtemp(prefix="codespace-"))
    try:
        identity.own(base)
        registry = base / "registry.json"
        workspaces = {
            name: {"root": str(other.workspace), "profile": "workspace-write", "limits": {"timeout_s": 0}}
            for name, other in (neighbours or {}).items()
        }
        workspaces["place"] = {"root": str(place.workspace), "profile": "workspace-write", **terms}
        registry.write_text(json.dumps({"workspaces": workspaces}))
        identity.own(registry)
        socket = base / "mcp.sock"
        files = ["--registry", str(registry), "--socket", str(socket), "--data-dir", str(base / "data")]
        process = subprocess.Popen(
            [sys.executable, "-m", "gateway", "serve", "--runner", runner, *files],
            cwd=REPOSITORY,
            env={"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "CODESPACE_BAIT": "must not be inherited"},
            stderr=subprocess.PIPE,
            text=True,
            **identity.popen_arguments(),
        )
        assert process.stderr is not None
        watchdog = threading.Timer(CALL_WITHIN_S, process.kill)
        watchdog.start()
        try:
            worker = _await_ready(process.stderr)
            watchdog.cancel()
            drain = threading.Thread(target=process.stderr.read, daemon=True)
            drain.start()
            yield Appliance(identity, socket, worker if worker is not None else process.pid)
            process.terminate()
            assert process.wait(30) == 0
            drain.join(30)
        finally:
            watchdog.cancel()
            process.kill()
            process.wait()
            process.stderr.close()
    finally:
        shutil.rmtree(base)
