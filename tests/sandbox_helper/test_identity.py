"""The text of an id map: the owner appears as the command's id, everybody else as themselves, nobody twice."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from sandbox_helper.identity import id_map

LAST = 2**32 - 2
ids = st.sampled_from([0, 1, 1000, 61000, LAST]) | st.integers(0, LAST)


def ranges(text: str) -> list[tuple[int, int, int]]:
    return [tuple(map(int, line.split())) for line in text.splitlines()]  # type: ignore[misc]


def shown_as(text: str, inside: int) -> int | None:
    for first, outside, count in ranges(text):
        if first <= inside < first + count:
            return outside + inside - first
    return None


@given(owner=ids, command=ids, other=ids)
def test_the_owner_appears_as_the_command_and_others_as_themselves(owner: int, command: int, other: int) -> None:
    text = id_map(owner, command)
    assert shown_as(text, owner) == command
    if other not in (owner, command):
        assert shown_as(text, other) == other


@given(owner=ids, command=ids)
def test_no_range_overlaps_another_on_either_side(owner: int, command: int) -> None:
    for side in (0, 1):
        spans = sorted((line[side], line[side] + line[2]) for line in ranges(id_map(owner, command)))
        assert all(before[1] <= after[0] for before, after in pairwise(spans))
        assert spans[-1][1] <= 2**32 - 1
