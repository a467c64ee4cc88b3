"""The fault matrix of docs/reliability.md, played (PROC-7, UDS-2, LEASE-2)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from tests.runner.fault_matrix import CELLS, PAGE, TABLE, Fault, Stage, Target, page, play

pytestmark = [
    pytest.mark.kernel("namespaces"),
    pytest.mark.usefixtures("leak_check"),
    pytest.mark.covers("PROC-7", "UDS-2", "LEASE-2"),
    pytest.mark.timeout(60),
]
AT_ONCE = tuple(row for row in TABLE if row[1] != "SIGSTOP")


async def compare(cells: Sequence[tuple[Target, Fault, Stage]], prepared: bool) -> None:
    """Plays the cells side by side, each with a worker of its own."""
    outcomes = await asyncio.gather(*(play(*cell, prepared=prepared) for cell in cells))
    promised = [TABLE[target, fault][stage] for target, fault, stage in cells]
    assert dict(zip(cells, outcomes, strict=True)) == dict(zip(cells, promised, strict=True))


@pytest.mark.parametrize("prepared", [False, True], ids=["from nothing", "prepared"])
@pytest.mark.parametrize(("target", "fault"), AT_ONCE)
async def test_a_kill_or_a_cut_is_told_as_the_table_says(target: Target, fault: Fault, prepared: bool) -> None:
    await compare([cell for cell in CELLS if cell[:2] == (target, fault)], prepared)


async def test_five_seconds_of_standstill_are_told_as_the_table_says() -> None:
    await compare([cell for cell in CELLS if cell[1] == "SIGSTOP"], prepared=False)


def test_the_page_shows_the_table() -> None:
    assert PAGE.read_text() == page()
