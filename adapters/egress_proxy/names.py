"""A name server without names of its own: stand-in addresses for the names that are allowed. Sans-I/O.

Programs that know no proxy ask for an address, connect to it, and thereby say which name they mean: the stand-in leads
back to it, and the connection is judged like any other. Nothing is ever asked of another server here, so a query
carries nothing outside. One object a command. Refuses to know sockets. Sources: RFC 1035, RFC 2308, RFC 8482.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Callable
from dataclasses import dataclass

from adapters.egress_proxy.hosts import BadHost, parse_host

STAND_INS = ipaddress.IPv4Network("198.18.0.0/15")
"""Reserved for benchmarks (RFC 2544), so no server is there. The first address is the sandbox's own."""
MAX_NAMES = 4096
TTL_S = 60
MAX_QUERY_BYTES = 4096

_A, _ANY, _IN = 1, 255, 1
_NO_ERROR, _FORMAT_ERROR, _SERVER_FAILURE, _NO_SUCH_NAME, _NOT_IMPLEMENTED = 0, 1, 2, 3, 4
_RESPONSE, _AUTHORITATIVE, _RECURSION_AVAILABLE = 0x8000, 0x0400, 0x0080
_RECURSION_DESIRED = 0x0100


class BadQuery(ValueError):
    """Bytes that deserve no answer at all."""


@dataclass(frozen=True)
class Answer:
    """`packet`: for the client. `name`: what it asked for, None where the question could not be read. `known`: whether
    the lists allow some port of it."""

    packet: bytes
    name: str | None
    known: bool


class Names:
    """`is_known`: whether the lists allow some port of a name."""

    def __init__(self, is_known: Callable[[str], bool]) -> None:
        self._is_known = is_known
        self._by_name: dict[str, ipaddress.IPv4Address] = {}
        self._by_address: dict[ipaddress.IPv4Address, str] = {}

    def name_of(self, address: ipaddress.IPv4Address) -> str | None:
        """The name that a stand-in was given for."""
        return self._by_address.get(address)

    def answer(self, query: bytes) -> Answer:
        """Raises BadQuery for what is no query, so that two servers never answer each other."""
        if not 12 <= len(query) <= MAX_QUERY_BYTES:
            raise BadQuery("the length is that of no query")
        number, flags, questions, _, _, _ = struct.unpack_from("!6H", query)
        if flags & _RESPONSE:
            raise BadQuery("it is a response")
        if (flags >> 11) & 0xF:
            return Answer(_packet(number, flags, _NOT_IMPLEMENTED), None, False)
        try:
            if questions != 1:
                raise BadQuery("it asks for more than one thing")
            name, end = _read_name(query, 12)
            kind, klass = struct.unpack_from("!2H", query, end)
        except (BadQuery, struct.error):
            return Answer(_packet(number, flags, _FORMAT_ERROR), None, False)
        return self._answer(number, flags, query[12 : end + 4], name, kind, klass)

    def _answer(self, number: int, flags: int, question: bytes, name: str, kind: int, klass: int) -> Answer:
        try:
            host = parse_host(name)
        except BadHost:
            host = ""
        if not isinstance(host, str) or not host or not self._is_known(host):
            return Answer(_packet(number, flags, _NO_SUCH_NAME, question), name, False)
        if klass != _IN or kind not in (_A, _ANY):
            # It exists, but has only an IPv4 address; that also makes clients give up on AAAA at once.
            return Answer(_packet(number, flags, _NO_ERROR, question), host, True)
        address = self._stand_in(host)
        if address is None:
            return Answer(_packet(number, flags, _SERVER_FAILURE, question), host, True)
        record = struct.pack("!3HIH", 0xC00C, _A, _IN, TTL_S, 4) + address.packed
        return Answer(_packet(number, flags, _NO_ERROR, question, record), host, True)

    def _stand_in(self, name: str) -> ipaddress.IPv4Address | None:
        address = self._by_name.get(name)
        if address is None and len(self._by_name) < MAX_NAMES:
            address = STAND_INS[len(self._by_name) + 2]
            self._by_name[name] = address
            self._by_address[address] = name
        return address


def _read_name(data: bytes, at: int) -> tuple[str, int]:
    """(name, offset behind it). A question needs no compression, so a pointer is an error. Raises BadQuery."""
    labels: list[bytes] = []
    total = 0
    while True:
        if at >= len(data):
            raise BadQuery("the name ends too early")
        length = data[at]
        at += 1
        if length == 0:
            break
        total += length + 1
        if length > 63 or total > 254 or at + length > len(data):
            raise BadQuery("a label is too long")
        labels.append(data[at : at + length])
        at += length
    try:
        return b".".join(labels).decode("ascii"), at
    except UnicodeDecodeError:
        raise BadQuery("the name is not ASCII") from None


def _packet(number: int, flags: int, code: int, question: bytes = b"", record: bytes = b"") -> bytes:
    answered = _RESPONSE | _AUTHORITATIVE | _RECURSION_AVAILABLE | (flags & _RECURSION_DESIRED) | code
    head = struct.pack("!6H", number, answered, 1 if question else 0, 1 if record else 0, 0, 0)
    return head + question + record
