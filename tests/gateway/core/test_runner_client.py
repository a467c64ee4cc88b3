"""The runner client against a scripted worker: concurrency, cancelling, order, and the truth about delivery."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from gateway.runner_client import UdsRunner
from runner import api
from runner.api import ErrorCode, RunnerError, RunnerLost, WorkspaceTerms
from runner.wire import RequestReceived
from tests.gateway.core.scripted import ANSWERS, EXITED, ScriptedWorker, connected

START = api.StartProcess(process_id="proc_1", terms=WorkspaceTerms(workspace_id="demo", root="/w"), argv=("true",))
TERMINATE = api.TerminateProcess(process_id="proc_1")
LIST = api.ListProcesses()


async def soon(awaitable: Awaitable[Any]) -> Any:
    return await asyncio.wait_for(awaitable, 15)


@pytest.mark.covers("UDS-1")
async def test_answers_find_their_requests_in_whatever_order_they_come() -> None:
    async with connected() as (runner, worker, _):
        calls = [asyncio.create_task(runner.terminate_process(TERMINATE)) for _ in range(5)]
        requests = [await soon(worker.request()) for _ in calls]
        for number, request in reversed(list(enumerate(requests))):
            await worker.answer(request, {"process_id": f"proc_{number}", "state": "running"})
        assert [(await soon(call)).process_id for call in calls] == [f"proc_{n}" for n in range(5)]
        assert [request.request_id for request in requests] == [1, 2, 3, 4, 5]


async def test_an_error_answer_is_the_runner_s_own_error() -> None:
    async with connected() as (runner, worker, _):
        call = asyncio.create_task(runner.start_process(START))
        request = await soon(worker.request())
        assert api.StartProcess.model_validate(request.params) == START
        details = {"stage": "exec", "errno": "ENOENT"}
        worker.wire.send_error(
            request.request_id, RunnerError(ErrorCode.PROCESS_SPAWN_FAILED, "no such program", details=details)
        )
        await worker.flush()
        with pytest.raises(RunnerError) as error:
            await soon(call)
        assert not isinstance(error.value, RunnerLost)
        assert (error.value.code, error.value.details) == (ErrorCode.PROCESS_SPAWN_FAILED, details)


@pytest.mark.covers("LEASE-2")
async def test_an_event_is_delivered_before_any_answer_that_follows_it() -> None:
    async with connected() as (runner, worker, _):
        order: list[str] = []
        runner.subscribe(lambda event: order.append(event.process_id))
        call = asyncio.create_task(runner.list_processes(LIST))
        call.add_done_callback(lambda _: order.append("answer"))
        request = await soon(worker.request())
        worker.wire.send_event(EXITED)
        worker.wire.send_result(request.request_id, ANSWERS["list_processes"])
        await worker.flush()
        await soon(call)
        await asyncio.wait({call}, timeout=0)
        assert order == ["proc_1", "answer"]


async def test_cancelling_a_wait_is_passed_on_and_its_late_answer_is_dropped() -> None:
    async with connected() as (runner, worker, losses):
        wait = asyncio.create_task(runner.process_status(api.QueryProcess(process_id="proc_1", wait_ms=60_000)))
        request = await soon(worker.request())
        wait.cancel()
        assert await soon(worker.cancel()) == request.request_id
        worker.wire.send_error(request.request_id, RunnerError(ErrorCode.PROCESS_NOT_FOUND, "gone"))
        await worker.flush()
        call = asyncio.create_task(runner.list_processes(LIST))
        await worker.answer(await soon(worker.request()))
        await soon(call)
        assert losses == []


async def test_cancelling_a_mutation_is_not_passed_on() -> None:
    async with connected() as (runner, worker, _):
        start = asyncio.create_task(runner.start_process(START))
        await soon(worker.request())
        start.cancel()
        await asyncio.wait({start})
        call = asyncio.create_task(runner.list_processes(LIST))
        await worker.answer(await soon(worker.request()))
        await soon(call)
        assert worker.cancelled == []


Cut = Callable[[ScriptedWorker, RequestReceived], Awaitable[None]]


async def silently(worker: ScriptedWorker, request: RequestReceived) -> None:
    worker.hang_up()


async def with_goodbye(worker: ScriptedWorker, request: RequestReceived) -> None:
    worker.wire.send_goodbye("enough")
    await worker.flush()
    worker.hang_up()


async def inside_the_answer(worker: ScriptedWorker, request: RequestReceived) -> None:
    worker.wire.send_result(request.request_id, ANSWERS[request.method])
    data = worker.wire.data_to_send()
    await worker.raw(data[: len(data) // 2])
    worker.hang_up()


async def inside_the_header(worker: ScriptedWorker, request: RequestReceived) -> None:
    await worker.raw(b"\0\0")
    worker.hang_up()


async def with_garbage(worker: ScriptedWorker, request: RequestReceived) -> None:
    await worker.raw(b"\0\0\0\x05hello")


async def with_a_huge_frame(worker: ScriptedWorker, request: RequestReceived) -> None:
    await worker.raw(b"\xff\xff\xff\xff")


async def with_a_wrong_shape(worker: ScriptedWorker, request: RequestReceived) -> None:
    await worker.answer(request, {"nonsense": 1})


async def with_a_wrong_event(worker: ScriptedWorker, request: RequestReceived) -> None:
    worker.wire.send_event({"event": "no_such_event"})
    await worker.flush()


@pytest.mark.covers("UDS-2", "PROC-8")
@pytest.mark.parametrize(
    "cut",
    [
        silently,
        with_goodbye,
        inside_the_answer,
        inside_the_header,
        with_garbage,
        with_a_huge_frame,
        with_a_wrong_shape,
        with_a_wrong_event,
    ],
)
@pytest.mark.parametrize("method", ["start_process", "apply_patch"])
async def test_a_delivered_request_without_its_answer_is_lost_and_never_failed(method: str, cut: Cut) -> None:
    async with connected() as (runner, worker, losses):
        patch = api.ApplyPatch(workspace=START.terms, patch="p", operation_id="op_1", journal_dir="/j")
        work: Awaitable[Any] = runner.start_process(START) if method == "start_process" else runner.apply_patch(patch)
        call = asyncio.ensure_future(work)
        await cut(worker, await soon(worker.request()))
        with pytest.raises(RunnerLost, match=method):
            await soon(call)
        assert len(losses) == 1, losses
        with pytest.raises(RunnerError) as after:
            await soon(runner.start_process(START))
        assert not isinstance(after.value, RunnerLost)
        assert (after.value.code, after.value.retryable) == (ErrorCode.RUNNER_UNAVAILABLE, True)


@pytest.mark.covers("UDS-2")
async def test_an_answer_before_the_cut_counts() -> None:
    async with connected() as (runner, worker, losses):
        call = asyncio.create_task(runner.start_process(START))
        await worker.answer(await soon(worker.request()))
        worker.hang_up()
        assert (await soon(call)).process_id == "proc_1"
        await soon(runner.close())
        assert len(losses) == 1


@pytest.mark.covers("UDS-2")
async def test_what_waits_behind_a_full_socket_is_provably_not_sent() -> None:
    async with connected() as (runner, worker, _):
        bulky = api.WriteStdin(process_id="proc_1", data="x" * api.MAX_STDIN_BYTES)
        calls = [asyncio.create_task(runner.write_stdin(bulky)) for _ in range(8)]
        last = asyncio.create_task(runner.start_process(START))
        await asyncio.wait({last}, timeout=0)
        await asyncio.wait({last}, timeout=0)
        worker.hang_up()
        with pytest.raises(RunnerError) as never_sent:
            await soon(last)
        assert not isinstance(never_sent.value, RunnerLost)
        assert never_sent.value.code is ErrorCode.RUNNER_UNAVAILABLE
        outcomes = await soon(asyncio.gather(*calls, return_exceptions=True))
        assert isinstance(outcomes[0], RunnerLost), "the first was on its way"


async def test_a_full_socket_delays_requests_and_loses_none() -> None:
    async with connected() as (runner, worker, losses):
        bulky = api.WriteStdin(process_id="proc_1", data="x" * 300_000)
        calls = [asyncio.create_task(runner.write_stdin(bulky)) for _ in range(12)]
        for number in range(12):
            await worker.answer(await soon(worker.request()), {"process_id": "proc_1", "written_bytes": number})
        assert [(await soon(call)).written_bytes for call in calls] == list(range(12))
        assert losses == []


async def test_a_request_over_the_frame_limit_is_refused_and_the_connection_goes_on() -> None:
    async with connected() as (runner, worker, losses):
        with pytest.raises(RunnerError) as error:
            await soon(runner.write_stdin(api.WriteStdin(process_id="p", data="x" * api.MAX_FRAME_BYTES)))
        assert error.value.code is ErrorCode.INVALID_ARGUMENT
        call = asyncio.create_task(runner.list_processes(LIST))
        await worker.answer(await soon(worker.request()))
        await soon(call)
        assert losses == []


@pytest.mark.covers("UDS-1")
@pytest.mark.parametrize(
    "hello", [b"", b"\0\0\0\x02{}", b'\0\0\0\x3a{"hello":{"protocol_version":9,"runner_instance_id":"run-1"}}']
)
async def test_a_worker_that_says_no_proper_hello_is_turned_away(hello: bytes) -> None:
    async with connected(greet=False) as (runner, worker, losses):
        with pytest.raises(RunnerError) as early:
            await soon(runner.list_processes(LIST))
        assert early.value.code is ErrorCode.RUNNER_UNAVAILABLE
        await worker.raw(hello)
        if not hello:
            worker.hang_up()
        with pytest.raises(RunnerLost, match="before its hello"):
            await soon(runner.hello())
        assert len(losses) == 1


@pytest.mark.covers("UDS-1")
async def test_a_bad_frame_is_answered_with_the_reason_before_the_connection_closes() -> None:
    async with connected() as (_, worker, _):
        await worker.raw(b"\0\0\0\x05hello")
        assert "JSON" in await soon(worker.farewell())


async def test_closing_says_goodbye_and_is_idempotent() -> None:
    async with connected() as (runner, worker, losses):
        await soon(asyncio.gather(runner.close(), runner.close()))
        assert "closes" in await soon(worker.farewell())
        assert losses == ["the gateway closes"]


def test_every_method_of_the_contract_is_there() -> None:
    assert all(callable(getattr(UdsRunner, name)) for name in api.REQUESTS)
