"""The output ring and its cuts, against a model that keeps everything (PROC-4)."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.api import RunnerError
from runner.processes.chunks import cut
from runner.processes.ring import OutputRing

pytestmark = pytest.mark.covers("PROC-4")

writes = st.lists(st.binary(min_size=1, max_size=40), max_size=12)
texts = st.lists(st.text(min_size=1, max_size=12), max_size=8)


def filled(capacity: int, parts: list[bytes]) -> tuple[OutputRing, bytes]:
    ring = OutputRing(capacity)
    for part in parts:
        ring.append(memoryview(part))
    return ring, b"".join(parts)


@given(st.integers(1, 50), writes)
@settings(max_examples=400)
def test_every_retained_byte_is_the_one_its_offset_says(capacity: int, parts: list[bytes]) -> None:
    ring, whole = filled(capacity, parts)
    assert ring.total == len(whole)
    kept = ring.total - ring.retained_from
    assert min(capacity, len(whole)) <= kept <= capacity + 3
    for start in range(ring.retained_from, ring.total + 1):
        assert ring.read(start, 7) == whole[start : start + 7]
    assert ring.read(ring.retained_from, 1000) == whole[ring.retained_from :]


@given(st.integers(1, 50), writes)
def test_offsets_outside_the_ring_are_refused(capacity: int, parts: list[bytes]) -> None:
    ring, _ = filled(capacity, parts)
    for offset in (ring.retained_from - 1, ring.total + 1):
        with pytest.raises(ValueError, match="outside"):
            ring.read(offset, 1)


@given(st.integers(1, 60), texts)
@settings(max_examples=400)
def test_text_never_begins_or_ends_inside_a_character(capacity: int, parts: list[str]) -> None:
    ring, whole = filled(capacity, [part.encode() for part in parts])
    assert "�" not in "".join(parts)  # else the check below would prove nothing
    first = cut(ring, 0, 1000, "utf-8", ended=True)
    assert first.text == whole[ring.retained_from :].decode()
    assert first.lost == (ring.retained_from > 0)
    assert first.eof


@given(st.binary(max_size=80), st.integers(1, 9), st.lists(st.integers(1, 20), max_size=6))
@settings(max_examples=400)
def test_pieces_join_to_what_one_read_gives(data: bytes, max_bytes: int, steps: list[int]) -> None:
    ring = OutputRing(1000)
    cursor, text, exact, at, ended = 0, "", b"", 0, False
    sizes = [*steps, len(data)]
    while not ended:
        ended = not sizes
        if sizes:
            size = sizes.pop(0)
            ring.append(memoryview(data[at : at + size]))
            at = min(len(data), at + size)
        while True:
            piece = cut(ring, cursor, max_bytes, "utf-8", ended=ended)
            assert piece.cursor - cursor <= max(max_bytes, 4)
            text += piece.text
            if piece.cursor == cursor:
                break
            cursor = piece.cursor
    assert (cursor, piece.eof) == (len(data), True)
    assert text == data.decode("utf-8", "replace")
    cursor = 0
    while not (piece := cut(ring, cursor, max_bytes, "base64", ended=True)).eof:
        exact += base64.b64decode(piece.text)
        cursor = piece.cursor
    assert exact + base64.b64decode(piece.text) == data


def test_an_unfinished_character_is_held_back_only_while_more_may_come() -> None:
    ring = OutputRing(10)
    ring.append(memoryview(b"a\xe2\x82"))
    assert cut(ring, 0, 100, "utf-8", ended=False).text == "a"
    assert cut(ring, 1, 100, "utf-8", ended=False).text == ""
    assert cut(ring, 1, 100, "utf-8", ended=True).text == "�"
    assert not cut(ring, 1, 100, "utf-8", ended=False).eof


def test_a_cursor_beyond_the_end_is_refused() -> None:
    with pytest.raises(RunnerError, match="beyond the 0 bytes"):
        cut(OutputRing(10), 1, 100, "utf-8", ended=False)


@pytest.mark.parametrize("capacity", [0, -1, 64 * 1024 * 1024 + 1])
def test_a_ring_has_a_maximum(capacity: int) -> None:
    with pytest.raises(ValueError, match="outside"):
        OutputRing(capacity)
