"""The input writer on real pipes and terminals that nobody reads, or somebody does later (write_stdin)."""

from __future__ import annotations

import asyncio
import os
import termios
import tty
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.api import RunnerError
from runner.processes.input import InputWriter

SHORT_S = 0.05


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """Read end, write end."""
    ends = os.pipe()
    yield ends
    for end in ends:
        try:
            os.close(end)
        except OSError:
            pass


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """Master, slave."""
    ends = os.openpty()
    yield ends
    for end in ends:
        os.close(end)


def take(fd: int) -> bytes:
    """All that is there now."""
    os.set_blocking(fd, False)
    data = b""
    while True:
        try:
            piece = os.read(fd, 1 << 16)
        except BlockingIOError:
            return data
        if not piece:
            return data
        data += piece


@pytest.mark.covers("PROC-9")
async def test_a_character_counted_as_written_follows_as_soon_as_there_is_room(pipe: tuple[int, int]) -> None:
    reader, fd = pipe
    writer = InputWriter(asyncio.get_running_loop(), fd, bound_s=SHORT_S)
    text = "aa" + "€" * 60_000
    data = text.encode()
    written = await writer.write(data)
    assert 0 < written < len(data)
    assert data[written : written + 1] == "€".encode()[:1]
    got = take(reader)
    assert len(got) < written, "the pipe was cut inside no character"
    # The rest of the cut character goes first, whoever writes next.
    assert await writer.write(b"!") == 1
    assert got + take(reader) == data[:written] + b"!"
    writer.close()


@pytest.mark.covers("PROC-9")
async def test_the_input_closes_only_after_what_was_counted_as_written(pipe: tuple[int, int]) -> None:
    reader, fd = pipe
    writer = InputWriter(asyncio.get_running_loop(), fd, bound_s=SHORT_S)
    capacity = await writer.write(b"x" * 1_000_000)
    take(reader)
    # Fill it so that the last character is cut.
    data = b"y" * (capacity - 1) + "€".encode()
    assert await writer.write(data) == len(data)
    closed = asyncio.Event()

    def close() -> None:
        os.close(fd)
        closed.set()

    writer.close_after_rest(close)
    assert not closed.is_set()
    first = take(reader)
    await closed.wait()
    assert first + take(reader) == data
    with pytest.raises(RunnerError):
        await writer.write(b"late")


@settings(max_examples=40)
@given(st.lists(st.text(min_size=1, max_size=30_000), min_size=1, max_size=4))
def test_resent_text_arrives_whole_whatever_was_cut(texts: list[str]) -> None:
    data = "".join(texts).encode()

    async def send() -> bytes:
        reader, fd = os.pipe()
        try:
            writer = InputWriter(asyncio.get_running_loop(), fd, bound_s=0.001)
            got, sent = b"", 0
            while sent < len(data):
                written = await writer.write(data[sent:])
                data[sent + written :].decode()  # what is left begins a character
                sent += written
                got += take(reader)
            await writer.write(b"")
            writer.close()
            return got + take(reader)
        finally:
            os.close(reader)
            os.close(fd)

    assert asyncio.run(send()) == data


async def fill(writer: InputWriter) -> None:
    """Until nothing is taken any more. A terminal moves what it has taken in a thread of the kernel's, which makes room
    once more after a write that found none."""
    refused = 0
    while refused < 3:
        refused = 0 if await writer.write(b"x" * 100_000) else refused + 1


@pytest.mark.covers("PROC-9")
async def test_an_end_of_file_character_that_finds_no_room_is_told(terminal: tuple[int, int]) -> None:
    master, slave = terminal
    tty.setraw(slave)
    writer = InputWriter(asyncio.get_running_loop(), master, bound_s=SHORT_S)
    await fill(writer)
    with pytest.raises(RunnerError) as caught:
        await writer.write_end_of_file()
    assert (caught.value.details["reason"], caught.value.retryable) == ("eof_not_written", True)
    writer.close()


@pytest.mark.covers("PROC-9")
async def test_a_terminal_without_an_end_of_file_character_is_told(terminal: tuple[int, int]) -> None:
    master, slave = terminal
    writer = InputWriter(asyncio.get_running_loop(), master, bound_s=SHORT_S)
    attributes = termios.tcgetattr(slave)
    attributes[6][termios.VEOF] = b"\0"
    termios.tcsetattr(slave, termios.TCSANOW, attributes)
    with pytest.raises(RunnerError) as caught:
        await writer.write_end_of_file()
    assert caught.value.details["reason"] == "no_eof_character"
    writer.close()


@pytest.mark.covers("PROC-9")
@pytest.mark.parametrize(("before", "sent"), [(b"", b"\x04"), (b"line\n", b"\x04"), (b"begun", b"\x04\x04")])
async def test_the_end_of_file_character_comes_twice_after_a_line_begun(
    terminal: tuple[int, int], before: bytes, sent: bytes
) -> None:
    master, _ = terminal
    writer = InputWriter(asyncio.get_running_loop(), master, bound_s=SHORT_S)
    await writer.write(before)
    assert writer._end_of_file_character() == sent
    writer.close()
