"""The runner over the private socket: `runner.api.Runner` as frames (UDS-1, UDS-2).

A pump between an asyncio transport and the sans-I/O `runner.wire.Connection`. What it adds is the truth about delivery:
a request whose frame was never handed to the transport is RUNNER_UNAVAILABLE, for nothing can have happened; any other
request that gets no answer is `RunnerLost`, which never means "failed". Nothing is sent twice.

Refuses to know: processes, how the socket came about, what a lost request means to a lease. Made by `worker_process`.
"""

from __future__ import annotations

import asyncio
import functools
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar, cast

from pydantic import ValidationError

from runner import api, wire
from runner.api import ErrorCode, RunnerError, RunnerLost

SAFE_TO_CANCEL = frozenset(
    {"describe", "read_file", "find_files", "grep_files", "read_process", "process_status", "list_processes"}
)
"""Methods that a cancelled caller stops in the worker too; the others run to their end there."""
WRITE_BUFFER_BYTES = 256 * 1024
"""Beyond it the transport asks for a pause, and requests wait here, where they are provably not sent."""

M = TypeVar("M", bound=api.Message)


@dataclass(eq=False, slots=True)
class _Call:
    """`request_id`: None until its frame is handed to the transport."""

    method: str
    request: api.Message
    answer: asyncio.Future[api.Message]
    request_id: int | None = None


