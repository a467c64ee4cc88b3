"""The commands as a person or a host runs them, in the real sandbox."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.demo.narrator import DemoFailed, Narrator
from gateway.demo.project import SUITES
from tests.gateway.transport.serving import request, short_directory
from tests.leaks import await_end_of, children_of
from tests.program import running_program

pytestmark = pytest.mark.kernel("namespaces")
PROGRAM = (sys.executable, "-m", "gateway")
WAIT_S = 15
DAEMON = "setsid sleep 86402 & cat"


@pytest.fixture
def folder() -> Iterator[Path]:
    with short_directory() as path:
        (path / "ws").mkdir()
        (path / "ro").mkdir()
        (path / "ws" / "hello.txt").write_text("hello\n")
        workspaces = {
            "demo": {"root": str(path / "ws"), "profile": "workspace-write"},
            "ro": {"root": str(path / "ro")},
        }
        (path / "registry.json").write_text(json.dumps({"workspaces": workspaces}))
        yield path


def environment(folder: Path) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("CODESPACE_")}
    return {**kept, "CODESPACE_REGISTRY": str(folder / "registry.json"), "CODESPACE_DATA_DIR": str(folder / "data")}


def codespace(folder: Path, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PROGRAM, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        env=environment(folder),
        check=False,
    )


# --- exec -------------------------------------------------------------------------------------------------------------
@pytest.mark.covers("BOX-1", "BOX-2", "NETIF-1")
@pytest.mark.parametrize(
    ("script", "status", "out", "err"),
    [
        ("echo out; echo err >&2; exit 5", 5, "out\n", "err\n"),
        ("cat", 0, "what was given\n", ""),
        ("kill -9 $$", 137, "", ""),
        ("kill -TERM $$", 143, "", ""),
        ("exit 125", 125, "", ""),
        ("echo '{\"failed\": {}}' >&2; exit 125", 125, "", '{"failed": {}}\n'),
        ("printf '{\"fa' >&2", 0, "", '{"fa'),
        ("cat /proc/self/status | grep -c 'CapEff.*0000000000000000'; tty; ls /root 2>&1 | wc -l", 0, None, ""),
    ],
)
def test_exec_streams_a_command_and_exits_with_its_status(
    folder: Path, script: str, status: int, out: str | None, err: str
) -> None:
    done = codespace(folder, "exec", "demo", "--", "/bin/sh", "-c", script, stdin="what was given\n")
    assert (done.returncode, done.stderr) == (status, err)
    if out is None:
        assert done.stdout.splitlines()[:2] == ["1", "not a tty"]
    else:
        assert done.stdout == out


@pytest.mark.covers("POL-1", "PROC-8")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("ro", "--", "true"), "error: UNAUTHORIZED: ro: "),
        (("nope", "--", "true"), "error: WORKSPACE_NOT_FOUND: nope: "),
        (("demo", "--", "no-such-program"), "error: PROCESS_SPAWN_FAILED (exec, ENOENT): "),
        (("demo", "--tty", "--", "no-such-program"), "error: PROCESS_SPAWN_FAILED (exec, ENOENT): "),
        (("demo", "--", "/etc/passwd"), "error: PROCESS_SPAWN_FAILED (exec, EACCES): "),
        (("demo", "--", ""), "error: INVALID_COMMAND: demo: "),
    ],
)
def test_exec_that_runs_nothing_says_why(folder: Path, arguments: tuple[str, ...], said: str) -> None:
    done = codespace(folder, "exec", *arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(said)
    assert "Traceback" not in done.stderr


@pytest.mark.covers("PROC-2")
def test_exec_with_a_terminal_has_our_size_follows_it_and_passes_keys(folder: Path) -> None:
    script = "stty size; while read x; do stty size; echo answered; test $x = end && exit 7; done"
    pid, master = pty.fork()
    if pid == 0:
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("4H", 40, 100, 0, 0))
        os.execve(
            sys.executable, [*PROGRAM, "exec", "demo", "--tty", "--", "/bin/sh", "-c", script], environment(folder)
        )
    try:
        _read_until(master, "40 100")
        fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("4H", 50, 120, 0, 0))
        seen = ""
        while "50 120" not in seen:  # the news of the size and a key are two ways in
            os.write(master, b"more\r")
            seen = _read_until(master, "answered")
        os.write(master, b"end\r")
        _read_until(master, "answered")
        status, pid = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 0
        assert status == 7
    finally:
        if pid:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        os.close(master)


def _read_until(fd: int, text: str) -> str:
    seen = ""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    while text not in seen:
        assert poll.poll(WAIT_S * 1000), f"no {text!r} in {seen!r}"
        try:
            data = os.read(fd, 4096)
        except OSError:
            data = b""
        assert data, f"ended without {text!r}: {seen!r}"
        seen += data.decode()
    return seen


@pytest.mark.covers("PROC-7", "BOX-2")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_exec_that_is_ended_leaves_nothing(folder: Path, number: signal.Signals) -> None:
    script = "( ( setsid sleep 86401 & ) & ); echo ready; sleep 86401"
    with subprocess.Popen(
        [*PROGRAM, "exec", "demo", "--", "/bin/sh", "-c", script],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        env=environment(folder),
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == b"ready\n"
        family, waiting = dict[int, str](), [program.pid]
        while waiting:
            below = children_of(waiting.pop())
            family |= below
            waiting += below
        assert sum("sleep 86401" in line for line in family.values()) >= 2
        program.send_signal(number)
        program.wait(WAIT_S)
    assert await_end_of(family, timeout_s=WAIT_S) == {}


@pytest.mark.covers("LEASE-2")
def test_exec_is_refused_while_an_appliance_serves_the_root(folder: Path) -> None:
    with running_program() as program:
        (folder / "registry.json").write_text((program.folder / "registry.json").read_text())
        done = codespace(folder, "exec", "demo", "--", "true")
    assert done.returncode == 1
    assert f"is locked (flock) by process {program.process.pid}" in done.stderr


# --- doctor and registry ----------------------------------------------------------------------------------------------
@pytest.mark.covers("BOX-4", "BOX-8")
def test_doctor_lists_each_protection_as_text_and_as_json(folder: Path) -> None:
    done = codespace(folder, "doctor", "--json")
    reports: dict[str, Any] = json.loads(done.stdout)
    assert (done.returncode, done.stderr, set(reports)) == (0, "", {"demo", "ro"})
    protections = {p["name"]: p for p in reports["demo"]["protections"]}
    for name in ("user_namespace", "mount_namespace", "pid_namespace", "seccomp", "capabilities", "no_new_privs"):
        assert (protections[name]["state"], protections[name]["required"]) == ("active", True), name
    assert {p["state"] for p in protections.values()} <= {"active", "degraded", "off"}
    assert all("remedy" in p or "detail" in p for p in protections.values() if p["state"] != "active")
    text = codespace(folder, "doctor")
    assert text.returncode == 0
    for name, protection in protections.items():
        assert any(name in line and protection["state"] in line for line in text.stdout.splitlines()), name


@pytest.mark.covers("ENV-1")
def test_doctor_promises_nothing_for_an_environment_without_a_backend(folder: Path) -> None:
    registry = json.loads((folder / "registry.json").read_text())
    registry["environments"] = {"box": {"kind": "linux-container"}}
    registry["workspaces"]["ro"]["environment"] = "box"
    (folder / "box.json").write_text(json.dumps(registry))
    done = codespace(folder, "doctor", "--json", "--registry", str(folder / "box.json"))
    assert json.loads(done.stdout)["ro"] == {"available": False, "environment": "linux-container"}
    text = codespace(folder, "doctor", "--registry", str(folder / "box.json"))
    assert (done.returncode, text.returncode) == (0, 0)
    assert "ro: linux-container has no backend here: every tool is refused" in text.stdout.splitlines()
    assert text.stdout.count("commands run") == 1


@pytest.mark.covers("POL-5")
def test_registry_check_prints_what_is_granted(folder: Path) -> None:
    done = codespace(folder, "registry", "check", str(folder / "registry.json"))
    assert (done.returncode, done.stderr) == (0, "")
    assert "workspace-write: read yes, write yes, exec yes" in done.stdout
    assert "read-only: read yes, write no, exec no" in done.stdout


# --- the appliance ----------------------------------------------------------------------------------------------------
@pytest.mark.covers("NETIF-1", "PROC-7")
@pytest.mark.parametrize("runner", ["uds", "in-process"])
def test_stdio_serves_runs_and_leaves_nothing(folder: Path, runner: str) -> None:
    meta = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}

    def call(request_id: int, tool: str, **arguments: Any) -> str:
        params = {"name": tool, "arguments": arguments, "_meta": meta}
        return json.dumps({"jsonrpc": "2.0", "id": request_id, "method": "tools/call", "params": params}) + "\n"

    with subprocess.Popen(
        [*PROGRAM, "stdio", "--runner", runner],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(folder),
    ) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        program.stdin.write(call(1, "exec_command", workspace_id="demo", command=["sh", "-c", DAEMON]))
        program.stdin.flush()
        started = json.loads(program.stdout.readline())["result"]["structuredContent"]
        assert started["dispatch_status"] == "confirmed"
        family, waiting = dict[int, str](), [program.pid]
        while waiting:
            below = children_of(waiting.pop())
            family |= below
            waiting += below
        assert family
        out, err = program.communicate(timeout=WAIT_S)
    assert (program.returncode, out) == (0, "")
    assert [json.loads(line)["event"] for line in err.splitlines()][-1] == "stopped"
    assert await_end_of(family, timeout_s=WAIT_S) == {}


@pytest.mark.covers("NETIF-2", "NETIF-3")
def test_serve_answers_on_both_sockets_and_keeps_the_token_out_of_its_log(folder: Path) -> None:
    token = "a-token-that-must-not-be-logged"
    with open(os.open(folder / "token", os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
        file.write(token)
    with subprocess.Popen(
        [
            *PROGRAM,
            "serve",
            "--socket",
            str(folder / "s"),
            "--http",
            "127.0.0.1:0",
            "--token-file",
            str(folder / "token"),
        ],
        stderr=subprocess.PIPE,
        text=True,
        env=environment(folder),
    ) as program:
        assert program.stderr is not None
        log: list[dict[str, Any]] = []
        while not log or log[-1]["event"] != "ready":
            log.append(json.loads(program.stderr.readline()))
        host, port = log[-1]["http"][0].rsplit(":", 1)
        assert request(folder / "s", "GET", "/readyz").status == 200
        assert request((host, int(port)), "GET", "/metrics").status == 401
        shown = {"Authorization": f"Bearer {token}"}
        assert request((host, int(port)), "GET", "/metrics", headers=shown).status == 200
        program.send_signal(signal.SIGTERM)
        rest = program.stderr.read()
        assert program.wait(WAIT_S) == 0
    assert token not in json.dumps(log) + rest
    assert not (folder / "s").exists()


@pytest.mark.timeout(60)
@pytest.mark.covers("LEASE-2", "NETIF-2")
def test_a_second_appliance_is_refused_whatever_it_shares(folder: Path) -> None:
    with running_program() as program:
        theirs, ours = program.folder, folder
        for sock, data, said in (
            (theirs / "mcp.sock", ours / "data", "another program serves this socket"),
            (ours / "s", theirs / "data", "the data directory is locked"),
            (ours / "s", ours / "data", "root of workspace demo is locked"),
        ):
            arguments = ("--registry", str(theirs / "registry.json"), "--socket", str(sock), "--data-dir", str(data))
            done = codespace(folder, "serve", *arguments)
            errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
            assert (done.returncode, len(errors)) == (1, 1), done.stderr
            assert said in errors[0]
        assert not (ours / "s").exists()
        assert program.run("true")["exit_code"] == 0


def test_a_port_in_use_ends_serve_with_words_and_without_a_socket(folder: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = codespace(folder, "serve", "--socket", str(folder / "s"), "--http", address)
    assert done.returncode == 1
    assert f"error: cannot listen (EADDRINUSE): {address}: the port is in use" in done.stderr
    assert not (folder / "s").exists()


# --- demo -------------------------------------------------------------------------------------------------------------
@pytest.mark.timeout(60)
@pytest.mark.covers("NET-1", "BOX-6", "PROC-7")
def test_the_demo_on_a_small_project_holds_and_is_plain_without_a_terminal(folder: Path) -> None:
    done = subprocess.run(
        [*PROGRAM, "demo", "--small"], capture_output=True, text=True, timeout=50, env=environment(folder), check=False
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout[-1500:] + done.stderr
    assert "checks hold" in done.stdout
    assert "\033" not in done.stdout
    assert "✗" not in done.stdout


def test_the_suites_that_the_demo_runs_exist(repository: Path) -> None:
    assert [suite for suite in SUITES if not (repository / suite).exists()] == []


def test_a_check_of_the_demo_that_fails_says_what_was_seen() -> None:
    out = io.StringIO()
    show = Narrator(out)
    show.scene("A scene")
    show.proof("this holds", True)
    with pytest.raises(DemoFailed, match="that does not: seen instead: 41"):
        show.proof("that does not", 40 + 1 == 42, 41)
    assert show.proofs == 1
    assert "✓ this holds" in out.getvalue()
    assert "✗ that does not" in out.getvalue()
