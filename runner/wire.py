"""The private socket's protocol without I/O: bytes in, events out; messages in, bytes out (UDS-1).

A frame is a u32 big-endian length and that many bytes of UTF-8 JSON holding one object. The life of a connection is the
table `_STEPS` below: the worker speaks first, the gateway answers, then requests and cancels go down and answers and
events come up, until either side says goodbye or breaks a rule. A rule broken by the peer never raises: the connection
queues a goodbye that names the rule, closes, and yields `Broken`.

Both ends use it: `runner.worker` and `gateway.runner_client`. It refuses to know: sockets, clocks, loops, and what a
method means.

    worker                                     gateway
      {"hello": {"protocol_version", "runner_instance_id"}}  ->
                                            <- {"hello": {"protocol_version"}}
                                            <- {"id", "method", "params"}      each id once, rising
                                            <- {"cancel": id}                  a cancelled request is answered too
      {"id", "result"} | {"id", "error"}     ->                                exactly one for each request
      {"event", ...}                         ->
      {"goodbye": reason}                    <->                               then the connection closes
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, NoReturn

from runner.api import MAX_FRAME_BYTES, PROTOCOL_VERSION, ErrorCode, RunnerError

HEADER_BYTES = 4
MAX_ID = 2**53 - 1
"""Ids stay exact in every JSON reader."""
MAX_NAME_CHARS = 200
_GOODBYE_CHARS = 500

Json = dict[str, Any]


class Role(Enum):
    """Which end this is."""

    GATEWAY = "gateway"
    WORKER = "worker"


class State(Enum):
    HELLO = "hello"
    """Nothing but the hello may pass."""
    OPEN = "open"
    CLOSED = "closed"
    """A goodbye passed, the stream ended, or a rule was broken. Nothing is read or written any more."""


class Kind(Enum):
    HELLO = "hello"
    REQUEST = "request"
    CANCEL = "cancel"
    ANSWER = "answer"
    EVENT = "event"
    GOODBYE = "goodbye"


# Who may send what, when. A pair that is not here breaks the connection.
_STEPS: Mapping[tuple[Role, State, Kind], State] = {
    (Role.WORKER, State.HELLO, Kind.HELLO): State.OPEN,
    (Role.WORKER, State.OPEN, Kind.ANSWER): State.OPEN,
    (Role.WORKER, State.OPEN, Kind.EVENT): State.OPEN,
    (Role.WORKER, State.HELLO, Kind.GOODBYE): State.CLOSED,
    (Role.WORKER, State.OPEN, Kind.GOODBYE): State.CLOSED,
    (Role.GATEWAY, State.HELLO, Kind.HELLO): State.OPEN,
    (Role.GATEWAY, State.OPEN, Kind.REQUEST): State.OPEN,
    (Role.GATEWAY, State.OPEN, Kind.CANCEL): State.OPEN,
    (Role.GATEWAY, State.HELLO, Kind.GOODBYE): State.CLOSED,
    (Role.GATEWAY, State.OPEN, Kind.GOODBYE): State.CLOSED,
}


# --- errors of our own side -------------------------------------------------------------------------------------------
class WireError(Exception):
    """Root of what sending may raise. Receiving raises nothing."""


class FrameTooLarge(WireError):
    """The message would be `size` bytes, over MAX_FRAME_BYTES. Nothing was queued; the connection is as before."""

    def __init__(self, size: int) -> None:
        super().__init__(f"a frame of {size} bytes is over the limit of {MAX_FRAME_BYTES}: ask for less at once")
        self.size = size


class NotAllowedNow(WireError):
    """This side may not send `kind` in `state`: the connection is not open yet, or closed."""

    def __init__(self, kind: Kind, state: State) -> None:
        super().__init__(f"cannot send {kind.value} while the connection is in state {state.value}")
        self.kind, self.state = kind, state


# --- what arrives -----------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class HelloReceived:
    """The peer's version is ours. `runner_instance_id` is there on the gateway's side only."""

    runner_instance_id: str | None


@dataclass(frozen=True, slots=True)
class RequestReceived:
    request_id: int
    method: str
    params: Json


@dataclass(frozen=True, slots=True)
class CancelReceived:
    """The request may already be answered: then it means nothing."""

    request_id: int


@dataclass(frozen=True, slots=True)
class ResultReceived:
    request_id: int
    result: Json


@dataclass(frozen=True, slots=True)
class ErrorReceived:
    request_id: int
    error: RunnerError


@dataclass(frozen=True, slots=True)
class EventReceived:
    """The whole event object, its name under "event"."""

    event: Json


@dataclass(frozen=True, slots=True)
class GoodbyeReceived:
    """The peer ended the connection and says why."""

    reason: str


@dataclass(frozen=True, slots=True)
class Broken:
    """The peer broke a rule, or the stream ended inside a frame; the connection is closed. `reason` names the rule."""

    reason: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The stream ended between two frames without a goodbye."""


