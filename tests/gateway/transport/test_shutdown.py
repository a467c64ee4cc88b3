"""Going down in order, and reloading: signals, open clients, long polls, failed starts."""

from __future__ import annotations

import asyncio
import os
import signal
import socket

import pytest

from gateway.appliance import Endpoints
from gateway.errors import RegistryRefused, StartFailed
from tests.fakes.application import FakeApplication
from tests.gateway.transport.serving import WAIT_S, sdk_client, serve


class NeverEnds(FakeApplication):
    """Its long polls do not end with it."""

    async def close(self) -> None:
        self.closed += 1


class CannotStart(FakeApplication):
    async def start(self) -> None:
        raise StartFailed("the worker did not start", "python", "look at its log")


class StartsForEver(FakeApplication):
    async def start(self) -> None:
        self.waiting.set()
        await asyncio.Event().wait()


@pytest.mark.covers("PROC-7")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_it_with_idle_clients_connected(opened: Endpoints, number: signal.Signals) -> None:
    async with serve(opened) as serving:
        reader, writer = await asyncio.open_unix_connection(str(serving.unix))
        async with sdk_client(serving, "legacy"):
            os.kill(os.getpid(), number)
            os.kill(os.getpid(), number)
            await asyncio.wait_for(serving.running, WAIT_S)
        assert await asyncio.wait_for(reader.read(), WAIT_S) == b""
        writer.close()
        assert serving.application.closed >= 1
        assert not await asyncio.to_thread(serving.unix.exists)
        assert [line["event"] for line in (*serving.events("shutting_down"), *serving.events("stopped"))] == [
            "shutting_down",
            "stopped",
        ]


async def test_a_long_poll_gets_its_answer_when_the_runner_ends(opened: Endpoints) -> None:
    async with serve(opened) as serving:
        poll = asyncio.create_task(serving.call("read_process", {"process_id": "p", "wait_ms": 60_000}))
        await asyncio.wait_for(serving.application.waiting.wait(), WAIT_S)
        await serving.stop()
        reply = await asyncio.wait_for(poll, WAIT_S)
        assert reply.status == 200
        assert reply.json()["result"]["structuredContent"]["eof"] is True


async def test_a_call_that_never_ends_is_cut_off_with_503(opened: Endpoints) -> None:
    async with serve(opened, application=NeverEnds()) as serving:
        poll = asyncio.create_task(serving.call("read_process", {"process_id": "p", "wait_ms": 60_000}))
        await asyncio.wait_for(serving.application.waiting.wait(), WAIT_S)
        await serving.stop()
        reply = await asyncio.wait_for(poll, WAIT_S)
        assert (reply.status, reply.json()["error"]["reason"]) == (503, "closing")
        assert "may have had its effect" in reply.json()["error"]["message"]
        assert not [line for line in serving.log.getvalue().splitlines() if '"error"' in line], serving.log.getvalue()


async def test_a_client_that_vanishes_mid_call_does_no_harm(opened: Endpoints) -> None:
    async with serve(opened) as serving:
        poll = asyncio.create_task(serving.call("read_process", {"process_id": "p", "wait_ms": 60_000}))
        await asyncio.wait_for(serving.application.waiting.wait(), WAIT_S)
        _, writer = await asyncio.open_unix_connection(str(serving.unix))
        writer.write(b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
        await writer.drain()
        writer.transport.abort()
        assert (await serving.call("workspace_info", {})).status == 200
        serving.application.gate.set()
        assert (await poll).status == 200


async def test_new_connections_are_refused_once_it_goes_down(opened: Endpoints) -> None:
    async with serve(opened) as serving:
        path = str(serving.unix)
        await serving.stop()

    def connect() -> None:
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(path)

    with pytest.raises((FileNotFoundError, ConnectionRefusedError)):
        await asyncio.to_thread(connect)


async def test_a_start_that_fails_closes_what_was_started(opened: Endpoints) -> None:
    application = CannotStart()
    with pytest.raises(StartFailed, match="look at its log"):
        async with serve(opened, application=application):
            pass
    assert application.closed == 1


async def test_a_signal_during_a_slow_start_ends_it(opened: Endpoints) -> None:
    application = StartsForEver()

    async def interrupt() -> None:
        await application.waiting.wait()
        os.kill(os.getpid(), signal.SIGTERM)

    interrupting = asyncio.create_task(interrupt())
    with pytest.raises(AssertionError, match="did not come up"):
        async with serve(opened, application=application):
            pass
    await interrupting
    assert application.closed == 1


@pytest.mark.covers("POL-5")
async def test_sighup_reloads_and_a_refused_registry_is_logged(opened: Endpoints) -> None:
    async with serve(opened) as serving:
        application = serving.application
        os.kill(os.getpid(), signal.SIGHUP)
        async with asyncio.timeout(WAIT_S):
            while not serving.events("reloaded"):
                await asyncio.to_thread(os.sched_yield)
        application.reload_error = RegistryRefused("/etc/r.json", "workspaces.a.roott", "unknown key", "remove it")
        os.kill(os.getpid(), signal.SIGHUP)
        async with asyncio.timeout(WAIT_S):
            while not serving.events("reload_refused"):
                await asyncio.to_thread(os.sched_yield)
        assert "workspaces.a.roott" in serving.events("reload_refused")[0]["problem"]
        application.reload_error = RuntimeError("a fault of ours")
        os.kill(os.getpid(), signal.SIGHUP)
        async with asyncio.timeout(WAIT_S):
            while not serving.events("reload_failed"):
                await asyncio.to_thread(os.sched_yield)
        assert "a fault of ours" in serving.events("reload_failed")[0]["exception"]
        assert application.reloads == 3
        assert (await serving.call("workspace_info", {})).status == 200
