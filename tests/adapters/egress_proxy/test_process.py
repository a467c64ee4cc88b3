"""The proxy's process from outside: what it is, what it takes from its runner, and when it ends."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from adapters.egress_proxy import client, wire
from adapters.egress_proxy.client import EgressProxy, ProxyFailed, program
from adapters.egress_proxy.lockdown import PROXY_ID
from runner.api import WorkspaceTerms

BOUND_S = 15.0
pytestmark = pytest.mark.covers("NET-4")


@pytest.fixture
async def proxy() -> AsyncIterator[EgressProxy]:
    made = EgressProxy(names={})
    yield made
    await made.close()


def status(pid: int) -> dict[str, str]:
    text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return dict(re.findall(r"^(\w+):[ \t]*(.*)$", text, re.MULTILINE))


async def test_it_is_an_unprivileged_session_leader_without_environment_or_anything_open(proxy: EgressProxy) -> None:
    confinement = await proxy.start()
    pid = proxy.pid
    assert pid is not None
    found = await asyncio.to_thread(status, pid)
    assert found["NoNewPrivs"] == "1"
    assert os.getsid(pid) == pid
    assert confinement.keys() == {"user", "landlock"}
    if os.geteuid() != 0:
        return
    assert found["Uid"].split() == found["Gid"].split() == [str(PROXY_ID)] * 4
    assert found["Groups"] == ""
    assert {found[name] for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {"0" * 16}
    assert await asyncio.to_thread(Path(f"/proc/{pid}/environ").read_bytes) == b""
    with listener() as made, closing_pidfd() as command:
        await proxy.serve(terms("a.test"), "p", command, [("proxy", made.fileno())])
        names = {name: os.readlink(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")}
    log = os.readlink("/proc/self/fd/2")
    kinds = Counter(re.sub(r"[:\[].*", "", target) for name, target in names.items() if name != "2" or target != log)
    pidfds = kinds.pop("pidfd", 0)
    # Null twice, the runner's socket and the event loop's pair, and of the command its listener and its pidfd.
    assert kinds == {"/dev/null": 2, "socket": 4, "anon_inode": 2 - pidfds}


async def test_another_proxy_is_started_when_one_has_died_and_counts_go_on(proxy: EgressProxy) -> None:
    await proxy.start()
    first = proxy.pid
    assert first is not None
    pidfd = os.pidfd_open(first)
    os.kill(first, signal.SIGKILL)
    await readable(pidfd)
    os.close(pidfd)
    with listener() as made, closing_pidfd() as command:
        # Whoever asks at the moment of its death is told; whoever asks after it gets another.
        for _ in range(2):
            try:
                await proxy.serve(terms("a.test"), "p", command, [("proxy", made.fileno())])
                break
            except ProxyFailed:
                continue
    assert proxy.pid not in (None, first)


async def test_a_slow_proxy_fails_the_start_that_waits_and_goes_on_serving_the_others(
    proxy: EgressProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    with listener() as made, closing_pidfd() as command:
        listeners = [("proxy", made.fileno())]
        await proxy.serve(terms("a.test"), "p", command, listeners)
        pid = proxy.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        with monkeypatch.context() as hurry:
            hurry.setattr(client, "SERVE_TIMEOUT_S", 0.05)
            with pytest.raises(ProxyFailed, match="did not answer") as failure:
                await proxy.serve(terms("a.test"), "q", command, listeners)
        assert (failure.value.stage, failure.value.errno, proxy.pid) == ("network", "EAGAIN", pid)
        os.kill(pid, signal.SIGCONT)
        await proxy.serve(terms("a.test"), "r", command, listeners)
        assert proxy.pid == pid


async def test_an_answer_that_waits_unread_when_the_silence_is_judged_counts(
    proxy: EgressProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nothing is read until the time is up; another answer is still owed then.
    with listener() as made, closing_pidfd() as command:
        await proxy.start()
        pid = proxy.pid
        running = proxy._running
        assert running is not None
        loop = asyncio.get_running_loop()
        loop.remove_reader(running._socket.fileno())
        judged = asyncio.Event()
        judge = running._on_silence

        def once_it_has_answered() -> None:
            assert wait_readable(running._socket.fileno())
            monkeypatch.setattr(client, "SILENCE_S", 60.0)
            running._unanswered.add(-1)
            judge()
            judged.set()

        monkeypatch.setattr(running, "_on_silence", once_it_has_answered)
        monkeypatch.setattr(client, "SILENCE_S", 0.0)
        async with asyncio.timeout(BOUND_S):
            await proxy.serve(terms("a.test"), "p", command, [("proxy", made.fileno())])
            await judged.wait()
        assert proxy.pid == pid


async def test_a_proxy_that_stays_silent_is_replaced_for_the_next_command(
    proxy: EgressProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    with listener() as made, closing_pidfd() as command:
        await proxy.start()
        pid = proxy.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        with monkeypatch.context() as hurry:
            hurry.setattr(client, "SERVE_TIMEOUT_S", 0.05)
            hurry.setattr(client, "SILENCE_S", 0.2)
            with pytest.raises(ProxyFailed, match="did not answer"):
                await proxy.serve(terms("a.test"), "p", command, [("proxy", made.fileno())])
        await proxy.serve(terms("a.test"), "q", command, [("proxy", made.fileno())])
        assert proxy.pid not in (None, pid)


async def test_what_the_proxy_cannot_serve_is_refused_and_it_goes_on(proxy: EgressProxy) -> None:
    with listener() as made, closing_pidfd() as command:
        with pytest.raises(ProxyFailed, match=r"a\.\*\.test"):
            await proxy.serve(terms("a.*.test"), "p", command, [("proxy", made.fileno())])
        with pytest.raises(ProxyFailed, match="too long"):
            await proxy.serve(terms("a" * wire.MAX_MESSAGE_BYTES), "p", command, [("proxy", made.fileno())])
        pid = proxy.pid
        await proxy.serve(terms("a.test"), "p", command, [("proxy", made.fileno())])
        assert proxy.pid == pid


async def test_a_closed_proxy_serves_nobody_and_leaves_no_process(proxy: EgressProxy) -> None:
    await proxy.start()
    pid = proxy.pid
    assert pid is not None
    await proxy.close()
    await proxy.close()
    assert not await asyncio.to_thread(os.path.exists, f"/proc/{pid}")
    with pytest.raises(ProxyFailed, match="shutting down"):
        await proxy.start()


@pytest.mark.parametrize("message", [b"{}", b"no json", b'{"config":{"version":99,"names":null}}', b'{"serve":{}}'])
def test_a_first_message_that_is_no_config_ends_it_with_a_reason(message: bytes) -> None:
    process, ours = spawn()
    with ours:
        ours.send(message)
        assert b"failed" in ours.recv(wire.MAX_MESSAGE_BYTES)
        assert process.wait(BOUND_S) == 1


@pytest.mark.parametrize("message", [b"{}", b"no json", b'{"config":{"version":1,"names":null}}', b'{"serve":{}}'])
def test_a_later_message_that_is_no_request_ends_it(message: bytes) -> None:
    process, ours = spawn()
    with ours:
        ours.send(wire.config_message(wire.Config({})))
        assert b"hello" in ours.recv(wire.MAX_MESSAGE_BYTES)
        ours.send(message)
        assert process.wait(BOUND_S) == 1


def test_a_command_whose_descriptors_did_not_all_arrive_is_refused_and_the_next_is_served() -> None:
    process, ours = spawn()
    with ours, listener() as made, closing_pidfd() as command:
        ours.send(wire.config_message(wire.Config({})))
        assert b"hello" in ours.recv(wire.MAX_MESSAGE_BYTES)
        serve = wire.Serve(1, "w", "p", ("a.test",), (), ("proxy",))
        ours.send(wire.serve_message(serve))
        assert wire.decode(ours.recv(wire.MAX_MESSAGE_BYTES))[0] == "refused"
        socket.send_fds(ours, [wire.serve_message(serve)], [command, made.fileno()])
        assert wire.decode(ours.recv(wire.MAX_MESSAGE_BYTES)) == ("serving", {"id": 1})
    assert process.wait(BOUND_S) == 0


def test_it_ends_with_the_runners_socket() -> None:
    process, ours = spawn()
    with ours:
        ours.send(wire.config_message(wire.Config({})))
        assert b"hello" in ours.recv(wire.MAX_MESSAGE_BYTES)
    assert process.wait(BOUND_S) == 0


RUNNER_TO_KILL = """
import asyncio, sys
from adapters.egress_proxy.client import EgressProxy

