"""The worker program at its socket: orders, broken peers, cut connections, signals (UDS-1, PROC-7)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from runner.api import MAX_FRAME_BYTES, ErrorCode
from runner.wire import Broken, Ended, ErrorReceived, EventReceived, GoodbyeReceived, HelloReceived, ResultReceived
from runner.worker import MAX_OPEN_REQUESTS
from tests.contract.rig import workspace
from tests.fakes.worker_host import FAKE_WORKER, HostedWorker, RawGateway, hosted_worker

pytestmark = pytest.mark.usefixtures("leak_check")


@dataclass
class Session:
    """A worker, our end of its connection, and a workspace."""

    worker: HostedWorker
    gateway: RawGateway
    root: str
    numbers: int = 0

    async def ask(self, method: str, **params: Any) -> int:
        request_id = self.gateway.wire.send_request(method, params)
        await self.gateway.flush()
        return request_id

    async def cancel(self, request_id: int) -> None:
        self.gateway.wire.send_cancel(request_id)
        await self.gateway.flush()

    async def answer(self, request_id: int) -> ResultReceived | ErrorReceived:
        """The answer to a request; events and other answers before it are passed over."""
        while True:
            event = await self.gateway.next_event()
            if isinstance(event, ResultReceived | ErrorReceived) and event.request_id == request_id:
                return event

    async def result(self, method: str, **params: Any) -> dict[str, Any]:
        event = await self.answer(await self.ask(method, **params))
        assert isinstance(event, ResultReceived), event
        return event.result

    async def error(self, method: str, **params: Any) -> ErrorReceived:
        event = await self.answer(await self.ask(method, **params))
        assert isinstance(event, ErrorReceived), event
        return event

    def start(self, *argv: str) -> dict[str, Any]:
        """Parameters of a start."""
        self.numbers += 1
        terms = {"workspace_id": "demo", "root": self.root, "limits": {"timeout_s": 0}}
        return {"process_id": f"p{self.numbers}", "terms": terms, "argv": argv}

    async def hold(self) -> asyncio.Task[bytes]:
        """Starts a command that ignores every polite signal. The task ends when no process of it is alive."""
        fifo = f"{self.root}/held{self.numbers}"
        os.mkfifo(fifo)
        script = f"trap '' TERM HUP INT; exec 9>{fifo}; (sleep 86400) & while :; do sleep 86400; done"
        opened = asyncio.create_task(asyncio.to_thread(os.open, fifo, os.O_RDONLY))
        await self.result("start_process", **self.start("/bin/sh", "-c", script))
        return asyncio.create_task(asyncio.to_thread(_read_to_end, await opened))


def _read_to_end(fd: int) -> bytes:
    try:
        return os.read(fd, 1)
    finally:
        os.close(fd)


@contextlib.asynccontextmanager
async def session(*, greet: bool = True) -> AsyncIterator[Session]:
    with workspace() as root:
        async with hosted_worker(FAKE_WORKER) as worker:
            gateway = RawGateway(worker.connection)
            if greet:
                await gateway.greet()
            yield Session(worker, gateway, root)


# --- orders -----------------------------------------------------------------------------------------------------------
@pytest.mark.covers("UDS-1")
async def test_the_worker_speaks_first_with_its_instance() -> None:
    async with session(greet=False) as s:
        hello = await s.gateway.next_event()
        assert isinstance(hello, HelloReceived)
        assert hello.runner_instance_id is not None
        assert hello.runner_instance_id.startswith("runner_")


@pytest.mark.covers("UDS-1")
async def test_a_long_wait_does_not_hold_up_other_requests() -> None:
    async with session() as s:
        await s.result("start_process", **s.start("/bin/cat"))
        waiting = await s.ask("read_process", process_id="p1", cursor=0, wait_ms=60_000)
        assert (await s.result("process_status", process_id="p1"))["state"] == "running"
        await s.ask("write_stdin", process_id="p1", data="x")
        answer = await s.answer(waiting)
        assert isinstance(answer, ResultReceived)
        assert answer.result["chunk"] == "x"


@pytest.mark.covers("UDS-1")
async def test_a_cancelled_wait_is_answered_and_a_cancelled_start_happens() -> None:
    async with session() as s:
        await s.result("start_process", **s.start("/bin/cat"))
        waiting = await s.ask("read_process", process_id="p1", cursor=0, wait_ms=60_000)
        await s.cancel(waiting)
        answer = await s.answer(waiting)
        assert isinstance(answer, ErrorReceived)
        assert answer.error.code is ErrorCode.RUNNER_UNAVAILABLE
        starting = await s.ask("start_process", **s.start("/bin/cat"))
        await s.cancel(starting)
        assert isinstance(await s.answer(starting), ResultReceived)
        assert (await s.result("process_status", process_id="p2"))["state"] == "running"
        await s.cancel(starting)
        assert (await s.result("process_status", process_id="p2"))["state"] == "running"


@pytest.mark.covers("UDS-1", "LEASE-2")
async def test_the_exit_event_comes_before_the_answer_that_says_exited() -> None:
    async with session() as s:
        for n in range(1, 11):
            await s.ask("start_process", **s.start("/bin/true"))
            waiting = await s.ask("process_status", process_id=f"p{n}", wait_ms=60_000)
            seen = []
            while True:
                event = await s.gateway.next_event()
                seen.append(event)
                if isinstance(event, ErrorReceived) and event.request_id == waiting:
                    # It overtook the start: ask again.
                    waiting = await s.ask("process_status", process_id=f"p{n}", wait_ms=60_000)
                if isinstance(event, ResultReceived) and event.request_id == waiting:
                    break
            assert event.result["state"] == "exited"
            (told,) = [e for e in seen if isinstance(e, EventReceived)]
            assert (told.event["event"], told.event["process_id"]) == ("process_exited", f"p{n}")


BAD_PARAMS: dict[str, tuple[str, dict[str, Any], str]] = {
    "a negative cursor": ("read_process", {"process_id": "p", "cursor": -1}, "cursor"),
    "a wait of a week": ("process_status", {"process_id": "p", "wait_ms": 604_800_000}, "wait_ms"),
    "no rows": ("resize_process", {"process_id": "p", "rows": 0, "cols": 80}, "rows"),
    "too many columns": ("resize_process", {"process_id": "p", "rows": 24, "cols": 100_000}, "cols"),
    "an unknown field": ("describe", {"as_root": True}, "as_root"),
    "a missing field": ("terminate_process", {}, "process_id"),
    "a wrong type": ("read_process", {"process_id": ["p"]}, "process_id"),
}


@pytest.mark.covers("UDS-1")
async def test_bad_parameters_are_refused_by_name_and_the_connection_stays() -> None:
    async with session() as s:
        for name, (method, params, argument) in BAD_PARAMS.items():
            error = (await s.error(method, **params)).error
            assert error.code is ErrorCode.INVALID_ARGUMENT, name
            assert error.details["argument"] == argument, name
        error = (await s.error("no_such_method")).error
        assert error.code is ErrorCode.INVALID_ARGUMENT
        assert (await s.error("__init__")).error.code is ErrorCode.INVALID_ARGUMENT
        assert (await s.result("list_processes"))["processes"] == []


@pytest.mark.covers("UDS-1", "PROC-8")
async def test_an_unpaired_surrogate_is_refused_not_crashed_on() -> None:
    async with session() as s:
        error = (await s.error("start_process", **s.start("/bin/echo", "\ud800"))).error
        assert error.code in (ErrorCode.INVALID_COMMAND, ErrorCode.INVALID_ARGUMENT)
        await s.result("start_process", **s.start("/bin/cat"))
        error = (await s.error("write_stdin", process_id="p2", data="\udfff")).error
        assert error.code is ErrorCode.INVALID_ARGUMENT
        assert (await s.result("process_status", process_id="p2"))["state"] == "running"


@pytest.mark.covers("UDS-1")
async def test_an_answer_over_the_frame_limit_is_an_error_for_that_request_alone() -> None:
    async with session() as s:
        asked = s.start("/bin/true")
        # A control character takes six bytes in JSON.
        large = asked["terms"] | {"env": {"FAKE_REPORT_CHARACTERS": str(MAX_FRAME_BYTES // 6)}}
        error = (await s.error("describe", terms=large)).error
        assert error.code is ErrorCode.INVALID_ARGUMENT
        assert "too large" in error.message
        await s.result("start_process", **asked)
        while (await s.result("process_status", process_id="p1", wait_ms=60_000))["state"] == "running":
            pass


@pytest.mark.covers("UDS-1")
async def test_a_gateway_that_does_not_read_is_waited_for_and_loses_nothing() -> None:
    async with session() as s:
        await s.result("start_process", **s.start("/bin/sh", "-c", "yes | head -c 65536"))
        while not (await s.result("process_status", process_id="p1", wait_ms=60_000))["eof"]:
            pass
        ids = [await s.ask("read_process", process_id="p1", cursor=0) for _ in range(200)]
        for request_id in ids:
            answer = await s.answer(request_id)
            assert isinstance(answer, ResultReceived)
            assert len(answer.result["chunk"]) == 65536


@pytest.mark.covers("UDS-1")
async def test_too_many_open_requests_are_refused_and_the_others_go_on() -> None:
    async with session() as s:
        await s.result("start_process", **s.start("/bin/cat"))
        ids = [
            s.gateway.wire.send_request("read_process", {"process_id": "p1", "wait_ms": 60_000})
            for _ in range(MAX_OPEN_REQUESTS + 1)
        ]
        await s.gateway.flush()
        refused = await s.answer(ids[-1])
        assert isinstance(refused, ErrorReceived)
        assert (refused.error.code, refused.error.retryable) == (ErrorCode.RUNNER_UNAVAILABLE, True)
        await s.cancel(ids[0])
        assert isinstance(await s.answer(ids[0]), ErrorReceived)
        writing = await s.ask("write_stdin", process_id="p1", data="x")
        open_ids = set(ids[1:-1])
        while open_ids:
            event = await s.gateway.next_event()
            assert isinstance(event, ResultReceived)
            if event.request_id != writing:
                assert event.result["chunk"] == "x"
                open_ids.remove(event.request_id)


# --- broken peers -----------------------------------------------------------------------------------------------------
BROKEN: dict[str, bytes] = {
    "garbage": b"GET / HTTP/1.1\r\n\r\n",
    "oversized": (MAX_FRAME_BYTES + 1).to_bytes(4, "big"),
    "not JSON": b"\0\0\0\2xx",
    "an answer": b"\0\0\0\x14" + b'{"id":1,"result":{}}',
    "a second hello": b"\0\0\0\x20" + b'{"hello":{"protocol_version":1}}',
}


@pytest.mark.covers("UDS-1", "PROC-7")
@pytest.mark.parametrize("name", BROKEN)
async def test_a_broken_frame_is_answered_with_its_reason_and_nothing_survives(name: str) -> None:
    async with session() as s:
        held = await s.hold()
        await s.gateway.send(BROKEN[name])
        while not isinstance(event := await s.gateway.next_event(), GoodbyeReceived):
            assert not isinstance(event, Broken | Ended), event
        assert event.reason
        assert await held == b""
        assert await s.worker.exited() == 0
        await s.worker.all_dead()


@pytest.mark.covers("UDS-1", "PROC-7")
@pytest.mark.parametrize("cut", ["before the hello", "after the hello", "inside a header", "inside a frame"])
async def test_a_cut_connection_ends_the_worker(cut: str) -> None:
    async with session(greet=False) as s:
        if cut != "before the hello":
            await s.gateway.greet()
            held = await s.hold()
        if cut.startswith("inside"):
            await s.gateway.send(b"\0\0" if cut == "inside a header" else b"\0\0\1\0{")
        s.worker.connection.close()
        assert await s.worker.exited() == 0
        await s.worker.all_dead()
        if cut != "before the hello":
            assert await held == b""


@pytest.mark.covers("UDS-2", "PROC-7")
@pytest.mark.parametrize("sent", [1, 3, 4, 5, 40, None], ids=lambda n: f"{n} bytes sent" if n else "all sent")
async def test_a_start_that_is_cut_off_in_its_frame_leaves_nothing(sent: int | None) -> None:
    async with session() as s:
        marker = f"{s.root}/ran"
        s.gateway.wire.send_request("start_process", s.start("/bin/sh", "-c", f": > {marker}; exec sleep 86400"))
        await s.gateway.send(s.gateway.wire.data_to_send()[:sent])
        s.worker.connection.shutdown(socket.SHUT_WR)
        assert await s.worker.exited() == 0
        await s.worker.all_dead()
        if sent is not None:
            assert "ran" not in os.listdir(s.root)


@pytest.mark.covers("UDS-1")
async def test_our_goodbye_ends_it_in_order() -> None:
    async with session() as s:
        held = await s.hold()
        s.gateway.wire.send_goodbye("enough")
        await s.gateway.flush()
        assert await s.worker.exited() == 0
        assert await held == b""


@pytest.mark.covers("UDS-1")
async def test_a_hello_of_another_version_is_refused() -> None:
    async with session(greet=False) as s:
        await s.gateway.next_event()
        await s.gateway.send(b"\0\0\0\x20" + b'{"hello":{"protocol_version":2}}')
        event = await s.gateway.next_event()
        assert isinstance(event, GoodbyeReceived)
        assert "protocol version" in event.reason
        assert await s.worker.exited() == 0


# --- signals ----------------------------------------------------------------------------------------------------------
@pytest.mark.covers("PROC-7")
async def test_sigterm_ends_the_commands_first_and_then_says_goodbye() -> None:
    async with session() as s:
        held = await s.hold()
        s.worker.child.send_signal(signal.SIGTERM)
        event = await s.gateway.next_event()
        assert isinstance(event, EventReceived)
        assert event.event["termination"] == "terminated"
        assert isinstance(await s.gateway.next_event(), GoodbyeReceived)
        assert await held == b""
        assert await s.worker.exited() == 0
        await s.worker.all_dead()
