"""The head of an HTTP/1.1 proxy request: bytes in, a destination and the bytes to forward out. Sans-I/O.

CONNECT with an authority, or any other method with an absolute `http://` URI. What could be read in two ways is
refused: both Content-Length and Transfer-Encoding, folded lines, bare CR or LF, two lengths. It refuses to know sockets
and rules, and keeps nothing of a request beyond the head. Sources: RFC 9110 (7.6.1, 9.3.6), RFC 9112 (2.2, 3.2, 6, 7).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from adapters.egress_proxy.hosts import BadHost, Host, parse_host

MAX_HEAD_BYTES = 32 * 1024
MAX_CHUNK_LINE_BYTES = 256
MAX_LINES_A_TURN = 512
MAX_SMALL_CHUNKS = 4096
MIN_CHUNK_BYTES = 64
MAX_TRAILER_LINES = 128
_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_URI = re.compile(rb"http://([^/?#]+)([/?][\x21-\x7e]*)?", re.IGNORECASE)
_VALUE = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
_HOP_BY_HOP = frozenset(
    {
        b"connection", b"keep-alive", b"proxy-connection", b"proxy-authorization", b"proxy-authenticate", b"te",
        b"trailer", b"upgrade",
    }
)  # fmt: skip


class BadRequest(ValueError):
    """Bytes that are no request this proxy takes; the text says why."""


class ChunksTooSmall(BadRequest):
    """A body whose chunks cost more than they carry."""


@dataclass(frozen=True)
class Request:
    """`tunnel`: CONNECT. Otherwise `head` goes to the server, then the body: `body_bytes` of it, or chunks where that
    is None."""

    host: Host
    port: int
    tunnel: bool
    head: bytes = b""
    body_bytes: int | None = 0


class HeadParser:
    """Feed bytes until a Request comes back; then `rest` holds what came after its head."""

    def __init__(self) -> None:
        self._buffer = b""
        self.rest = b""

    def feed(self, data: bytes) -> Request | None:
        """Raises BadRequest, also for a head beyond MAX_HEAD_BYTES."""
        self._buffer += data
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0 and len(self._buffer) <= MAX_HEAD_BYTES:
            return None
        if not 0 <= end <= MAX_HEAD_BYTES:
            raise BadRequest("the head is too long")
        head, self.rest, self._buffer = self._buffer[:end], self._buffer[end + 4 :], b""
        return parse_head(head)


def parse_head(head: bytes) -> Request:
    """`head` without its last empty line. Raises BadRequest."""
    first, *lines = head.split(b"\r\n")
    parts = first.split(b" ")
    if len(parts) != 3 or not _TOKEN.fullmatch(parts[0]) or parts[2] not in (b"HTTP/1.1", b"HTTP/1.0"):
        raise BadRequest("the request line is not method, target and HTTP/1.0 or 1.1")
    method, target, version = parts
    fields = [_field(line) for line in lines]
    if method == b"CONNECT":
        host, port = parse_authority(target, None)
        return Request(host, port, tunnel=True)
    match = _URI.fullmatch(target)
    if match is None:
        raise BadRequest("the target is no absolute http:// URI; use CONNECT for anything else")
    host, port = parse_authority(match[1], 80)
    path = match[2] or b"/"
    path = path if path.startswith(b"/") else b"/" + path
    if method == b"OPTIONS" and match[2] is None:
        path = b"*"
    dropped = _HOP_BY_HOP | {b"host"} | _named_by_connection(fields)
    kept = b"".join(name + b": " + value + b"\r\n" for name, value in fields if name.lower() not in dropped)
    # The authority decides, whatever the client's own Host says (RFC 9112 section 3.2.2).
    start = method + b" " + path + b" " + version + b"\r\nHost: " + match[1] + b"\r\n"
    return Request(host, port, False, start + kept + b"Connection: close\r\n\r\n", _body_bytes(fields))


def _named_by_connection(fields: list[tuple[bytes, bytes]]) -> set[bytes]:
    named = {t.strip().lower() for name, value in fields if name.lower() == b"connection" for t in value.split(b",")}
    # How long the body is must stay with it.
    return named - {b"content-length", b"transfer-encoding"}


def _field(line: bytes) -> tuple[bytes, bytes]:
    name, colon, value = line.partition(b":")
    value = value.strip(b" \t")
    if not colon or not _TOKEN.fullmatch(name) or not _VALUE.fullmatch(value):
        raise BadRequest("a header line is malformed")
    return name, value


def _body_bytes(fields: list[tuple[bytes, bytes]]) -> int | None:
    lengths = [value for name, value in fields if name.lower() == b"content-length"]
    codings = [value.lower() for name, value in fields if name.lower() == b"transfer-encoding"]
    if codings:
        if lengths or codings != [b"chunked"]:
            raise BadRequest("the length of the body is ambiguous")
        return None
    if not lengths:
        return 0
    if len(lengths) > 1 or not lengths[0].isdigit() or len(lengths[0]) > 18:
        raise BadRequest("the Content-Length is no single number")
    return int(lengths[0])


def parse_authority(text: bytes, default_port: int | None) -> tuple[Host, int]:
    """`host:port`, `[address]:port`, or without port where there is a default. Raises BadRequest."""
    try:
        authority = text.decode("utf-8")
    except UnicodeDecodeError:
        raise BadRequest("the host is not UTF-8") from None
    if "@" in authority:
        raise BadRequest("the host has credentials before it")
    host, colon, port = authority.rpartition(":")
    if not colon or authority.endswith("]"):
        host, port = authority, "" if default_port is None else str(default_port)
    elif not port and default_port is not None:
        port = str(default_port)
    if ":" in host and not host.startswith("["):
        raise BadRequest("an IPv6 address needs brackets")
    if not (port.isascii() and port.isdigit()) or len(port) > 5 or not 1 <= int(port) <= 65535:
        raise BadRequest("the port is no number from 1 to 65535")
    try:
        return parse_host(host), int(port)
    except BadHost as error:
        raise BadRequest(str(error)) from None


class BodyMeter:
    """Tells which of the bytes that follow a head are its body. `over` once it is complete.

    `lines`: how many lines between chunks the last `feed` began or went on with, at most MAX_LINES_A_TURN.
    """

    def __init__(self, body_bytes: int | None) -> None:
        self.chunked = body_bytes is None
        self._left = body_bytes or 0
        self._state = "line" if self.chunked else "data"
        self._line = b""
        self._chunks = self._carried = self._trailers = 0
        self.lines = 0
        self.over = not self.chunked and self._left == 0

    def feed(self, data: bytes) -> int:
        """How many of these bytes belong to the body, from the first on.

        Fewer than there are, without being `over`, where the lines of this turn are used up: feed the rest in another.
        Raises BadRequest for a bad chunk, ChunksTooSmall for more than MAX_SMALL_CHUNKS of fewer than MIN_CHUNK_BYTES
        on average.
        """
        if not self.chunked:
            taken = min(self._left, len(data))
            self._left -= taken
            self.over = self._left == 0
            return taken
        at = self.lines = 0
        while at < len(data) and not self.over and self.lines < MAX_LINES_A_TURN:
            if self._state == "data":
                step = min(self._left, len(data) - at)
                at, self._left = at + step, self._left - step
                if self._left == 0:
                    self._state = "line"
            else:
                self.lines += 1
                at = self._take_line(data, at)
        return at

    def _take_line(self, data: bytes, at: int) -> int:
        end = data.find(b"\n", at)
        stop = len(data) if end < 0 else end + 1
        self._line += data[at:stop]
        if len(self._line) > MAX_CHUNK_LINE_BYTES:
            raise BadRequest("a line between chunks is too long")
        if end >= 0:
            line, self._line = self._line, b""
            if not line.endswith(b"\r\n"):
                raise BadRequest("a line between chunks ends without CR")
            self._end_line(line[:-2])
        return stop

    def _end_line(self, line: bytes) -> None:
        if self._state == "trailer":
            # Trailers are passed on as they are; an empty line ends them.
            self.over = not line
            self._trailers += 1
            if self._trailers > MAX_TRAILER_LINES and line:
                raise BadRequest("the body has too many trailers")
            return
        size = line.partition(b";")[0].strip(b" \t")
        if not re.fullmatch(rb"[0-9A-Fa-f]{1,15}", size):
            raise BadRequest("the size of a chunk is no number")
        length = int(size, 16)
        if length == 0:
            self._state = "trailer"
        else:
            # The line end behind the data is part of the chunk, and checked by the server.
            self._state, self._left = "data", length + 2
            self._count(length)

    def _count(self, length: int) -> None:
        # What the earlier chunks carried: this one's size is a promise so far.
        if self._chunks >= MAX_SMALL_CHUNKS and self._carried < MIN_CHUNK_BYTES * self._chunks:
            raise ChunksTooSmall(
                f"chunks_too_small: {self._chunks} chunks carried fewer than {MIN_CHUNK_BYTES} bytes each on average"
            )
        self._chunks, self._carried = self._chunks + 1, self._carried + length
