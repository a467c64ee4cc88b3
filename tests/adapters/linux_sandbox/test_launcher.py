"""Commands through the real launcher and helper: what comes back, and what a start that fails says."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from adapters.linux_sandbox.launcher import LinuxSandboxLauncher
from runner.ports import LaunchFailed, SandboxUnavailable
from tests.adapters.linux_sandbox.support import BOUND_S, finish, read_until, run, shell, start, terms

BOTH_WAYS = True


@pytest.mark.covers("BOX-1", "PROC-6")
@pytest.mark.parametrize("code", [0, 1, 7, 125, 255])
async def test_an_exit_code_comes_back_unchanged(launcher: LinuxSandboxLauncher, workspace: str, code: int) -> None:
    ended = (await shell(launcher, terms(workspace), f"exit {code}")).exit
    assert (ended.command_code, ended.command_signal) == (code, None)
    assert (ended.exit_code, ended.signal) == (code, None)


@pytest.mark.covers("PROC-6")
@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM", "SIGSEGV", "SIGABRT"])
async def test_a_signal_of_the_command_is_told_apart_from_the_helpers_end(
    launcher: LinuxSandboxLauncher, workspace: str, name: str
) -> None:
    ended = (await shell(launcher, terms(workspace), f"kill -{name[3:]} $$")).exit
    assert (ended.command_code, ended.command_signal) == (None, name)
    assert ended.exit_code == 128 + signal.Signals[name]


@pytest.mark.covers("PROC-6", "BOX-2")
async def test_killing_the_managed_child_leaves_no_command_status(
    launcher: LinuxSandboxLauncher, workspace: str
) -> None:
    process = await start(launcher, terms(workspace), ("/bin/sh", "-c", "echo up; read x"))
    await read_until(process, b"up\n")
    process.kill()
    ended = (await finish(process)).exit
    assert ended.signal == signal.SIGKILL
    assert (ended.exit_code, ended.command_code, ended.command_signal) == (None, None, None)


async def test_both_output_streams_arrive_in_the_order_they_were_written(
    launcher: LinuxSandboxLauncher, workspace: str
) -> None:
    ended = await shell(launcher, terms(workspace), "echo 1; echo 2 >&2; echo 3")
    assert ended.output == "1\n2\n3\n"


async def test_input_reaches_the_command_and_its_end_too(launcher: LinuxSandboxLauncher, workspace: str) -> None:
    assert (await run(launcher, terms(workspace), "/bin/cat", stdin=b"to and fro")).output == "to and fro"


async def test_argv_arrives_byte_for_byte(launcher: LinuxSandboxLauncher, workspace: str) -> None:
    odd = ["", " ", "--", "a\nb", "ü", "\udcff", "%s$HOME`"]
    script = "import os,sys; os.write(1, b'\\0'.join(os.fsencode(a) for a in sys.argv[1:]))"
    ended = await run(launcher, terms(workspace), "/usr/bin/python3", "-c", script, *odd)
    expected = b"\0".join(os.fsencode(argument) for argument in odd)
    assert ended.output == expected.decode(errors="replace")


@pytest.mark.covers("PROC-8")
@pytest.mark.parametrize(
    ("argv", "errno"),
    [
        (["no-such-program"], "ENOENT"),
        (["/nowhere/at/all"], "ENOENT"),
        (["./plain"], "EACCES"),
        (["./text"], "ENOEXEC"),
    ],
)
async def test_an_exec_that_fails_is_a_stage_and_an_errno_not_an_exit_code(
    launcher: LinuxSandboxLauncher, workspace: str, argv: list[str], errno: str
) -> None:
    await asyncio.to_thread(Path(workspace, "plain").write_text, "#!/bin/sh\n")
    text = Path(workspace, "text")
    await asyncio.to_thread(text.write_text, "no program\n")
    await asyncio.to_thread(text.chmod, 0o755)
    for tty in (None, (24, 80)):
        with pytest.raises(LaunchFailed) as failure:
            await start(launcher, terms(workspace), argv, tty)
        assert (failure.value.stage, failure.value.errno) == ("exec", errno)
        assert failure.value.remedy


@pytest.mark.covers("PROC-8")
async def test_a_root_that_is_not_there_fails_before_anything_runs(
    launcher: LinuxSandboxLauncher, workspace: str
) -> None:
    for tty in (None, (24, 80)):
        with pytest.raises(LaunchFailed) as failure:
            await start(launcher, terms(f"{workspace}/gone"), ("/bin/true",), tty)
        assert (failure.value.stage, failure.value.errno) == ("mounts", "ENOENT")
        assert failure.value.remedy


async def test_arguments_beyond_a_request_are_refused_without_a_start(
    launcher: LinuxSandboxLauncher, workspace: str
) -> None:
    with pytest.raises(LaunchFailed) as failure:
        await start(launcher, terms(workspace), ("/bin/echo", "x" * 500_000))
    assert failure.value.errno == "E2BIG"


@pytest.mark.covers("PROC-2")
async def test_a_terminal_has_a_name_a_size_and_follows_a_resize(
    launcher: LinuxSandboxLauncher, workspace: str
) -> None:
    script = "trap 'stty size; exit' WINCH; tty; echo $TERM; stty size; while :; do sleep 0.01; done"
    process = await start(launcher, terms(workspace), ("/bin/sh", "-c", script), (24, 80))
    first = await read_until(process, b"24 80\r\n")
    assert first.splitlines()[:2] == [b"/dev/pts/0", b"xterm-256color"]
    process.resize(40, 132)
    await read_until(process, b"40 132\r\n")
    assert (await finish(process)).exit.command_code == 0


async def test_a_terminal_stays_readable_while_the_command_holds_it_closed(
    launcher: LinuxSandboxLauncher, workspace: str
) -> None:
    script = "exec </dev/null >/dev/null 2>&1; exec >/dev/tty; echo back"
    assert "back" in (await run(launcher, terms(workspace), "/bin/sh", "-c", script, tty=(24, 80))).output


async def test_control_c_on_a_terminal_interrupts_the_foreground(
    launcher: LinuxSandboxLauncher, workspace: str
) -> None:
    process = await start(launcher, terms(workspace), ("/bin/cat",), (24, 80))
    assert process.stdin_fd is not None
    os.write(process.stdin_fd, b"up\n")
    await read_until(process, b"up\r\nup\r\n")
    os.write(process.stdin_fd, b"\x03")
    assert (await finish(process)).exit.command_signal == "SIGINT"


FAMILY = """
import os, signal, sys
main = os.getpid()
signal.signal(signal.SIGTERM, lambda *_: None)
child = os.fork()
if child == 0:
    os.setsid()
    signal.signal(signal.SIGTERM, lambda *_: (os.write(1, b'child\\n'), os._exit(0)))
    os.write(1, b'up\\n')
    while True: signal.pause()
