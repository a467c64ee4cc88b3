"""Output: absolute offsets, exact loss, whole characters, waits that wake (PROC-4, PROC-10, PROC-11)."""

from __future__ import annotations

import asyncio
import base64

import pytest

from runner.api import ErrorCode, RunnerError
from tests.contract.rig import WAIT_MS, Rig

pytestmark = pytest.mark.asyncio(loop_scope="module")

RETAINED = 256 * 1024


@pytest.mark.covers("PROC-4")
async def test_both_streams_arrive_in_the_order_they_were_written(rig: Rig) -> None:
    output, _ = await rig.run("echo one; echo two >&2; echo three")
    assert output == "one\ntwo\nthree\n"


@pytest.mark.covers("PROC-4")
async def test_small_pieces_join_to_the_whole_and_a_repeated_cursor_repeats(rig: Rig) -> None:
    process_id = await rig.sh("seq -w 0 999")
    await rig.exited(process_id)
    cursor, pieces = 0, []
    while not (got := await rig.read(process_id, cursor, max_bytes=77)).eof:
        assert 0 < len(got.chunk) <= 77
        assert got.cursor == cursor + len(got.chunk)
        pieces.append(got.chunk)
        cursor = got.cursor
    pieces.append(got.chunk)
    assert "".join(pieces) == "".join(f"{n:03d}\n" for n in range(1000))
    assert (await rig.read(process_id, 8, max_bytes=8)).chunk == "002\n003\n"
    assert (await rig.read(process_id, 8, max_bytes=8)).chunk == "002\n003\n"


@pytest.mark.covers("PROC-4")
async def test_the_end_is_told_only_with_the_cursor_at_the_end(rig: Rig) -> None:
    process_id = await rig.sh("printf 0123456789")
    await rig.exited(process_id)
    assert not (await rig.read(process_id, 0, max_bytes=9)).eof
    assert (await rig.read(process_id, 0, max_bytes=10)).eof
    tail = await rig.read(process_id, 10)
    assert (tail.chunk, tail.cursor, tail.eof, tail.output_lost) == ("", 10, True, False)


