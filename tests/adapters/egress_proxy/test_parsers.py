"""The parsers of hostile bytes: HTTP heads and bodies, SOCKS, name queries. Only the permitted exceptions come out."""

from __future__ import annotations

import ipaddress
import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from adapters.egress_proxy import wire
from adapters.egress_proxy.budget import Budget
from adapters.egress_proxy.http import (
    MAX_HEAD_BYTES,
    MAX_LINES_A_TURN,
    MAX_SMALL_CHUNKS,
    MAX_TRAILER_LINES,
    MIN_CHUNK_BYTES,
    BadRequest,
    BodyMeter,
    ChunksTooSmall,
    HeadParser,
    Request,
)
from adapters.egress_proxy.names import MAX_NAMES, STAND_INS, BadQuery, Names
from adapters.egress_proxy.socks import (
    GREETING_ANSWER,
    NO_ADDRESS_TYPE,
    NO_COMMAND,
    NO_METHOD,
    NOT_ALLOWED,
    BadSocks,
    SocksParser,
    Target,
    reply,
)

pytestmark = pytest.mark.covers("NET-4")


# --- HTTP -------------------------------------------------------------------------------------------------------------
def head(text: str) -> Request | None:
    return HeadParser().feed(text.replace("\n", "\r\n").encode("latin-1"))


def test_connect_names_a_destination_and_forwards_nothing() -> None:
    assert head("CONNECT A.test:8443 HTTP/1.1\nHost: other.test\n\n") == Request("a.test", 8443, tunnel=True)
    assert head("CONNECT [::1]:443 HTTP/1.1\n\n") == Request(ipaddress.IPv6Address("::1"), 443, tunnel=True)


def test_an_absolute_request_goes_on_in_origin_form_without_what_is_meant_for_the_proxy() -> None:
    request = head(
        "POST http://a.test/x?y HTTP/1.1\nHost: elsewhere.test\nProxy-Authorization: Basic c2VjcmV0\nAccept: */*\n"
        "Connection: keep-alive, X-Mine\nX-Mine: 1\nKeep-Alive: 5\nTE: trailers\nContent-Length: 3\n\n"
    )
    assert request == Request(
        "a.test", 80, False,
        b"POST /x?y HTTP/1.1\r\nHost: a.test\r\nAccept: */*\r\nContent-Length: 3\r\nConnection: close\r\n\r\n", 3,
    )  # fmt: skip
    assert head("GET http://a.test:81 HTTP/1.1\n\n") == Request(
        "a.test", 81, False, b"GET / HTTP/1.1\r\nHost: a.test:81\r\nConnection: close\r\n\r\n", 0
    )


@pytest.mark.parametrize(
    "text",
    [
        "GET / HTTP/1.1\nHost: a.test\n\n", "GET https://a.test/ HTTP/1.1\n\n", "GET ftp://a.test/ HTTP/1.1\n\n",
        "CONNECT a.test HTTP/1.1\n\n", "CONNECT http://a.test:80/ HTTP/1.1\n\n", "CONNECT a.test:0 HTTP/1.1\n\n",
        "CONNECT a.test:65536 HTTP/1.1\n\n", "CONNECT ::1:443 HTTP/1.1\n\n", "CONNECT 0x7f.1:443 HTTP/1.1\n\n",
        "GET http://user:pw@a.test/ HTTP/1.1\n\n", "GET http://a.test@b.test/ HTTP/1.1\n\n",
        "GET  http://a.test/ HTTP/1.1\n\n", "GET http://a.test/ HTTP/2\n\n", "GET http://a.test/\n\n",
        "GET http://a.test/ HTTP/1.1\nA : b\n\n", "GET http://a.test/ HTTP/1.1\nA: b\n c\n\n",
        "GET http://a.test/ HTTP/1.1\nA: b\0\n\n", "GET http://a.test/ HTTP/1.1\nno colon\n\n",
        "POST http://a.test/ HTTP/1.1\nContent-Length: 1\nTransfer-Encoding: chunked\n\n",
        "POST http://a.test/ HTTP/1.1\nContent-Length: 1\nContent-Length: 2\n\n",
        "POST http://a.test/ HTTP/1.1\nContent-Length: +1\n\n",
        "POST http://a.test/ HTTP/1.1\nContent-Length: 1, 1\n\n",
        "POST http://a.test/ HTTP/1.1\nTransfer-Encoding: gzip, chunked\n\n",
        "POST http://a.test/ HTTP/1.1\nTransfer-Encoding: chunked\nTransfer-Encoding: chunked\n\n",
        "GET http://a.test/\x7f HTTP/1.1\n\n", "GET http:///x HTTP/1.1\n\n", "\x16\x03\x01\n\n",
    ],
)  # fmt: skip
def test_what_can_be_read_in_two_ways_is_refused(text: str) -> None:
    with pytest.raises(BadRequest):
        head(text)


