"""The stage: a temporary folder with workspaces, a registry and a token, and a real `codespace serve` on it.

Refuses to know: what is shown on it. Called by the demo.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

from gateway.cli.unix_http import UnixConnection
from gateway.demo.narrator import DemoFailed
from gateway.demo.project import Project, make_project

START_S = 30.0
STOP_S = 5.0
"""What `serve` promises for its shutdown."""


@dataclass
class Stage:
    """`demo`, `other`: roots of the two workspaces. `secret`: a file of the other. `log`: the server's lines so far."""

    base: Path
    project: Project
    demo: Path
    secret: Path
    token_file: Path
    socket: Path
    server: asyncio.subprocess.Process
    log: list[str] = field(default_factory=list)

    async def stop(self) -> int:
        """SIGTERM, and the exit status. Raises `DemoFailed` if it takes longer than promised."""
        self.server.send_signal(signal.SIGTERM)
        try:
            return await asyncio.wait_for(self.server.wait(), STOP_S + 1)
        except TimeoutError:
            raise DemoFailed(f"the server did not end within {STOP_S:g} s") from None


@contextlib.asynccontextmanager
async def set_up(*, small: bool) -> AsyncIterator[Stage]:
    """Returns once the server is ready. Everything is removed at the end. Raises `DemoFailed`."""
    base = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="codespace-demo-"))
    server: asyncio.subprocess.Process | None = None
    reading: asyncio.Task[None] | None = None
    try:
        stage = await _prepare(base, small)
        server = stage.server
        ready = asyncio.get_running_loop().create_future()
        reading = asyncio.create_task(_read_log(stage, ready))
        await _await_ready(stage, ready)
        yield stage
    finally:
        if server is not None and server.returncode is None:
            server.kill()
            await server.wait()
        if reading is not None:
            await reading
        await asyncio.to_thread(shutil.rmtree, base, ignore_errors=True)


async def _prepare(base: Path, small: bool) -> Stage:
    def on_disk() -> tuple[Project, Path]:
        (base / "run").mkdir(mode=0o700)
        (base / "ws" / "other").mkdir(parents=True)
        secret = base / "ws" / "other" / "plans.txt"
        secret.write_text(f"plans of another workspace {secrets.token_hex(8)}\n")
        project = make_project(base / "ws" / "demo", small=small)
        with open(os.open(base / "token", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as token:
            token.write(secrets.token_hex(32) + "\n")
        registry = {
            "workspaces": {
                "demo": {
                    "root": str(base / "ws" / "demo"),
                    "profile": "workspace-write",
                    "mounts_read_only": list(project.mounts),
                    "limits": {"timeout_s": 60},
                },
                "other": {"root": str(base / "ws" / "other")},
            }
        }
        (base / "registry.json").write_text(json.dumps(registry, indent=2))
        return project, secret

    project, secret = await asyncio.to_thread(on_disk)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CODESPACE_")}
    command = ["--registry", base / "registry.json", "--socket", base / "run" / "mcp.sock", "--data-dir", base / "data"]
    command += ["--http", "127.0.0.1:0", "--token-file", base / "token"]
    server = await asyncio.create_subprocess_exec(
        *(sys.executable, "-X", "utf8", "-m", "gateway", "serve"),
        *(str(part) for part in command),
        stdin=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env=environment,
        start_new_session=True,
    )
    return Stage(base, project, base / "ws" / "demo", secret, base / "token", base / "run" / "mcp.sock", server)


async def _read_log(stage: Stage, ready: asyncio.Future[None]) -> None:
    assert stage.server.stderr is not None
    async for raw in stage.server.stderr:
        line = raw.decode(errors="replace").rstrip()
        stage.log.append(line)
        if '"event": "ready"' in line and not ready.done():
            ready.set_result(None)
    if not ready.done():
        ready.set_exception(DemoFailed("the server ended before it was ready: " + " / ".join(stage.log[-3:])))


async def _await_ready(stage: Stage, ready: asyncio.Future[None]) -> None:
    try:
        await asyncio.wait_for(ready, START_S)
    except TimeoutError:
        raise DemoFailed(f"the server was not ready within {START_S:g} s: {' / '.join(stage.log[-3:])}") from None

    def ask() -> tuple[int, bytes]:
        connection = UnixConnection(stage.socket, START_S)
        try:
            connection.request("GET", "/readyz")
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    status, body = await asyncio.to_thread(ask)
    if status != 200:
        reasons = "; ".join(json.loads(body)["reasons"])
        raise DemoFailed(f"this machine cannot run commands in the sandbox: {reasons}; see `codespace doctor`")