class UdsRunner(asyncio.Protocol):
    """One connection, from hello to loss. A protocol for `loop.create_unix_connection(..., sock=...)`.

    `on_lost` is called once, with the reason, as soon as no request can be delivered any more.
    """

    def __init__(self, on_lost: Callable[[str], None]) -> None:
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._wire = wire.Connection(wire.Role.GATEWAY)
        self._transport: asyncio.Transport | None = None
        self._hello: asyncio.Future[str] = self._loop.create_future()
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self._lost: str | None = None
        self._paused = False
        self._unsent: OrderedDict[int, _Call] = OrderedDict()
        self._sent: dict[int, _Call] = {}
        self._listeners: list[api.EventListener] = []

    # --- life ---------------------------------------------------------------------------------------------------------
    async def hello(self) -> str:
        """The instance id of the worker, once both sides have said hello. Raises `RunnerLost` if it never does."""
        return await asyncio.shield(self._hello)

    def subscribe(self, listener: api.EventListener) -> None:
        """See `Runner.subscribe`: called synchronously, before any later answer is delivered."""
        self._listeners.append(listener)

    async def close(self) -> None:
        """Says goodbye and closes: the worker then kills what it runs. Returns when the socket is closed, not when all
        is dead, which only the liveness pipe proves. Idempotent."""
        self._say_goodbye("the gateway closes")
        if self._transport is not None:
            await asyncio.shield(self._closed)

    def abort(self, reason: str) -> None:
        """Drops the connection at once, for a worker that is known to be dead. Idempotent."""
        self._lose(reason)
        if self._transport is not None:
            self._transport.abort()

    def _say_goodbye(self, reason: str) -> None:
        self._wire.send_goodbye(reason)
        if self._transport is not None and not self._transport.is_closing():
            data = self._wire.data_to_send()
            if data:
                self._transport.write(data)
            self._transport.close()
        self._lose(reason)

    def _lose(self, reason: str) -> None:
        if self._lost is not None:
            return
        self._lost = reason
        if not self._hello.done():
            self._hello.set_exception(RunnerLost(f"the runner ended before its hello: {reason}"))
            self._hello.exception()  # may have no reader: then its loss is told by on_lost alone
        unsent, self._unsent = self._unsent, OrderedDict()
        sent, self._sent = self._sent, {}
        for call in unsent.values():
            if not call.answer.done():
                call.answer.set_exception(_unavailable())
        for call in sent.values():
            if not call.answer.done():
                call.answer.set_exception(
                    RunnerLost(
                        f"the runner was lost while it performed {call.method}: whether it had its effect is unknown"
                    )
                )
        self._on_lost(reason)

    # --- asyncio.Protocol ---------------------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are none of asyncio's classes, only of their shape.
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._flush()

    def data_received(self, data: bytes) -> None:
        self._handle(self._wire.receive_data(data))

    def eof_received(self) -> bool:
        self._handle(self._wire.receive_eof())
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose(f"the connection ended ({exc or 'closed'})")
        if not self._closed.done():
            self._closed.set_result(None)

    # --- incoming -----------------------------------------------------------------------------------------------------
    def _handle(self, events: list[wire.WireEvent]) -> None:
        for event in events:
            if self._lost is not None:
                return
            match event:
                case wire.ResultReceived():
                    self._finish(event)
                case wire.ErrorReceived():
                    call = self._sent.pop(event.request_id, None)
                    if call is not None and not call.answer.done():
                        call.answer.set_exception(event.error)
                case wire.EventReceived():
                    self._announce(event)
                case wire.HelloReceived(runner_instance_id=str(instance_id)):
                    self._wire.send_hello()
                    self._hello.set_result(instance_id)
                case wire.Broken(reason=reason):
                    self._break(f"the runner broke the protocol: {reason}")
                case wire.GoodbyeReceived(reason=reason):
                    self._break(f"the runner said goodbye: {reason}")
                case _:
                    self._break("the runner closed the connection")
        self._flush()

    def _finish(self, event: wire.ResultReceived) -> None:
        call = self._sent.pop(event.request_id, None)
        if call is None:
            return
        try:
            result = api.REQUESTS[call.method][1].model_validate(event.result)
        except ValidationError:
            # The mutation may well have happened: back into the books, so that its caller hears "unknown".
            self._sent[event.request_id] = call
            self._break(f"the answer to {call.method} has a wrong shape")
            return
        if not call.answer.done():
            call.answer.set_result(result)

    def _announce(self, received: wire.EventReceived) -> None:
        try:
            event = api.ProcessExited.model_validate(received.event)
        except ValidationError:
            self._break("an event has a wrong shape")
            return
        for listener in self._listeners:
            listener(event)

    def _break(self, reason: str) -> None:
        self._say_goodbye(reason)

    # --- outgoing -----------------------------------------------------------------------------------------------------
    async def _call(self, method: str, request: api.Message, result: type[M]) -> M:
        if self._lost is not None or self._transport is None or not self._hello.done():
            raise _unavailable()
        call = _Call(method, request, self._loop.create_future())
        self._unsent[id(call)] = call
        self._flush()
        try:
            answer = await call.answer
        except asyncio.CancelledError:
            self._abandon(call)
            raise
        assert isinstance(answer, result)
        return answer

    def _abandon(self, call: _Call) -> None:
        if self._unsent.pop(id(call), None) is not None or call.request_id is None:
            return
        if self._lost is None and call.method in SAFE_TO_CANCEL and call.request_id in self._sent:
            self._wire.send_cancel(call.request_id)
            self._flush()

    def _flush(self) -> None:
        """Hands frames to the transport: control frames always, requests until it asks for a pause."""
        transport = self._transport
        if transport is None or self._lost is not None:
            return
        data = self._wire.data_to_send()
        if data:
            transport.write(data)
        while self._unsent and not self._paused and self._lost is None:
            _, call = self._unsent.popitem(last=False)
            try:
                call.request_id = self._wire.send_request(call.method, call.request.model_dump(mode="json"))
            except wire.FrameTooLarge as error:
                call.answer.set_exception(RunnerError(ErrorCode.INVALID_ARGUMENT, str(error)))
                continue
            except wire.NotAllowedNow:
                call.answer.set_exception(_unavailable())
                continue
            self._sent[call.request_id] = call
            transport.write(self._wire.data_to_send())

    # --- api.Runner ---------------------------------------------------------------------------------------------------
    async def describe(self, request: api.Describe) -> api.RunnerDescription:
        return await self._call("describe", request, api.RunnerDescription)

    async def read_file(self, request: api.ReadFile) -> api.FileContent:
        return await self._call("read_file", request, api.FileContent)

    async def find_files(self, request: api.FindFiles) -> api.FindPage:
        return await self._call("find_files", request, api.FindPage)

    async def grep_files(self, request: api.GrepFiles) -> api.GrepPage:
        return await self._call("grep_files", request, api.GrepPage)

    async def apply_patch(self, request: api.ApplyPatch) -> api.PatchApplied:
        return await self._call("apply_patch", request, api.PatchApplied)

    async def recover_patches(self, request: api.RecoverPatches) -> api.RecoveredPatches:
        return await self._call("recover_patches", request, api.RecoveredPatches)

    async def tidy_workspace(self, request: api.TidyWorkspace) -> api.WorkspaceTidied:
        return await self._call("tidy_workspace", request, api.WorkspaceTidied)

    async def start_process(self, request: api.StartProcess) -> api.ProcessStarted:
        return await self._call("start_process", request, api.ProcessStarted)

    async def read_process(self, request: api.ReadProcess) -> api.ProcessOutput:
        return await self._call("read_process", request, api.ProcessOutput)

    async def process_status(self, request: api.QueryProcess) -> api.ProcessStatus:
        return await self._call("process_status", request, api.ProcessStatus)

    async def write_stdin(self, request: api.WriteStdin) -> api.StdinWritten:
        return await self._call("write_stdin", request, api.StdinWritten)

    async def resize_process(self, request: api.ResizeProcess) -> api.ProcessResized:
        return await self._call("resize_process", request, api.ProcessResized)

    async def terminate_process(self, request: api.TerminateProcess) -> api.ProcessTerminating:
        return await self._call("terminate_process", request, api.ProcessTerminating)

    async def terminate_workspace(self, request: api.TerminateWorkspace) -> api.WorkspaceTerminated:
        return await self._call("terminate_workspace", request, api.WorkspaceTerminated)

    async def list_processes(self, request: api.ListProcesses) -> api.ProcessList:
        return await self._call("list_processes", request, api.ProcessList)


_unavailable = functools.partial(
    RunnerError,
    ErrorCode.RUNNER_UNAVAILABLE,
    "the runner is not connected, so nothing was done: it is being restarted, try again",
    retryable=True,
)