def test_bare_line_ends_and_a_head_without_an_end_are_refused() -> None:
    with pytest.raises(BadRequest):
        HeadParser().feed(b"GET http://a.test/ HTTP/1.1\nHost: a.test\r\n\r\n")
    parser = HeadParser()
    assert parser.feed(b"GET http://a.test/ HTTP/1.1\r\n") is None
    with pytest.raises(BadRequest, match="too long"):
        parser.feed(b"A: " + b"x" * MAX_HEAD_BYTES)


@given(st.lists(st.integers(1, 40), max_size=8), st.binary(max_size=30))
def test_a_head_in_pieces_is_the_head_and_what_follows_is_left_over(cuts: list[int], rest: bytes) -> None:
    whole = b"CONNECT a.test:443 HTTP/1.1\r\nHost: a.test\r\n\r\n" + rest
    parser, at, found = HeadParser(), 0, None
    for cut in [*cuts, len(whole)]:
        found = parser.feed(whole[at : at + cut])
        at += cut
        if found:
            break
    assert found == Request("a.test", 443, tunnel=True)
    assert parser.rest + whole[at:] == rest


@given(st.binary(max_size=300))
@example(b"GET http://\xff\xfe/ HTTP/1.1\r\n\r\n")
@example(b"CONNECT \xc3\xbc.test:443 HTTP/1.1\r\n\r\n")
def test_any_bytes_are_a_request_or_a_bad_one(data: bytes) -> None:
    for tail in (b"", b"\r\n\r\n"):
        try:
            HeadParser().feed(data + tail)
        except BadRequest:
            pass


def chunks(*parts: bytes) -> bytes:
    return b"".join(b"%x;ext=1\r\n" % len(part) + part + b"\r\n" for part in parts) + b"0\r\nTrailer: x\r\n\r\n"


@given(st.lists(st.binary(min_size=1, max_size=20), max_size=4), st.integers(1, 9), st.booleans())
def test_a_body_ends_where_its_length_or_its_chunks_say(parts: list[bytes], step: int, chunked: bool) -> None:
    body = chunks(*parts) if chunked else b"".join(parts)
    meter = BodyMeter(None if chunked else len(body))
    data, taken = body + b"GET http://b.test/ HTTP/1.1", b""
    while data and not meter.over:
        piece = data[:step]
        used = meter.feed(piece)
        taken += piece[:used]
        data = data[used:]
    assert (taken, meter.over) == (body, True)


@given(st.binary(max_size=200))
def test_any_bytes_as_chunks_are_taken_or_bad(data: bytes) -> None:
    meter = BodyMeter(None)
    try:
        assert 0 <= meter.feed(data) <= len(data)
    except BadRequest:
        pass


def eat(meter: BodyMeter, data: bytes) -> int:
    """All of it, a turn at a time: how many turns it took."""
    turns = 0
    while data and not meter.over:
        data = data[meter.feed(data) :]
        assert meter.lines <= MAX_LINES_A_TURN
        turns += 1
    return turns


def test_a_turn_parses_a_bounded_part_of_what_it_is_given() -> None:
    meter = BodyMeter(None)
    assert eat(meter, b"1\r\na\r\n" * (3 * MAX_LINES_A_TURN) + b"0\r\n\r\n") == 4
    assert meter.over