@pytest.mark.covers("PROC-4")
async def test_what_the_ring_dropped_is_marked_and_what_it_kept_is_where_its_offset_says(rig: Rig) -> None:
    process_id = await rig.sh("seq -f %07.0f 0 124999")
    status = await rig.exited(process_id)
    assert status.output_total == 1_000_000
    start = status.output_retained_from
    assert RETAINED <= status.output_total - start <= RETAINED + 3
    first = await rig.read(process_id, 0, max_bytes=64)
    assert (first.output_lost, first.retained_from) == (True, start)
    assert first.cursor - len(first.chunk) == start
    rest = await rig.output(process_id, first.cursor)
    whole = "".join(f"{n:07d}\n" for n in range(start // 8, 125_000))
    assert first.chunk + rest == whole[start % 8 :]
    assert not (await rig.read(process_id, start)).output_lost
    assert (await rig.read(process_id, start - 1)).output_lost


@pytest.mark.covers("PROC-4")
async def test_the_oldest_kept_byte_begins_a_character(rig: Rig) -> None:
    # 3-byte characters, so that a cut by bytes alone would fall inside one of three times out of three sizes.
    for extra in ("", "x", "xx"):
        process_id = await rig.sh(f"printf '%s' '{extra}'; yes € | head -n 200000 | tr -d '\\n'")
        await rig.exited(process_id)
        first = await rig.read(process_id, 0, max_bytes=30)
        assert first.output_lost
        assert first.chunk == "€" * 10


@pytest.mark.covers("PROC-4")
async def test_a_character_that_is_not_all_there_yet_waits_for_its_rest(rig: Rig) -> None:
    process_id = await rig.sh(r"printf 'a\303'; read go; printf '\251b'")
    cursor = await rig.until(process_id, "a")
    assert cursor == 1
    assert (await rig.read(process_id, cursor)).chunk == ""
    await rig.write(process_id, "go\n")
    assert await rig.output(process_id, cursor) == "éb"


@pytest.mark.covers("PROC-4")
async def test_a_character_cut_off_by_the_end_is_replaced_and_counted(rig: Rig) -> None:
    process_id = await rig.sh(r"printf 'a\342\202'")
    assert await rig.output(process_id) == "a�"
    assert (await rig.read(process_id, 0)).cursor == 3


@pytest.mark.covers("PROC-4")
async def test_a_piece_smaller_than_a_character_still_makes_progress(rig: Rig) -> None:
    process_id = await rig.sh("printf '😀é'")
    await rig.exited(process_id)
    first = await rig.read(process_id, 0, max_bytes=1)
    assert (first.chunk, first.cursor) == ("😀", 4)
    second = await rig.read(process_id, 4, max_bytes=1)
    assert (second.chunk, second.cursor, second.eof) == ("é", 6, True)


@pytest.mark.covers("PROC-4")
async def test_base64_is_exact_where_text_replaces(rig: Rig) -> None:
    process_id = await rig.sh(r"printf '\377\000\200x'")
    await rig.exited(process_id)
    got = await rig.read(process_id, 0, encoding="base64")
    assert base64.b64decode(got.chunk) == b"\xff\x00\x80x"
    assert (await rig.read(process_id, 0)).chunk == "�\x00�x"


@pytest.mark.covers("PROC-4")
async def test_a_cursor_beyond_the_end_is_refused_with_the_end(rig: Rig) -> None:
    process_id = await rig.sh("printf 12345")
    await rig.exited(process_id)
    with pytest.raises(RunnerError) as caught:
        await rig.read(process_id, 6)
    assert caught.value.code is ErrorCode.INVALID_ARGUMENT
    assert caught.value.details["output_total"] == 5


@pytest.mark.covers("PROC-10")
async def test_a_waiting_read_wakes_on_output(rig: Rig) -> None:
    process_id = await rig.start("/bin/cat")
    reading = asyncio.create_task(rig.read(process_id, 0, wait_ms=60_000))
    await rig.write(process_id, "hello\n")
    assert (await reading).chunk == "hello\n"


@pytest.mark.covers("PROC-10")
async def test_a_waiting_read_wakes_on_the_end(rig: Rig) -> None:
    process_id = await rig.start("/bin/cat")
    reading = asyncio.create_task(rig.read(process_id, 0, wait_ms=60_000))
    await rig.write(process_id, "", eof=True)
    got = await reading
    assert (got.chunk, got.eof) == ("", True)


@pytest.mark.covers("PROC-10")
async def test_a_waiting_status_wakes_on_output_and_on_the_end(rig: Rig) -> None:
    process_id = await rig.start("/bin/cat")
    waiting = asyncio.create_task(rig.status(process_id, 60_000))
    # The first byte may be there before the question is; then another one ends the wait.
    while not waiting.done():
        await rig.write(process_id, "x")
        await asyncio.wait({waiting}, timeout=0.1)
    status = await waiting
    assert status.state == "running"
    assert status.output_total >= 1
    waiting = asyncio.create_task(rig.status(process_id, 60_000))
    await rig.write(process_id, "", eof=True)
    status = await waiting
    assert (status.state, status.eof) == ("exited", True)


@pytest.mark.covers("PROC-10")
async def test_a_wait_that_nothing_ends_comes_back_empty(rig: Rig) -> None:
    process_id = await rig.start("/bin/cat")
    got = await rig.read(process_id, 0, wait_ms=1)
    assert (got.chunk, got.eof) == ("", False)
    assert (await rig.status(process_id, 1)).state == "running"


@pytest.mark.covers("PROC-4")
async def test_many_readers_of_one_command_see_the_same_bytes(rig: Rig) -> None:
    process_id = await rig.sh("read go; seq 1 5000")
    readers = [asyncio.create_task(rig.output(process_id)) for _ in range(20)]
    await rig.write(process_id, "go\n")
    texts = await asyncio.gather(*readers)
    assert set(texts) == {"".join(f"{n}\n" for n in range(1, 5001))}


@pytest.mark.covers("PROC-4")
async def test_a_command_that_closes_its_output_goes_on_after_eof(rig: Rig) -> None:
    process_id = await rig.sh("echo last; exec >&- 2>&-; read go; exit 9")
    assert await rig.output(process_id) == "last\n"
    status = await rig.status(process_id)
    assert (status.state, status.eof) == ("running", True)
    await rig.write(process_id, "go\n")
    assert (await rig.exited(process_id)).exit_code is not None


@pytest.mark.covers("PROC-4")
async def test_a_flood_does_not_keep_another_command_from_answering(rig: Rig) -> None:
    flood = await rig.sh("exec cat /dev/zero", terms=rig.terms(timeout_s=0))
    while (await rig.status(flood, WAIT_MS)).output_total <= RETAINED:
        pass
    echo = await rig.start("/bin/cat")
    cursor, before = 0, (await rig.status(flood)).output_total
    for n in range(50):
        await rig.write(echo, f"{n}\n")
        got = await rig.read(echo, cursor, wait_ms=WAIT_MS)
        assert got.chunk == f"{n}\n"
        cursor = got.cursor
    while (await rig.status(flood, WAIT_MS)).output_total == before:
        pass
    assert (await rig.terminate(flood)).termination == "terminated"


@pytest.mark.covers("PROC-11")
async def test_a_child_left_behind_does_not_delay_the_end(rig: Rig) -> None:
    output, status = await rig.run("sleep 86400 & echo done; exit 4")
    assert output == "done\n"
    assert (status.state, status.eof) == ("exited", True)


@pytest.mark.covers("PROC-4")
async def test_the_operator_sets_how_much_is_retained(rig: Rig) -> None:
    process_id = await rig.sh("seq -f %07.0f 0 4095", terms=rig.terms(output_retained_kb=1))
    status = await rig.exited(process_id)
    assert 1024 <= status.output_total - status.output_retained_from <= 1024 + 3
