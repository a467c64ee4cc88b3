"""Head and body of an answer leave together, and nothing is kept longer than a turn of the loop."""

from __future__ import annotations

import asyncio
from typing import cast

from gateway.http.connection import HeadWithBody


class RecordingTransport:
    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.closed = False

    def write(self, data: bytes) -> None:
        assert not self.closed
        self.written.append(data)

    def writelines(self, parts: tuple[bytes, ...]) -> None:
        self.write(b"".join(parts))

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed


def over(transport: RecordingTransport) -> HeadWithBody:
    return HeadWithBody(cast(asyncio.Transport, transport), asyncio.get_running_loop())


async def turn() -> None:
    """Whatever was due in this turn of the loop is done when it returns."""
    await asyncio.sleep(0)
    await asyncio.sleep(0)


async def test_head_and_body_are_one_write() -> None:
    transport = RecordingTransport()
    answer = over(transport)
    answer.write(b"head")
    answer.write(b"body")
    assert transport.written == [b"headbody"]
    answer.write(b"more")
    await turn()
    assert transport.written == [b"headbody", b"more"]


async def test_a_head_does_not_wait_for_a_body_that_comes_later() -> None:
    transport = RecordingTransport()
    answer = over(transport)
    answer.write(b"head")
    assert transport.written == []
    await turn()
    assert transport.written == [b"head"]
    answer.write(b"event")
    assert transport.written == [b"head", b"event"]


async def test_an_answer_without_a_body_is_written_before_the_end() -> None:
    transport = RecordingTransport()
    answer = over(transport)
    answer.write(b"head")
    answer.close()
    assert (transport.written, answer.is_closing()) == ([b"head"], True)
    await turn()
    assert transport.written == [b"head"]


async def test_what_asks_for_the_body_of_a_request_is_not_kept() -> None:
    transport = RecordingTransport()
    answer = over(transport)
    answer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    assert transport.written == [b"HTTP/1.1 100 Continue\r\n\r\n"]
    answer.write(b"head")
    answer.write(b"body")
    assert transport.written[1:] == [b"headbody"]


async def test_nothing_is_written_to_a_connection_that_was_cut_off() -> None:
    """uvloop's transports raise there, asyncio's do not: so neither is asked."""
    for before in ((), (b"head",), (b"head", b"body")):
        transport = RecordingTransport()
        answer = over(transport)
        for part in before:
            answer.write(part)
        written = list(transport.written)
        transport.close()
        answer.write(b"late")
        await turn()
        assert transport.written == written