@pytest.mark.parametrize(("size", "bad"), [(MIN_CHUNK_BYTES - 1, True), (MIN_CHUNK_BYTES, False), (1, True)])
def test_a_body_of_very_many_chunks_is_refused_where_they_carry_little(size: int, bad: bool) -> None:
    chunk, end = b"%x\r\n" % size + b"a" * size + b"\r\n", b"0\r\n\r\n"
    meter = BodyMeter(None)
    eat(meter, chunk * MAX_SMALL_CHUNKS + end)
    assert meter.over, "so many are taken, whatever they carry"
    meter = BodyMeter(None)
    if bad:
        with pytest.raises(ChunksTooSmall, match="chunks_too_small"):
            eat(meter, chunk * (MAX_SMALL_CHUNKS + 1) + end)
    else:
        eat(meter, chunk * (4 * MAX_SMALL_CHUNKS) + end)
    assert meter.over is not bad


def test_a_body_has_a_bounded_number_of_trailers() -> None:
    meter = BodyMeter(None)
    eat(meter, b"0\r\n" + b"a: b\r\n" * MAX_TRAILER_LINES + b"\r\n")
    assert meter.over
    with pytest.raises(BadRequest, match="trailers"):
        eat(BodyMeter(None), b"0\r\n" + b"a: b\r\n" * (MAX_TRAILER_LINES + 1) + b"\r\n")


# --- SOCKS ------------------------------------------------------------------------------------------------------------
GREETING = b"\x05\x01\x00"


def connect(kind: int, address: bytes, port: int = 443, command: int = 1) -> bytes:
    return bytes((5, command, 0, kind)) + address + port.to_bytes(2)


@pytest.mark.parametrize(
    ("request_", "target"),
    [
        (connect(3, b"\x06A.test"), Target("a.test", 443)),
        (connect(1, bytes((8, 8, 8, 8))), Target(ipaddress.IPv4Address("8.8.8.8"), 443)),
        (connect(4, ipaddress.IPv6Address("::1").packed, 1), Target(ipaddress.IPv6Address("::1"), 1)),
        (connect(4, ipaddress.IPv6Address("::ffff:8.8.8.8").packed), Target(ipaddress.IPv4Address("8.8.8.8"), 443)),
    ],
)
def test_socks_names_a_destination_byte_by_byte(request_: bytes, target: Target) -> None:
    parser, output, found = SocksParser(), b"", None
    for byte in GREETING + request_:
        assert found is None
        found = parser.feed(bytes((byte,)))
        output += parser.take_output()
    assert (found, output) == (target, GREETING_ANSWER)


@pytest.mark.parametrize(
    ("data", "answer"),
    [
        (b"\x04\x01", b""),
        (b"\x05\x01\x02", NO_METHOD),
        (GREETING + connect(3, b"\x06a.test", command=2), reply(NO_COMMAND)),
        (GREETING + connect(1, bytes(4), command=3), reply(NO_COMMAND)),
        (GREETING + connect(9, b"xxxxxxx"), reply(NO_ADDRESS_TYPE)),
        (GREETING + connect(3, b"\x050x7f."), reply(NOT_ALLOWED)),
        (GREETING + connect(3, b"\x00"), reply(NOT_ALLOWED)),
    ],
)
def test_socks_that_is_not_served_is_refused_with_its_code(data: bytes, answer: bytes) -> None:
    with pytest.raises(BadSocks) as refused:
        SocksParser().feed(data)
    assert refused.value.answer == answer


@given(st.binary(max_size=400))
def test_any_bytes_are_socks_or_bad(data: bytes) -> None:
    for start in (b"", GREETING, GREETING + b"\x05\x01\x00\x03"):
        try:
            SocksParser().feed(start + data)
        except BadSocks:
            pass


