"""The worker's end of the private socket: a pump between `runner.wire` and the service (UDS-1, PROC-7).

Frames in become calls, answers and events become frames out. It refuses to know what a method does. Whatever ends the
connection ends the runner: `serve` then kills every command before it returns. Called by `runner.__main__`.
"""

from __future__ import annotations

import asyncio
import secrets
import traceback
from collections.abc import Awaitable, Callable
from typing import Any, cast

from pydantic import ValidationError

from runner.api import REQUESTS, ErrorCode, Message, Runner, RunnerError, RunnerEvent
from runner.log import Log
from runner.shortage import shortage_of
from runner.wire import (
    Broken,
    CancelReceived,
    Connection,
    Ended,
    FrameTooLarge,
    GoodbyeReceived,
    HelloReceived,
    RequestReceived,
    Role,
    WireEvent,
)

MAX_OPEN_REQUESTS = 1024
WRITE_BUFFER_BYTES = 1024 * 1024
"""Beyond this many unsent bytes answers wait, and no new request is read."""
_CANCELLABLE = frozenset(
    {"describe", "read_file", "find_files", "grep_files", "read_process", "process_status", "list_processes"}
)
"""Requests without an effect. A cancel of any other is ignored: its effect may be half done."""

Handler = Callable[[Message], Awaitable[Message]]


