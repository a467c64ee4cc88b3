"""The snippets of docs/connect.md, as they stand there, against a container of the image.

Only names are put in place of those of the page: the container's, the image's, the socket's path, ports that are free.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import tempfile
import tomllib
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.gateway.transport.serving import Reply, modern_call
from tests.integration.containers import OWNED, READY_S, ROOT, RUN_S, UID, Appliance, flags, home, image, volumes
from tests.integration.daemon import listed

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300), pytest.mark.covers("NETIF-1", "NETIF-2")]

PAGE = (ROOT / "docs/connect.md").read_text(encoding="utf-8")
HELLO = {
    "jsonrpc": "2.0", "id": 1, "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "0"}},
}  # fmt: skip


def section(title: str) -> str:
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", PAGE, flags=re.DOTALL | re.MULTILINE)
    assert found is not None, title
    return found[1]


def fenced(language: str, text: str = PAGE) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


def indented(text: str) -> list[str]:
    """Blocks of lines that are indented by four spaces, without these."""
    blocks = re.findall(r"(?:^    .*\n(?:\n(?=    ))?)+", text, flags=re.MULTILINE)
    return [re.sub(r"^    ", "", block, flags=re.MULTILINE) for block in blocks]


def put(text: str, **names: str) -> str:
    """Replaces each name, which must be there, by what stands for it in the test."""
    for name, value in names.items():
        assert name in text, name
        text = text.replace(name, value)
    return text


def shell(script: str, folder: Path, **environment: str) -> str:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script], cwd=folder, env={**os.environ, **environment}, text=True,
        stdin=subprocess.DEVNULL, capture_output=True, timeout=RUN_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, (script, done.stdout, done.stderr)
    return done.stdout


def test_each_line_for_a_shell_answers(appliance: Appliance) -> None:
    (block,) = indented(section("A shell"))
    lines = block.splitlines()
    assert len(lines) == 3
    answers = []
    for line in lines:
        line = line.replace("deploy/local/run/mcp.sock", str(appliance.socket))
        answers.append(shell(line.replace("exec codespace ", f"exec {appliance.name} "), appliance.folder))
    assert json.loads(answers[0])["ready"] is True
    assert [entry["workspace_id"] for entry in json.loads(answers[1])["workspaces"]] == ["demo"]
    status = appliance.ended(json.loads(answers[2])["process_id"])
    assert status["command_exit"] == {"code": 0}


def test_the_python_client_prints_the_output_of_its_command(appliance: Appliance) -> None:
    (program,) = fenced("python")
    done = subprocess.run(
        [sys.executable, "-c", program, str(appliance.socket)],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=RUN_S, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "Linux\n"), done.stderr


def programs() -> list[list[str]]:
    """Command lines of the host configurations."""
    documents = [json.loads(block) for block in fenced("json")] + [tomllib.loads(block) for block in fenced("toml")]
    servers = [next(iter(document.values()))["codespace"] for document in documents]
    return [[server["command"], *server["args"]] for server in servers]


@pytest.mark.parametrize("command", programs(), ids=["Claude Desktop, Cursor", "VS Code", "Codex"])
def test_what_a_host_is_told_to_start_speaks_mcp(appliance: Appliance, command: list[str]) -> None:
    assert command[3] == "codespace"
    done = subprocess.run(
        [*command[:3], appliance.name, *command[4:]], input=json.dumps(HELLO) + "\n", capture_output=True, text=True,
        timeout=RUN_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[0])["result"]["serverInfo"]["name"] == "codespace"


class _Unix(http.client.HTTPConnection):
    def __init__(self, path: Path, host: str) -> None:
        super().__init__(host, timeout=RUN_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def ask(connection: http.client.HTTPConnection, token: str, **headers: str) -> Reply:
    """`workspace_info`, with a token."""
    body, plain = modern_call("workspace_info", {})
    try:
        connection.request("POST", "/mcp", body, {**plain, "Authorization": f"Bearer {token}", **headers})
        response = connection.getresponse()
        return Reply(response.status, dict(response.getheaders()), response.read())
    finally:
        connection.close()


@contextmanager
def behind_a_proxy() -> Iterator[tuple[Path, Path, str]]:
    """(folder, the proxy's socket, the container's name), as the page says, token and all."""
    start, proxy = indented(section("TCP behind a reverse proxy"))
    name = f"codespace-test-{uuid.uuid4().hex[:12]}"
    beside = f"{name}-proxy"
    with home() as folder, tempfile.TemporaryDirectory(prefix="cs", dir="/tmp") as place:
        words = [*OWNED, "--detach", "--name", name, *flags(), *volumes(folder)]
        script = put(
            start, **{"…": shlex.join(words), "codespace:latest": image(), "10001:10001": f"{UID}:{UID}",
                      "127.0.0.1:8080:8080": "127.0.0.1::8080"},
        )  # fmt: skip
        (Path(place) / "nginx.conf").write_text(
            "daemon off; pid /tmp/nginx.pid; error_log stderr; events {}\n"
            "http { access_log off; client_body_temp_path /tmp/body; proxy_temp_path /tmp/proxy; "
            "fastcgi_temp_path /tmp/fastcgi; uwsgi_temp_path /tmp/uwsgi; scgi_temp_path /tmp/scgi;\n"
            "server { listen unix:/proxy/proxy.sock; server_name codespace.example.org;\n" + proxy + "} }\n"
        )
        try:
            shell(script, folder)
            running = ["docker", "run", *OWNED, "--detach", "--name", beside, "--network", f"container:{name}"]
            shell(
                shlex.join([*running, "--volume", f"{place}:/proxy", os.environ["CODESPACE_TEST_TOOLS"],
                            "nginx", "-c", "/proxy/nginx.conf"]), folder,
            )  # fmt: skip
            await_tcp(name)
            yield folder, Path(place) / "proxy.sock", name
        finally:
            for each in (beside, name):
                subprocess.run(["docker", "rm", "--force", each], capture_output=True, timeout=RUN_S, check=False)


def await_tcp(name: str) -> None:
    """Until the appliance says that it is ready; what it says otherwise is the failure."""
    with subprocess.Popen(
        ["timeout", str(int(READY_S)), "docker", "logs", "--follow", name],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    ) as log:  # fmt: skip
        assert log.stdout is not None
        said = []
        for line in log.stdout:
            said.append(line)
            if '"ready"' in line:
                break
        log.kill()
    assert '"ready"' in said[-1], said


def test_a_client_with_the_token_is_served_through_the_proxy_of_the_page_and_no_other() -> None:
    with behind_a_proxy() as (folder, proxy, name):
        token = (folder / "secrets/token").read_text().strip()
        served = ask(_Unix(proxy, "codespace.example.org"), token)
        assert served.status == 200, served
        assert [w["workspace_id"] for w in served.json()["result"]["structuredContent"]["workspaces"]] == ["demo"]
        assert ask(_Unix(proxy, "codespace.example.org"), "wrong").status == 401
        assert ask(_Unix(proxy, "elsewhere.example.org"), token).status in (403, 421)
        # The port that the page publishes, which the proxy on the machine uses.
        (published,) = listed("port", name, "8080/tcp")
        port = int(published.rpartition(":")[2])
        direct = ask(http.client.HTTPConnection("127.0.0.1", port, timeout=RUN_S), token, Host="codespace.example.org")
        assert direct.status == 200, direct
        assert os.stat(folder / "secrets/token").st_mode & 0o777 == 0o600
