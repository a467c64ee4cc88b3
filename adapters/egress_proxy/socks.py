"""SOCKS version 5 as a server sees it: bytes in, replies and a destination out. Sans-I/O.

Only CONNECT, and only without authentication: a client's credentials would give nothing anyway. Refuses to know sockets
and rules. Source: RFC 1928.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from adapters.egress_proxy.hosts import BadHost, Host, parse_host, plain

VERSION = 5
GREETING_ANSWER = b"\x05\x00"
NO_METHOD = b"\x05\xff"
SUCCEEDED, FAILURE, NOT_ALLOWED, UNREACHABLE, REFUSED, NO_COMMAND, NO_ADDRESS_TYPE = 0, 1, 2, 4, 5, 7, 8
_CONNECT = 1
_IPV4, _DOMAIN, _IPV6 = 1, 3, 4


def reply(code: int) -> bytes:
    """With an empty bound address: the proxy's own is nobody's business."""
    return bytes((VERSION, code, 0, _IPV4)) + bytes(6)


class BadSocks(ValueError):
    """Not a request this server takes. `answer`: what to send before closing."""

    def __init__(self, why: str, answer: bytes = b"") -> None:
        super().__init__(why)
        self.answer = answer


@dataclass(frozen=True)
class Target:
    host: Host
    port: int


class SocksParser:
    """Feed bytes, send what `take_output` gives, until a Target comes back; then `rest` is the client's own data."""

    def __init__(self) -> None:
        self._buffer = b""
        self._output = b""
        self._greeted = False
        self.rest = b""

    def take_output(self) -> bytes:
        output, self._output = self._output, b""
        return output

    def feed(self, data: bytes) -> Target | None:
        """Raises BadSocks. Holds less than 600 bytes beyond what it was fed last."""
        self._buffer += data
        if not self._greeted and not self._greeting():
            return None
        return self._request()

    def _greeting(self) -> bool:
        if self._buffer[:1] not in (b"", bytes((VERSION,))):
            raise BadSocks("not version 5")
        if len(self._buffer) < 2 or len(self._buffer) < 2 + self._buffer[1]:
            return False
        end = 2 + self._buffer[1]
        methods, self._buffer = self._buffer[2:end], self._buffer[end:]
        if 0 not in methods:
            raise BadSocks("the client wants to authenticate", NO_METHOD)
        self._greeted = True
        self._output += GREETING_ANSWER
        return True

    def _request(self) -> Target | None:
        data = self._buffer
        if len(data) < 5:
            return None
        version, command, reserved, kind = data[:4]
        if version != VERSION or reserved != 0:
            raise BadSocks("the request is malformed", reply(FAILURE))
        length = {_IPV4: 4, _IPV6: 16, _DOMAIN: 1 + data[4]}.get(kind)
        if length is None:
            raise BadSocks("the address type is unknown", reply(NO_ADDRESS_TYPE))
        if len(data) < 4 + length + 2:
            return None
        raw, port = data[4 : 4 + length], int.from_bytes(data[4 + length : 6 + length])
        self.rest, self._buffer = data[6 + length :], b""
        if command != _CONNECT:
            raise BadSocks("only CONNECT is served", reply(NO_COMMAND))
        if port == 0:
            raise BadSocks("the port is 0", reply(FAILURE))
        return Target(_host(kind, raw), port)


def _host(kind: int, raw: bytes) -> Host:
    if kind == _IPV4:
        return ipaddress.IPv4Address(raw)
    if kind == _IPV6:
        return plain(ipaddress.IPv6Address(raw))
    try:
        return parse_host(raw[1:].decode("utf-8"))
    except (UnicodeDecodeError, BadHost) as error:
        raise BadSocks(f"the host: {error}", reply(NOT_ALLOWED)) from None