class WorkerLink(asyncio.Protocol):
    """One connection to the gateway. `ended` resolves with the reason once it is over."""

    def __init__(self, runner: Runner, runner_instance_id: str, log: Log) -> None:
        self._runner, self._instance_id, self._log = runner, runner_instance_id, log
        self._wire = Connection(Role.WORKER)
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._cancellable: set[int] = set()
        """Requests whose work is under way and has no effect; once it is done nothing may keep its answer back."""
        self.ended: asyncio.Future[str] = self._loop.create_future()

    # --- asyncio.Protocol -------------------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        self._runner.subscribe(self._on_event)
        self._wire.send_hello(self._instance_id)
        self._flush()

    def data_received(self, data: bytes) -> None:
        for event in self._wire.receive_data(data):
            self._take(event)
        self._flush()

    def eof_received(self) -> None:
        for event in self._wire.receive_eof():
            self._take(event)
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end("the connection was lost" if exc is None else f"the connection was lost: {exc!r}")

    def pause_writing(self) -> None:
        self._writable.clear()
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._writable.set()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    # --- what arrives -----------------------------------------------------------------------------------------------
    def _take(self, event: WireEvent) -> None:
        match event:
            case RequestReceived():
                self._accept(event)
            case CancelReceived(request_id):
                # Behind the first step of a task whose request came in the same bytes: before it there is no work to
                # cancel, and afterwards there would be no cancel.
                self._loop.call_soon(self._cancel, request_id)
            case HelloReceived():
                self._log("connected")
            case GoodbyeReceived(reason):
                self._end(f"the gateway said goodbye: {reason}")
            case Broken(reason):
                self._end(f"the gateway broke the protocol: {reason}")
            case Ended():
                self._end("the gateway closed the connection")
            case _:
                raise AssertionError(f"{event!r} cannot arrive at a worker")

    def _cancel(self, request_id: int) -> None:
        if request_id in self._cancellable:
            self._tasks[request_id].cancel()

    def _accept(self, request: RequestReceived) -> None:
        if len(self._tasks) >= MAX_OPEN_REQUESTS:
            busy = RunnerError(
                ErrorCode.RUNNER_UNAVAILABLE,
                f"{MAX_OPEN_REQUESTS} requests are open already; try again when some have ended",
                retryable=True,
            )
            self._wire.send_error(request.request_id, busy)
            return
        task = self._loop.create_task(self._answer(request), name=f"{request.method} {request.request_id}")
        self._tasks[request.request_id] = task
        task.add_done_callback(lambda _: self._tasks.pop(request.request_id, None))

    async def _perform(self, request: RequestReceived) -> Message:
        types = REQUESTS.get(request.method)
        if types is None:
            raise RunnerError(ErrorCode.INVALID_ARGUMENT, f"the runner has no method {request.method!r}")
        try:
            parsed = types[0].model_validate(request.params)
        except ValidationError as error:
            raise _invalid(request.method, error) from None
        handler: Handler = getattr(self._runner, request.method)
        return await handler(parsed)

    async def _answer(self, request: RequestReceived) -> None:
        """Exactly one answer, unless the connection ends first."""
        outcome: Message | RunnerError
        if request.method in _CANCELLABLE:
            self._cancellable.add(request.request_id)
        try:
            outcome = await self._perform(request)
        except RunnerError as error:
            outcome = error
        except asyncio.CancelledError:
            if self.ended.done():
                raise
            outcome = RunnerError(ErrorCode.RUNNER_UNAVAILABLE, "the request was cancelled by the gateway")
        except Exception as error:  # noqa: BLE001 - the outermost handler of a request
            outcome = self._failed(request.method, error)
        finally:
            self._cancellable.discard(request.request_id)
        await self._writable.wait()
        if self._wire.is_closed:
            return
        try:
            if isinstance(outcome, RunnerError):
                self._wire.send_error(request.request_id, outcome)
            else:
                self._wire.send_result(request.request_id, outcome.model_dump(mode="json", exclude_none=True))
        except FrameTooLarge as error:
            too_large = RunnerError(ErrorCode.INVALID_ARGUMENT, f"the answer to {request.method} is too large: {error}")
            self._wire.send_error(request.request_id, too_large)
        except MemoryError as error:
            # What made the answer large goes first: an error is small enough for what is left.
            del outcome
            self._wire.send_error(request.request_id, self._failed(request.method, error))
        self._flush()

    def _failed(self, method: str, error: Exception) -> RunnerError:
        """A shortage is told as one where the request can simply be made again."""
        short = shortage_of(error)
        if short is None or method not in _CANCELLABLE:
            return self._internal(method, error)
        self._log("short", level="warning", method=method, errno=short)
        return RunnerError(
            ErrorCode.RUNNER_UNAVAILABLE,
            f"the runner is short of memory, processes or descriptors ({short}): try again later",
            retryable=True,
            details={"errno": short},
        )

    def _internal(self, method: str, error: Exception) -> RunnerError:
        error_id = f"err_{secrets.token_hex(8)}"
        trace = "".join(traceback.format_exception(error))
        self._log("request_broke", level="error", method=method, error_id=error_id, traceback=trace)
        return RunnerError(
            ErrorCode.INTERNAL,
            f"the runner failed in {method}; its log has the cause under {error_id}",
            details={"error_id": error_id},
        )

    def _on_event(self, event: RunnerEvent) -> None:
        """Queued at once, so that no answer that depends on it overtakes it. One a command. It leaves with the answers
        that it wakes, which are there a turn of the loop later, so that the gateway wakes once for all of them."""
        if not self._wire.is_open:
            return
        self._wire.send_event(event.model_dump(mode="json", exclude_none=True))
        self._loop.call_soon(self._loop.call_soon, self._flush)

    def say_goodbye(self, reason: str) -> None:
        self._wire.send_goodbye(reason)
        self._flush()
        self._end(reason)

    def _flush(self) -> None:
        data = self._wire.data_to_send()
        if data and self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def _end(self, reason: str) -> None:
        if self.ended.done():
            return
        self._flush()
        self.ended.set_result(reason)
        if self._transport is not None:
            self._transport.close()
        self._writable.set()
        for request_id in list(self._cancellable):
            self._cancel(request_id)


async def serve(
    runner: Runner,
    *,
    socket_path: str,
    runner_instance_id: str,
    stop: asyncio.Event,
    log: Log,
    on_ending: Callable[[], None] = lambda: None,
) -> None:
    """Serves one connection, and returns once it is over and every command is dead.

    `stop`: ends it from this side. `on_ending`: called once, when the end begins. Raises OSError if the gateway's
    socket cannot be reached; nothing runs then.
    """
    loop = asyncio.get_running_loop()
    link = WorkerLink(runner, runner_instance_id, log)
    await loop.create_unix_connection(lambda: link, socket_path)
    stopped = loop.create_task(stop.wait())
    link.ended.add_done_callback(lambda _: stop.set())
    try:
        await stopped
        on_ending()
        if not link.ended.done():
            # The commands first: the gateway takes the end of the connection for the end of their lives.
            await runner.close()
            link.say_goodbye("the runner was told to stop")
        log("disconnected", reason=await link.ended)
    finally:
        stopped.cancel()
        await runner.close()


def _invalid(method: str, error: ValidationError) -> RunnerError:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"]) or "params"
    details: dict[str, Any] = {"argument": where}
    return RunnerError(ErrorCode.INVALID_ARGUMENT, f"{method}: {where}: {first['msg']}", details=details)