WireEvent = (
    HelloReceived
    | RequestReceived
    | CancelReceived
    | ResultReceived
    | ErrorReceived
    | EventReceived
    | GoodbyeReceived
    | Broken
    | Ended
)


class _Violation(Exception):
    """A rule that the peer broke. Never leaves this module."""


def error_to_wire(error: RunnerError) -> Json:
    """`{"code", "message", "retryable", "details"}`: what a `RunnerError` is on the wire."""
    return {
        "code": str(error.code),
        "message": error.message,
        "retryable": error.retryable,
        "details": error.details,
    }


def encode_frame(message: Mapping[str, Any]) -> bytes:
    """One frame. Raises `FrameTooLarge`."""
    body = json.dumps(message, separators=(",", ":"), allow_nan=False).encode("ascii")
    if len(body) > MAX_FRAME_BYTES:
        raise FrameTooLarge(len(body))
    return len(body).to_bytes(HEADER_BYTES, "big") + body


class FrameReader:
    """Cuts a byte stream into JSON objects. Holds at most one frame and what one `feed` brought beyond it."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    @property
    def inside_frame(self) -> bool:
        return bool(self._buffer)

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def next_object(self) -> Json | None:
        """The next whole object, or None until more bytes come. Raises `_Violation`; then the reader is spent."""
        buffer = self._buffer
        if len(buffer) < HEADER_BYTES:
            return None
        size = int.from_bytes(buffer[:HEADER_BYTES], "big")
        if size > MAX_FRAME_BYTES:
            raise _Violation(f"a frame announces {size} bytes, over the limit of {MAX_FRAME_BYTES}")
        if size < 2:
            raise _Violation(f"a frame announces {size} bytes, too few for a JSON object")
        end = HEADER_BYTES + size
        if len(buffer) < end:
            return None
        body = bytes(memoryview(buffer)[HEADER_BYTES:end])
        del buffer[:end]
        return _parse(body)


class Connection:
    """One end of the private socket, as a state machine.

    Feed it with `receive_data`/`receive_eof`, act on the events they return, and write out `data_to_send()` after
    every call of any method. Not safe for use by several threads at once.
    """

    def __init__(self, role: Role) -> None:
        self.role = role
        self._peer = Role.WORKER if role is Role.GATEWAY else Role.GATEWAY
        self._received = State.HELLO
        self._sent = State.HELLO
        self._reader = FrameReader()
        self._out: list[bytes] = []
        self._last_id = 0
        self._open_requests: set[int] = set()

    @property
    def is_open(self) -> bool:
        """Both hellos passed and nothing ended the connection since."""
        return self._sent is State.OPEN and self._received is State.OPEN

    @property
    def is_closed(self) -> bool:
        return self._sent is State.CLOSED or self._received is State.CLOSED

    @property
    def open_requests(self) -> frozenset[int]:
        """Ids of requests that are not answered yet."""
        return frozenset(self._open_requests)

    def data_to_send(self) -> bytes:
        """Everything queued since the last call, in order."""
        if len(self._out) == 1:
            return self._out.pop()
        data = b"".join(self._out)
        self._out.clear()
        return data

    # --- sending: each raises NotAllowedNow or FrameTooLarge, and then has queued nothing -----------------------------
    def send_hello(self, runner_instance_id: str | None = None) -> None:
        """The worker says its instance id; the gateway answers without one, after it has received the worker's."""
        hello: Json = {"protocol_version": PROTOCOL_VERSION}
        if runner_instance_id is not None:
            hello["runner_instance_id"] = runner_instance_id
        self._send(Kind.HELLO, {"hello": hello})

    def send_request(self, method: str, params: Mapping[str, Any]) -> int:
        """Returns the id under which the answer will come."""
        request_id = self._last_id + 1
        self._send(Kind.REQUEST, {"id": request_id, "method": method, "params": params})
        self._last_id = request_id
        self._open_requests.add(request_id)
        return request_id

    def send_cancel(self, request_id: int) -> None:
        """Asks the worker to stop waiting. The request is still answered."""
        self._send(Kind.CANCEL, {"cancel": request_id})

    def send_result(self, request_id: int, result: Mapping[str, Any]) -> None:
        self._answer(request_id, {"id": request_id, "result": result})

    def send_error(self, request_id: int, error: RunnerError) -> None:
        self._answer(request_id, {"id": request_id, "error": error_to_wire(error)})

    def send_event(self, event: Mapping[str, Any]) -> None:
        """`event` has its name under "event"."""
        self._send(Kind.EVENT, event)

    def send_goodbye(self, reason: str) -> None:
        """Ends the connection for this side. Does nothing on one that is closed."""
        if self.is_closed:
            return
        self._send(Kind.GOODBYE, {"goodbye": reason[:_GOODBYE_CHARS]})

    def _answer(self, request_id: int, message: Json) -> None:
        if request_id not in self._open_requests:
            raise ValueError(f"request {request_id} is not open: it was answered already or never asked")
        self._send(Kind.ANSWER, message)
        self._open_requests.discard(request_id)

    def _send(self, kind: Kind, message: Mapping[str, Any]) -> None:
        after = _STEPS.get((self.role, self._sent, kind))
        waits_for_peer = kind is not Kind.GOODBYE and not (kind is Kind.HELLO and self.role is Role.WORKER)
        if after is None or self._received is State.CLOSED or (waits_for_peer and self._received is not State.OPEN):
            raise NotAllowedNow(kind, State.CLOSED if self.is_closed else self._sent)
        self._out.append(encode_frame(message))
        self._sent = after

    # --- receiving ----------------------------------------------------------------------------------------------------
    def receive_data(self, data: bytes) -> list[WireEvent]:
        """Events in the order of their frames. Bytes after the end of the connection are dropped. Never raises."""
        if self.is_closed:
            return []
        self._reader.feed(data)
        events: list[WireEvent] = []
        try:
            while not self.is_closed and (message := self._reader.next_object()) is not None:
                events.append(self._take(message))
        except _Violation as violation:
            events.append(self._break(str(violation)))
        return events

    def receive_eof(self) -> list[WireEvent]:
        """The stream ended."""
        if self.is_closed:
            return []
        if self._reader.inside_frame:
            return [self._break("the stream ended inside a frame")]
        self._received = State.CLOSED
        return [Ended()]

    def _break(self, reason: str) -> Broken:
        self.send_goodbye(reason)
        self._received = self._sent = State.CLOSED
        return Broken(reason)

    def _take(self, message: Json) -> WireEvent:
        kind = _kind_of(message)
        after = _STEPS.get((self._peer, self._received, kind))
        # The gateway's hello is an answer: it may not come before the worker spoke.
        if after is None or (self._sent is State.HELLO and self.role is Role.WORKER and kind is not Kind.GOODBYE):
            _refuse(f"{kind.value} is not allowed from the {self._peer.value} in state {self._received.value}")
        event = _READERS[kind](self, message)
        self._received = after
        return event

    def _take_hello(self, message: Json) -> WireEvent:
        hello = message["hello"]
        wanted = {"protocol_version", "runner_instance_id"} if self._peer is Role.WORKER else {"protocol_version"}
        if not isinstance(hello, dict) or "protocol_version" not in hello:
            _refuse("a hello needs an object with protocol_version")
        # The version first: another version may well have other fields.
        if type(hello["protocol_version"]) is not int or hello["protocol_version"] != PROTOCOL_VERSION:
            _refuse(f"protocol version {str(hello['protocol_version'])[:20]} is not {PROTOCOL_VERSION}")
        if set(hello) != wanted:
            _refuse(f"the hello of the {self._peer.value} has exactly {sorted(wanted)}")
        if self._peer is Role.GATEWAY:
            return HelloReceived(None)
        return HelloReceived(_name(hello["runner_instance_id"], "runner_instance_id"))

    def _take_request(self, message: Json) -> WireEvent:
        request_id = _id(message["id"])
        if request_id <= self._last_id:
            _refuse(f"request id {request_id} does not rise above {self._last_id}")
        event = RequestReceived(request_id, _name(message["method"], "method"), _object(message["params"], "params"))
        self._last_id = request_id
        self._open_requests.add(request_id)
        return event

    def _take_cancel(self, message: Json) -> WireEvent:
        request_id = _id(message["cancel"])
        if request_id > self._last_id:
            _refuse(f"cancel names request {request_id}, which was never made")
        return CancelReceived(request_id)

    def _take_answer(self, message: Json) -> WireEvent:
        request_id = _id(message["id"])
        if request_id not in self._open_requests:
            _refuse(f"an answer names request {request_id}, which is not open")
        event: WireEvent
        if "result" in message:
            event = ResultReceived(request_id, _object(message["result"], "result"))
        else:
            event = ErrorReceived(request_id, _error(message["error"]))
        self._open_requests.discard(request_id)
        return event

    def _take_event(self, message: Json) -> WireEvent:
        _name(message["event"], "event")
        return EventReceived(message)

    def _take_goodbye(self, message: Json) -> WireEvent:
        reason = message["goodbye"]
        if not isinstance(reason, str):
            _refuse("a goodbye needs a reason")
        return GoodbyeReceived(reason[:_GOODBYE_CHARS])


