"""`run --plan`: one command in the same sandbox without a standing helper, its status, its streams, its terminal."""

from __future__ import annotations

import asyncio
import http.server
import json
import os
import shutil
import signal
import subprocess
import threading
from pathlib import Path

import ptyprocess
import pytest

from adapters.egress_proxy.client import EgressProxy
from adapters.egress_proxy.held import HeldProxy
from adapters.linux_sandbox.launcher import LinuxSandboxLauncher
from adapters.linux_sandbox.run_once import SET_UP_FAILED, OneCommand, prepare
from runner.api import WorkspaceTerms
from tests.adapters.linux_sandbox.support import BOUND_S, terms


async def execute(command: OneCommand, stdin: bytes = b"") -> tuple[int, bytes, bytes]:
    program = await asyncio.create_subprocess_exec(
        *command.argv, env={}, pass_fds=command.pass_fds,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    async with asyncio.timeout(BOUND_S):
        output, errors = await program.communicate(stdin)
    await asyncio.to_thread(command.close)
    assert program.returncode is not None
    return program.returncode, output, errors


@pytest.mark.parametrize("sandbox", ["required", "off"])
async def test_streams_stay_apart_and_the_status_is_the_commands(
    launcher: LinuxSandboxLauncher, workspace: str, sandbox: str
) -> None:
    command = await prepare(
        launcher, terms(workspace, sandbox=sandbox), ["/bin/sh", "-c", "cat; echo bad >&2; exit 7"], None
    )
    assert await execute(command, b"in") == (7, b"in", b"bad\n")


async def test_a_signal_is_shown_as_a_shell_shows_it(launcher: LinuxSandboxLauncher, workspace: str) -> None:
    command = await prepare(launcher, terms(workspace), ["/bin/sh", "-c", "kill -SEGV $$"], None)
    assert (await execute(command))[0] == 128 + signal.SIGSEGV


@pytest.mark.covers("BOX-1", "BOX-6")
async def test_the_command_is_in_the_same_sandbox(launcher: LinuxSandboxLauncher, workspace: str) -> None:
    script = "grep -E '^(CapBnd|NoNewPrivs|Seccomp):' /proc/self/status; ls /home 2>&1; ls /proc/self/fd; echo $$"
    command = await prepare(launcher, terms(workspace), ["/bin/bash", "-c", script], None)
    _, output, _ = await execute(command)
    lines = output.decode().split("\n")
    assert lines[:3] == ["CapBnd:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"]
    assert "No such file" in lines[3]
    assert lines[4:] == ["0", "1", "2", "3", "2", ""], "three descriptors and that of ls itself; the command is PID 2"


@pytest.mark.covers("PROC-8")
async def test_a_failed_start_is_a_record_on_standard_error(launcher: LinuxSandboxLauncher, workspace: str) -> None:
    command = await prepare(launcher, terms(workspace), ["no-such-program"], None)
    status, _, errors = await execute(command)
    assert status == SET_UP_FAILED
    assert json.loads(errors)["failed"]["stage"] == "exec"


@pytest.mark.covers("BOX-7")
async def test_placeholders_go_with_the_command(launcher: LinuxSandboxLauncher, workspace: str) -> None:
    command = await prepare(launcher, terms(workspace, protect=(".codex",)), ["/bin/sh", "-c", "mkdir .codex"], None)
    assert (await execute(command))[0] != 0
    assert await asyncio.to_thread(os.listdir, workspace) == []


async def test_a_plan_that_is_none_runs_nothing(launcher: LinuxSandboxLauncher, workspace: str) -> None:
    command = await prepare(launcher, terms(workspace), ["/bin/sh", "-c", "touch ran"], None)
    await asyncio.to_thread(os.pwrite, command.plan_fd, b"[", 0)
    status, _, errors = await execute(command)
    assert status == SET_UP_FAILED
    assert b"EPROTO" in errors
    assert await asyncio.to_thread(os.listdir, workspace) == []


async def test_a_termination_is_passed_on(launcher: LinuxSandboxLauncher, workspace: str) -> None:
    script = "trap 'echo bye; exit 3' TERM; echo up; while :; do sleep 0.01; done"
    command = await prepare(launcher, terms(workspace), ["/bin/sh", "-c", script], None)
    program = await asyncio.create_subprocess_exec(
        *command.argv, env={}, pass_fds=(command.plan_fd,), stdout=asyncio.subprocess.PIPE
    )
    assert program.stdout is not None
    async with asyncio.timeout(BOUND_S):
        assert await program.stdout.readline() == b"up\n"
        program.terminate()
        assert b"bye\n" in await program.stdout.read()
        assert await program.wait() == 3
    await asyncio.to_thread(command.close)


@pytest.mark.covers("PROC-7")
async def test_a_killed_program_takes_the_command_along(launcher: LinuxSandboxLauncher, workspace: str) -> None:
    command = await prepare(launcher, terms(workspace), ["/bin/sh", "-c", "echo up; exec sleep 1000"], None)
    program = await asyncio.create_subprocess_exec(
        *command.argv, env={}, pass_fds=(command.plan_fd,), stdout=asyncio.subprocess.PIPE
    )
    assert program.stdout is not None
    async with asyncio.timeout(BOUND_S):
        assert await program.stdout.readline() == b"up\n"
        program.kill()
        # The command holds the other end: its death is the end of the stream.
        assert await program.stdout.read() == b""
        await program.wait()
    await asyncio.to_thread(command.close)


async def test_a_terminal_is_bridged_with_its_size(launcher: LinuxSandboxLauncher, workspace: str) -> None:
    script = "tty; stty size; read line; echo got $line; stty size; exit 4"
    command = await prepare(launcher, terms(workspace), ["/bin/sh", "-c", script], (24, 80))
    ended = await asyncio.to_thread(talk, command)
    assert ended == 4


def talk(command: OneCommand) -> int:
    program = ptyprocess.PtyProcess.spawn(list(command.argv), env={}, pass_fds=(command.plan_fd,), dimensions=(30, 90))
    # A thread that waits for ever would outlive the test's own bound.
    bound = threading.Timer(BOUND_S, program.terminate, (True,))
    bound.start()
    seen = b""
    while seen.count(b"\r\n") < 2:
        seen += program.read()
    assert seen == b"/dev/pts/0\r\n30 90\r\n"
    program.setwinsize(40, 100)
    # The program is told by a signal and copies the size at once; the line follows through the same terminal.
    program.kill(signal.SIGWINCH)
    program.write(b"hello\n")
    try:
        while True:
            seen += program.read()
    except EOFError:
        pass
    assert b"got hello\r\n" in seen
    bound.cancel()
    program.wait()
    program.close()
    command.close()
    return int(program.exitstatus)


async def test_the_plans_descriptor_is_the_only_thing_passed(launcher: LinuxSandboxLauncher, workspace: str) -> None:
    command = await prepare(launcher, terms(workspace, env={"SECRET": "s3cret"}), ["/bin/true", "argument"], None)
    try:
        assert not any("s3cret" in word or "argument" in word or workspace in word for word in command.argv)
        assert Path(command.argv[0]).is_absolute()
    finally:
        await asyncio.to_thread(command.close)


# --- an enabled network -----------------------------------------------------------------------------------------------
def prepared(what: WorkspaceTerms, script: str) -> OneCommand:
    async def prepare_it() -> OneCommand:
        launcher = LinuxSandboxLauncher(proxy=EgressProxy())
        await launcher.start()
        try:
            return await prepare(launcher, what, ["/bin/sh", "-c", script], None)
        finally:
            await launcher.close()

    return asyncio.run(prepare_it())


def execute_now(command: OneCommand) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(
            command.argv, env={}, pass_fds=command.pass_fds, stdin=subprocess.DEVNULL, capture_output=True,
            timeout=BOUND_S, check=False,
        )  # fmt: skip
    finally:
        command.close()


class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "8")
        self.end_headers()
        self.wfile.write(b"reached\n")

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
@pytest.mark.covers("NET-2", "NET-4")
def test_an_enabled_network_has_a_proxy_for_the_one_command(
    workspace: str, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        port = server.server_address[1]
        what = terms(workspace, network="enabled", network_allow=(f"127.0.0.1:{port}",))
        script = f"for p in {port} 1; do curl -s --noproxy none.test http://127.0.0.1:$p/; done"
        ended = execute_now(prepared(what, script).with_proxy(HeldProxy))
        server.shutdown()
    first, second = ended.stdout.splitlines()
    assert (ended.returncode, first) == (0, b"reached")
    assert b"is loopback" in second
    said = [json.loads(line) for line in capfdbinary.readouterr().err.splitlines()]
    assert [line["decision"] for line in said] == ["allowed", "refused"], "told at the end, so that no terminal garbles"


@pytest.mark.covers("NET-2", "BOX-5")
def test_an_enabled_network_without_a_proxy_runs_nothing(workspace: str) -> None:
    what = terms(workspace, network="enabled", network_allow=("allowed.test",))
    alone = execute_now(prepared(what, "echo > ran"))
    held = prepared(what, "echo > ran").with_proxy(HeldProxy)
    assert isinstance(held.proxy, HeldProxy)
    # The proxy ends before the program can hand anything over to it.
    held.proxy.kill()
    for ended in (alone, execute_now(held)):
        assert (ended.returncode, json.loads(ended.stderr)["failed"]["stage"]) == (SET_UP_FAILED, "network")
    assert os.listdir(workspace) == []


def test_a_restricted_network_gets_no_proxy(workspace: str) -> None:
    command = prepared(terms(workspace), "true")
    assert command.with_proxy(HeldProxy) is command
    assert execute_now(command).returncode == 0