async def main():
    proxy = EgressProxy(names={})
    await proxy.start()
    print(proxy.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.covers("PROC-7")
def test_it_does_not_outlive_a_runner_that_is_killed() -> None:
    runner = subprocess.Popen(
        [sys.executable, "-c", RUNNER_TO_KILL], stdout=subprocess.PIPE, cwd=Path(__file__).resolve().parents[3]
    )
    assert runner.stdout is not None
    pid = int(runner.stdout.readline())
    pidfd = os.pidfd_open(pid)
    try:
        runner.kill()
        runner.wait(BOUND_S)
        assert wait_readable(pidfd), "it is still there"
    finally:
        os.close(pidfd)
        runner.stdout.close()


# --- short words ------------------------------------------------------------------------------------------------------
def terms(*allow: str) -> WorkspaceTerms:
    return WorkspaceTerms(workspace_id="w", root="/nonexistent", network="enabled", network_allow=allow)


def listener() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


class closing_pidfd:
    """Of a child that lives until the end of the block."""

    def __enter__(self) -> int:
        self._child = subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        self._pidfd = os.pidfd_open(self._child.pid)
        return self._pidfd

    def __exit__(self, *_: object) -> None:
        os.close(self._pidfd)
        self._child.communicate()


def spawn() -> tuple[subprocess.Popen[bytes], socket.socket]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(BOUND_S)
    with theirs:
        fd = theirs.fileno()
        process = subprocess.Popen(
            [*program(), str(fd), str(os.getpid())], pass_fds=(fd,), env={}, stderr=subprocess.DEVNULL
        )
    return process, ours


def wait_readable(fd: int) -> bool:
    import select

    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(BOUND_S * 1000))


async def readable(fd: int) -> None:
    event = asyncio.Event()
    asyncio.get_running_loop().add_reader(fd, event.set)
    try:
        async with asyncio.timeout(BOUND_S):
            await event.wait()
    finally:
        asyncio.get_running_loop().remove_reader(fd)