_READERS = {
    Kind.HELLO: Connection._take_hello,
    Kind.REQUEST: Connection._take_request,
    Kind.CANCEL: Connection._take_cancel,
    Kind.ANSWER: Connection._take_answer,
    Kind.EVENT: Connection._take_event,
    Kind.GOODBYE: Connection._take_goodbye,
}

_SHAPES: Mapping[frozenset[str], Kind] = {
    frozenset({"hello"}): Kind.HELLO,
    frozenset({"id", "method", "params"}): Kind.REQUEST,
    frozenset({"cancel"}): Kind.CANCEL,
    frozenset({"id", "result"}): Kind.ANSWER,
    frozenset({"id", "error"}): Kind.ANSWER,
    frozenset({"goodbye"}): Kind.GOODBYE,
}


def _refuse(reason: str) -> NoReturn:
    raise _Violation(reason)


def _parse(body: bytes) -> Json:
    try:
        value = json.loads(body.decode("utf-8"), parse_constant=_no_constant)
    except RecursionError:
        raise _Violation("a frame nests too deeply") from None
    except ValueError:  # bad UTF-8, bad JSON, NaN, or an integer of thousands of digits
        raise _Violation("a frame is not JSON in UTF-8") from None
    return _object(value, "a frame")


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)


def _kind_of(message: Json) -> Kind:
    kind = _SHAPES.get(frozenset(message))
    if kind is not None:
        return kind
    if "event" in message and not message.keys() & {"id", "hello", "goodbye", "cancel"}:
        return Kind.EVENT
    _refuse("a message has none of the known shapes")


def _id(value: object) -> int:
    if type(value) is not int or not 1 <= value <= MAX_ID:
        _refuse("a request id is an integer from 1 to 2^53 - 1")
    return value


def _name(value: object, what: str) -> str:
    if not isinstance(value, str) or not 1 <= len(value) <= MAX_NAME_CHARS:
        _refuse(f"{what} is a string of 1 to {MAX_NAME_CHARS} characters")
    return value


def _object(value: object, what: str) -> Json:
    if not isinstance(value, dict):
        _refuse(f"{what} is an object")
    return value


def _error(value: object) -> RunnerError:
    error = _object(value, "error")
    if set(error) != {"code", "message", "retryable", "details"}:
        _refuse("an error has exactly code, message, retryable and details")
    if not isinstance(error["message"], str) or not isinstance(error["retryable"], bool):
        _refuse("an error's message is text and its retryable a boolean")
    try:
        code = ErrorCode(error["code"])
    except ValueError:
        _refuse(f"error code {str(error['code'])[:40]!r} is not one of the contract")
    details = _object(error["details"], "details")
    return RunnerError(code, error["message"], retryable=error["retryable"], details=details)
