"""Lists and calls the tools with an MCP client of another make: the MCP Inspector's command line, over TCP.

Installs the Inspector from the npm registry into build/inspector (and a Node.js beside it where the machine's is too
old), starts the real program on a temporary workspace with a bearer token, and checks what the Inspector prints. Called
by `make inspector`; not part of `make test`, since it needs a registry. Exit status: 0 all as expected, 1 not, 2 it
could not run.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "build" / "inspector"
INSPECTOR = "@modelcontextprotocol/inspector@2.12.0"
NODE = "node@24.21.0"
NODE_MINIMUM = (22, 19)  # the Inspector's own "engines"


class CannotRun(Exception):
    """Something this check needs is missing; the text says what and what to do."""


def run(*command: str, env: dict[str, str] | None = None, allowed: tuple[int, ...] = (0,)) -> str:
    """Standard output of a command that has to end with one of the allowed statuses within two minutes."""
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False, cwd="/")
    if done.returncode not in allowed:
        output = (done.stdout + done.stderr).strip()
        raise CannotRun(f"{command[0]} failed: {' '.join(command[1:])}: status {done.returncode}: {output[-2000:]}")
    return done.stdout


def node_on_path(path: str) -> str | None:
    """A Node.js that is new enough, or None."""
    program = shutil.which("node", path=path)
    if program is None:
        return None
    version = tuple(int(part) for part in run(program, "--version").strip().removeprefix("v").split(".")[:2])
    return program if version >= NODE_MINIMUM else None


def install() -> tuple[str, str]:
    """(node, the Inspector's script); from an earlier run where it is there."""
    path = f"{FOLDER}/node/node_modules/.bin:{os.environ['PATH']}"
    quiet = ("--no-audit", "--no-fund", "--loglevel=error")
    if shutil.which("npm") is None:
        raise CannotRun("no npm: install it (Debian: npm) and run again")
    if node_on_path(path) is None:
        run("npm", "install", *quiet, "--prefix", f"{FOLDER}/node", NODE)
    node = node_on_path(path)
    if node is None:
        raise CannotRun(f"no Node.js of at least {'.'.join(map(str, NODE_MINIMUM))} after installing {NODE}")
    package = FOLDER / "app" / "node_modules" / "@modelcontextprotocol" / "inspector"
    if not package.is_dir():
        environment = {**os.environ, "PATH": path}
        run("npm", "install", *quiet, "--prefix", f"{FOLDER}/app", INSPECTOR, env=environment)
    return node, str(package / "clients" / "launcher" / "build" / "index.js")


@contextmanager
def server(folder: Path) -> Iterator[tuple[str, str]]:
    """The real program on a temporary workspace; yields (URL, token)."""
    workspace, token = folder / "workspace", "inspector-check-token-0123456789"
    workspace.mkdir()
    (workspace / "hello.txt").write_text("hello from the workspace\n")
    (folder / "token").write_text(token)
    (folder / "token").chmod(0o600)
    registry = {"workspaces": {"demo": {"root": str(workspace), "profile": "workspace-write"}}}
    (folder / "registry.json").write_text(json.dumps(registry))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "gateway", "serve", "--registry", str(folder / "registry.json")]
    command += ["--socket", str(folder / "mcp.sock"), "--http", f"127.0.0.1:{port}"]
    command += ["--token-file", str(folder / "token"), "--data-dir", str(folder / "data")]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if '"event": "ready"' in line or '"event":"ready"' in line:
                break
        else:
            raise CannotRun(f"the server did not become ready: {' '.join(command)}")
        yield f"http://127.0.0.1:{port}/mcp", token
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)


class Inspector:
    """The Inspector's command line against one server."""

    def __init__(self, node: str, script: str, url: str, token: str, home: Path) -> None:
        self._command = [
            node,
            script,
            "--cli",
            url,
            "--transport",
            "http",
            "--header",
            f"Authorization: Bearer {token}",
        ]
        self._environment = {"PATH": os.environ["PATH"], "HOME": str(home)}

    def ask(self, *arguments: str) -> dict[str, Any]:
        """The JSON that one call prints."""
        # 5: the tool answered with an error, which is printed like any result.
        answer: dict[str, Any] = json.loads(run(*self._command, *arguments, env=self._environment, allowed=(0, 5)))
        return answer

    def call(self, tool: str, **arguments: object) -> dict[str, Any]:
        """Structured content of one tool call."""
        pairs = [f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in arguments.items()]
        extra = ["--tool-arg", *pairs] if pairs else []
        answer = self.ask("--method", "tools/call", "--tool-name", tool, *extra)
        content: dict[str, Any] = answer["structuredContent"]
        return content


def check(inspector: Inspector) -> list[str]:
    """What was seen, one line each. Raises AssertionError where it is not what the interface promises."""
    listed = inspector.ask("--method", "tools/list", "--strict")["tools"]
    names = [tool["name"] for tool in listed]
    assert {"workspace_info", "read", "find", "exec_command", "process_status"} <= set(names), names
    info = inspector.call("workspace_info")
    assert info["internal_model_calls"] is False
    assert sorted(info["tools_exposed"]) == sorted(names)
    content = inspector.call("read", workspace_id="demo", path="hello.txt")
    assert content["content"] == "hello from the workspace\n"
    failed = inspector.call("read", workspace_id="demo", path="absent.txt")
    assert failed["error"]["code"] == "FILE_NOT_FOUND", failed
    started = inspector.call("exec_command", workspace_id="demo", command=["sh", "-c", "echo from the sandbox; id -u"])
    status = inspector.call("process_status", process_id=started["process_id"], wait_ms=20_000)
    assert (status["state"], status["command_exit"]) == ("exited", {"code": 0}), status
    output = inspector.call("read_process", process_id=started["process_id"])
    assert output["chunk"].startswith("from the sandbox\n"), output
    return [
        f"tools/list: {len(names)} tools, schemas strict",
        "workspace_info, read, exec_command, a tool error: as promised",
    ]


def main() -> int:
    """Runs the check. Returns the exit status."""
    try:
        node, script = install()
        with tempfile.TemporaryDirectory(prefix="cs-inspector-") as folder, server(Path(folder)) as (url, token):
            lines = check(Inspector(node, script, url, token, Path(folder)))
    except CannotRun as error:
        print(f"error: inspector check not run: {error}", file=sys.stderr)
        return 2
    except AssertionError as error:
        print(f"error: inspector check failed: {error}", file=sys.stderr)
        return 1
    for line in [INSPECTOR, *lines]:
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