os.waitpid(child, 0)
os.write(1, b'main\\n')
sys.exit(5)
"""
"""Main and a child in another session; main goes on with SIGTERM, and ends after its child."""


@pytest.mark.covers("PROC-9")
async def test_a_signal_reaches_the_whole_tree_and_stopped_processes_as_well(
    launcher: LinuxSandboxLauncher, workspace: str
) -> None:
    process = await start(launcher, terms(workspace), ("/usr/bin/python3", "-c", FAMILY))
    await read_until(process, b"up\n")
    process.signal_tree(signal.SIGTERM)
    ended = await finish(process)
    assert ended.output == "child\nmain\n"
    assert ended.exit.command_code == 5

    process = await start(launcher, terms(workspace), ("/bin/sh", "-c", "echo up; kill -STOP $$"))
    await read_until(process, b"up\n")
    process.signal_tree(signal.SIGTERM)
    assert (await finish(process)).exit.command_signal == "SIGTERM"


async def test_waiting_can_be_cancelled_and_repeated(launcher: LinuxSandboxLauncher, workspace: str) -> None:
    process = await start(launcher, terms(workspace), ("/bin/cat",))
    waiting = asyncio.create_task(process.wait())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    process.close_stdin()
    async with asyncio.timeout(BOUND_S):
        assert (await process.wait()).command_code == 0
        assert (await process.wait()).command_code == 0
    process.signal_tree(signal.SIGTERM)
    process.kill()
    process.close()
    process.close()


@pytest.mark.covers("BOX-6")
async def test_the_environment_is_the_declared_one(
    launcher: LinuxSandboxLauncher, workspace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CODESPACE_TOKEN_FILE", "/secret")
    ended = await run(launcher, terms(workspace, env={"CI": "1"}), "/usr/bin/env")
    names = {line.partition("=")[0] for line in ended.output.splitlines()}
    assert names == {"PATH", "HOME", "LANG", "CI"}


@pytest.mark.covers("BOX-6")
async def test_home_is_private_and_writable_and_gone_afterwards(launcher: LinuxSandboxLauncher, workspace: str) -> None:
    first = await shell(launcher, terms(workspace), 'cd && pwd && touch x && ls -A && stat -c %a "$HOME"')
    assert first.output == "/tmp/home\nx\n700\n"
    assert (await shell(launcher, terms(workspace), "ls -A ~ /tmp/home")).output.count("x\n") == 0


@pytest.mark.covers("BOX-6")
async def test_files_made_inside_belong_to_the_workspaces_owner(launcher: LinuxSandboxLauncher, workspace: str) -> None:
    ended = await shell(launcher, terms(workspace), "mkdir d && echo x > d/f && stat -c '%U %G' d/f && id -u")
    owner, uid = ended.output.splitlines()
    assert owner == "agent agent"
    assert int(uid) != 0
    made = await asyncio.to_thread(os.stat, f"{workspace}/d/f")
    root = await asyncio.to_thread(os.stat, workspace)
    assert (made.st_uid, made.st_gid) == (root.st_uid, root.st_gid)


@pytest.mark.covers("NET-2", "BOX-5")
async def test_an_enabled_network_without_a_proxy_is_refused(launcher: LinuxSandboxLauncher, workspace: str) -> None:
    what = terms(workspace, network="enabled")
    with pytest.raises(SandboxUnavailable) as failure:
        await start(launcher, what, ("/bin/true",))
    assert failure.value.feature == "managed_proxy"
    assert not (await launcher.report(what)).available


async def test_an_operators_directory_is_visible_and_read_only(launcher: LinuxSandboxLauncher, workspace: str) -> None:
    extra, own = f"{workspace}/extra", f"{workspace}/own"
    for path in (extra, own):
        await asyncio.to_thread(os.mkdir, path)
    await asyncio.to_thread(Path(extra, "tool").write_text, "tool")
    what = terms(own, mounts_read_only=(extra,))
    ended = await shell(launcher, what, f"cat {extra}/tool; echo x > {extra}/new || ls {workspace}")
    assert ended.output.startswith("tool")
    assert "Read-only file system" in ended.output
    assert ended.output.splitlines()[-2:] == ["extra", "own"]


async def test_a_workspace_below_the_private_home_of_tmp_is_still_reached(
    launcher: LinuxSandboxLauncher, workspace: str
) -> None:
    deep = f"{workspace}/a/b c/ü"
    await asyncio.to_thread(os.makedirs, deep)
    assert (await shell(launcher, terms(deep), "pwd; touch here")).output == f"{deep}\n"
    assert await asyncio.to_thread(os.listdir, deep) == ["here"]
