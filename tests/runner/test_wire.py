"""The private socket's protocol: rules, round trips, and any bytes at all (UDS-1)."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.api import MAX_FRAME_BYTES, ErrorCode, RunnerError
from runner.wire import (
    Broken,
    CancelReceived,
    Connection,
    Ended,
    ErrorReceived,
    EventReceived,
    FrameTooLarge,
    GoodbyeReceived,
    HelloReceived,
    NotAllowedNow,
    RequestReceived,
    ResultReceived,
    Role,
    WireEvent,
    encode_frame,
)

pytestmark = pytest.mark.covers("UDS-1")

EVENTS = (
    HelloReceived,
    RequestReceived,
    CancelReceived,
    ResultReceived,
    ErrorReceived,
    EventReceived,
    GoodbyeReceived,
    Broken,
    Ended,
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)
json_objects = st.dictionaries(st.text(), json_values, max_size=4)


def greeted() -> tuple[Connection, Connection]:
    """Gateway and worker, both open."""
    gateway, worker = Connection(Role.GATEWAY), Connection(Role.WORKER)
    worker.send_hello("runner_1")
    assert gateway.receive_data(worker.data_to_send()) == [HelloReceived("runner_1")]
    gateway.send_hello()
    assert worker.receive_data(gateway.data_to_send()) == [HelloReceived(None)]
    return gateway, worker


def pieces(data: bytes, cuts: Iterable[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


def frame(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def test_a_request_is_answered_under_its_id_and_the_books_balance() -> None:
    gateway, worker = greeted()
    first = gateway.send_request("describe", {})
    second = gateway.send_request("read_file", {"path": "é\ud800"})
    assert gateway.open_requests == {first, second}
    assert worker.receive_data(gateway.data_to_send()) == [
        RequestReceived(first, "describe", {}),
        RequestReceived(second, "read_file", {"path": "é\ud800"}),
    ]
    worker.send_event({"event": "process_exited", "process_id": "p"})
    worker.send_result(second, {"size": 1})
    worker.send_error(first, RunnerError(ErrorCode.INTERNAL, "no", retryable=True, details={"a": [1]}))
    event, result, error = gateway.receive_data(worker.data_to_send())
    assert event == EventReceived({"event": "process_exited", "process_id": "p"})
    assert result == ResultReceived(second, {"size": 1})
    assert isinstance(error, ErrorReceived)
    assert (error.error.code, error.error.message, error.error.retryable) == (ErrorCode.INTERNAL, "no", True)
    assert error.error.details == {"a": [1]}
    assert gateway.open_requests == worker.open_requests == frozenset()


def test_a_cancel_names_a_request_that_was_made() -> None:
    gateway, worker = greeted()
    request_id = gateway.send_request("read_process", {})
    gateway.send_cancel(request_id)
    assert worker.receive_data(gateway.data_to_send())[-1] == CancelReceived(request_id)
    gateway.send_cancel(request_id + 1)
    (broken,) = worker.receive_data(gateway.data_to_send())
    assert broken == Broken(f"cancel names request {request_id + 1}, which was never made")


@given(st.lists(st.tuples(st.text(min_size=1, max_size=20), json_objects), max_size=5), st.lists(st.integers(0)))
def test_what_is_sent_arrives_however_the_stream_is_cut(
    requests: list[tuple[str, dict[str, object]]], cuts: list[int]
) -> None:
    gateway, worker = greeted()
    sent = [RequestReceived(gateway.send_request(method, params), method, params) for method, params in requests]
    got: list[WireEvent] = []
    for piece in pieces(gateway.data_to_send(), cuts):
        got += worker.receive_data(piece)
    assert got == sent


@pytest.mark.parametrize("role", Role)
@given(data=st.binary(max_size=300), cuts=st.lists(st.integers(0), max_size=4), greet=st.booleans())
@settings(max_examples=300)
def test_any_bytes_give_events_or_a_typed_end_and_never_raise(
    role: Role, data: bytes, cuts: list[int], greet: bool
) -> None:
    feed_anything(role, pieces(data, cuts), greet)


@pytest.mark.parametrize("role", Role)
@given(bodies=st.lists(st.binary(max_size=60) | json_values.map(lambda v: json.dumps(v).encode()), max_size=4))
@settings(max_examples=300)
def test_any_framed_bytes_give_events_or_a_typed_end(role: Role, bodies: list[bytes]) -> None:
    feed_anything(role, [frame(body) for body in bodies], True)


@pytest.mark.parametrize("role", Role)
@given(
    messages=st.lists(
        st.dictionaries(
            st.sampled_from(["id", "method", "params", "result", "error", "event", "cancel", "hello", "goodbye", "x"]),
            st.integers(-1, 3) | st.text(max_size=3) | json_objects | st.none(),
            max_size=4,
        ),
        max_size=6,
    )
)
@settings(max_examples=300)
def test_any_mix_of_known_fields_gives_events_or_a_typed_end(role: Role, messages: list[dict[str, object]]) -> None:
    feed_anything(role, [encode_frame(message) for message in messages], True)


def feed_anything(role: Role, data: list[bytes], greet: bool) -> None:
    gateway, worker = greeted() if greet else (Connection(Role.GATEWAY), Connection(Role.WORKER))
    end = gateway if role is Role.GATEWAY else worker
    events: list[WireEvent] = []
    for piece in data:
        events += end.receive_data(piece)
    events += end.receive_eof()
    assert all(isinstance(event, EVENTS) for event in events)
    ends = [event for event in events if isinstance(event, Broken | Ended | GoodbyeReceived)]
    assert len(ends) == 1
    assert events[-1] is ends[0]
    assert end.is_closed
    assert end.receive_data(b"more") == []
    assert end.receive_eof() == []


BAD_FRAMES = {
    "too long": (MAX_FRAME_BYTES + 1).to_bytes(4, "big"),
    "too short": frame(b"1"),
    "empty": frame(b""),
    "not UTF-8": frame(b'{"event":"\xff"}'),
    "UTF-16": frame('{"event":"x"}'.encode("utf-16")),
    "not JSON": frame(b"{'a': 1}"),
    "two values": frame(b"{}{}"),
    "NaN": frame(b'{"event":NaN}'),
    "a list": frame(b"[]"),
    "deep": frame(b'{"event":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    "long digits": frame(b'{"event":' + b"9" * 10_000 + b"}"),
    "no shape": frame(b'{"a":1}'),
    "hello twice": frame(b'{"hello":{"protocol_version":1,"runner_instance_id":"x"}}'),
    "a request from the worker": frame(b'{"id":1,"method":"describe","params":{}}'),
    "an answer to nothing": frame(b'{"id":77,"result":{}}'),
    "a boolean id": frame(b'{"id":true,"result":{}}'),
    "result and error": frame(b'{"id":1,"result":{},"error":{}}'),
    "a nameless event": frame(b'{"event":""}'),
    "a goodbye without words": frame(b'{"goodbye":1}'),
}


@pytest.mark.parametrize("name", BAD_FRAMES)
def test_a_bad_frame_ends_the_connection_with_a_reason_for_both_sides(name: str) -> None:
    gateway, worker = greeted()
    (broken,) = gateway.receive_data(BAD_FRAMES[name])
    assert isinstance(broken, Broken)
    (goodbye,) = worker.receive_data(gateway.data_to_send())
    assert goodbye == GoodbyeReceived(broken.reason)
    assert gateway.is_closed
    assert worker.is_closed


@pytest.mark.parametrize(
    "error",
    [
        {},
        {"code": "NO_SUCH_CODE", "message": "", "retryable": False, "details": {}},
        {"code": "INTERNAL", "message": 1, "retryable": False, "details": {}},
        {"code": "INTERNAL", "message": "", "retryable": 0, "details": {}},
        {"code": "INTERNAL", "message": "", "retryable": False, "details": []},
        {"code": "INTERNAL", "message": "", "retryable": False, "details": {}, "more": 1},
        {"code": [], "message": "", "retryable": False, "details": {}},
    ],
)
def test_an_error_of_another_shape_breaks_the_connection(error: dict[str, object]) -> None:
    gateway, _ = greeted()
    request_id = gateway.send_request("describe", {})
    (broken,) = gateway.receive_data(encode_frame({"id": request_id, "error": error}))
    assert isinstance(broken, Broken)


@pytest.mark.parametrize(
    "hello",
    [{}, {"protocol_version": 2, "runner_instance_id": "x"}, {"protocol_version": "1"}, {"protocol_version": 1}, [], 1],
)
def test_a_hello_of_another_version_or_shape_is_refused(hello: object) -> None:
    gateway = Connection(Role.GATEWAY)
    (broken,) = gateway.receive_data(encode_frame({"hello": hello}))
    assert isinstance(broken, Broken)
    assert b"goodbye" in gateway.data_to_send()


def test_nothing_may_come_before_the_hello() -> None:
    for role, message in (
        (Role.GATEWAY, {"event": "process_exited"}),
        (Role.GATEWAY, {"id": 1, "result": {}}),
        (Role.WORKER, {"id": 1, "method": "describe", "params": {}}),
        (Role.WORKER, {"hello": {"protocol_version": 1}}),
    ):
        (event,) = Connection(role).receive_data(encode_frame(message))
        assert isinstance(event, Broken)


def test_an_id_may_not_come_twice_or_fall() -> None:
    for second in (5, 4):
        _, worker = greeted()
        first = encode_frame({"id": 5, "method": "describe", "params": {}})
        again = encode_frame({"id": second, "method": "describe", "params": {}})
        assert [type(event) for event in worker.receive_data(first + again)] == [RequestReceived, Broken]


def test_frames_before_a_bad_one_count() -> None:
    gateway, worker = greeted()
    request_id = gateway.send_request("describe", {})
    worker.receive_data(gateway.data_to_send())
    worker.send_result(request_id, {})
    events = gateway.receive_data(worker.data_to_send() + b"\xff\xff\xff\xff")
    assert [type(event) for event in events] == [ResultReceived, Broken]


def test_the_end_of_the_stream_is_told_apart_inside_and_between_frames() -> None:
    gateway, worker = greeted()
    assert worker.receive_eof() == [Ended()]
    gateway.receive_data(b"\0\0")
    assert gateway.receive_eof() == [Broken("the stream ended inside a frame")]


def test_the_largest_frame_passes_and_one_more_byte_is_refused_unsent() -> None:
    gateway, worker = greeted()
    overhead = len(encode_frame({"id": 1, "method": "m", "params": {"x": ""}})) - 4
    gateway.send_request("m", {"x": "a" * (MAX_FRAME_BYTES - overhead)})
    (event,) = worker.receive_data(gateway.data_to_send())
    assert isinstance(event, RequestReceived)
    with pytest.raises(FrameTooLarge):
        gateway.send_request("m", {"x": "a" * (MAX_FRAME_BYTES - overhead + 1)})
    assert gateway.data_to_send() == b""
    with pytest.raises(FrameTooLarge):
        worker.send_result(event.request_id, {"x": "a" * MAX_FRAME_BYTES})
    worker.send_error(event.request_id, RunnerError(ErrorCode.INTERNAL, "too large"))
    assert isinstance(gateway.receive_data(worker.data_to_send())[0], ErrorReceived)


def test_our_own_side_cannot_break_a_rule_either() -> None:
    gateway, worker = Connection(Role.GATEWAY), Connection(Role.WORKER)
    for send in (
        gateway.send_hello,
        lambda: gateway.send_request("describe", {}),
        lambda: gateway.send_event({"event": "x"}),
        lambda: worker.send_event({"event": "x"}),
    ):
        with pytest.raises(NotAllowedNow):
            send()
    gateway, worker = greeted()
    with pytest.raises(ValueError, match="not open"):
        worker.send_result(1, {})
    gateway.send_goodbye("enough")
    gateway.send_goodbye("again")
    with pytest.raises(NotAllowedNow):
        gateway.send_request("describe", {})
    assert worker.receive_data(gateway.data_to_send()) == [GoodbyeReceived("enough")]
    with pytest.raises(NotAllowedNow):
        worker.send_event({"event": "x"})