# --- names ------------------------------------------------------------------------------------------------------------
def query(name: str, kind: int = 1, klass: int = 1, flags: int = 0x0100) -> bytes:
    labels = b"".join(bytes((len(label),)) + label.encode() for label in name.split("."))
    return struct.pack("!6H", 7, flags, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!2H", kind, klass)


def test_a_known_name_gets_one_stand_in_that_leads_back() -> None:
    names = Names(lambda name: name.endswith(".test"))
    first = names.answer(query("A.test"))
    again = names.answer(query("a.TEST"))
    other = names.answer(query("b.test"))
    address = ipaddress.IPv4Address(first.packet[-4:])
    assert (first.name, first.known) == ("a.test", True)
    assert again.packet[-4:] == first.packet[-4:] != other.packet[-4:]
    assert address in STAND_INS
    assert names.name_of(address) == "a.test"
    assert names.name_of(address + 100) is None


def code(packet: bytes) -> int:
    return packet[3] & 0xF


def test_a_name_that_is_not_known_does_not_exist_and_other_types_are_empty() -> None:
    names = Names(lambda name: name == "a.test")
    assert (code(names.answer(query("b.test")).packet), names.answer(query("b.test")).known) == (3, False)
    assert code(names.answer(query("secret.tunnel.example", kind=16)).packet) == 3
    six = names.answer(query("a.test", kind=28)).packet
    assert (code(six), six[6:8]) == (0, b"\0\0"), "no address of version 6, and no error"


def test_a_name_server_has_a_bounded_number_of_names() -> None:
    names = Names(lambda _: True)
    for number in range(MAX_NAMES):
        assert code(names.answer(query(f"n{number}.test")).packet) == 0
    assert code(names.answer(query("one-more.test")).packet) == 2
    assert code(names.answer(query("n0.test")).packet) == 0


@pytest.mark.parametrize("packet", [b"", b"x" * 11, query("a.test", flags=0x8100), query("a.test") + b"x" * 4096])
def test_what_is_no_query_gets_no_answer(packet: bytes) -> None:
    with pytest.raises(BadQuery):
        Names(lambda _: True).answer(packet)


@given(st.binary(min_size=0, max_size=120))
def test_any_bytes_are_answered_or_no_query(data: bytes) -> None:
    names = Names(lambda _: True)
    for packet in (data, query("a.test")[:12] + data):
        try:
            answer = names.answer(packet)
        except BadQuery:
            continue
        assert answer.packet[:2] == packet[:2]
        assert answer.packet[2] & 0x80


# --- the bucket -------------------------------------------------------------------------------------------------------
@given(st.lists(st.floats(0, 0.01), min_size=50, max_size=300))
def test_a_command_never_gets_more_turns_than_its_burst_and_its_rate(steps: list[float]) -> None:
    budget, now, begun, turns = Budget(0.0, rate_per_s=10, burst=5), 0.0, 0.0, []
    for step in steps:
        now = max(now + step, begun)
        wait = budget.take(now)
        assert wait >= 0
        begun = now + wait
        turns.append(begun)
    for count, at in enumerate(turns, 1):
        assert count <= 5 + 10 * at + 1e-6


def test_a_turn_at_once_is_there_or_not_and_comes_back_with_time() -> None:
    budget = Budget(0.0, rate_per_s=10, burst=2)
    assert [budget.try_take(0.0) for _ in range(3)] == [True, True, False]
    assert budget.try_take(0.11)
    assert not budget.try_take(0.11)


# --- the runner's socket ----------------------------------------------------------------------------------------------
def test_a_serve_message_comes_back_equal_and_nothing_else_passes() -> None:
    serve = wire.Serve(1, "w", "p", ("a.test",), (), ("proxy", "names_udp"))
    what, value = wire.decode(wire.serve_message(serve))
    assert (what, wire.parse_serve(value)) == ("serve", serve)
    changes: list[dict[str, object]] = [
        {"id": "1"}, {"allow": "a"}, {"allow": [1]}, {"listeners": []}, {"listeners": ["shell"]}, {"x": 1},
    ]  # fmt: skip
    for change in changes:
        with pytest.raises(wire.WireError):
            wire.parse_serve(value | change)
    with pytest.raises(wire.WireError):
        wire.serve_message(wire.Serve(1, "w", "p", ("a" * wire.MAX_MESSAGE_BYTES,), (), ("proxy",)))


@given(st.binary(max_size=60))
def test_any_bytes_are_a_message_or_a_wire_error(data: bytes) -> None:
    try:
        what, value = wire.decode(data)
        (wire.parse_serve if what == "serve" else wire.parse_config)(value)
    except wire.WireError:
        pass
