"""Input: back-pressure, ends, whole characters (PROC-9); terminals: size, control characters (PROC-2, PROC-5)."""

from __future__ import annotations

import asyncio

import pytest

from runner.api import MAX_STDIN_BYTES, ErrorCode, ResizeProcess, RunnerError
from tests.contract.rig import Rig

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.covers("PROC-9")
async def test_input_arrives_byte_for_byte_and_eof_ends_it(rig: Rig) -> None:
    process_id = await rig.start("/bin/cat")
    assert await rig.write(process_id, "one\n") == 4
    assert await rig.write(process_id, "héllo €\n", eof=True) == len("héllo €\n".encode())
    assert await rig.output(process_id) == "one\nhéllo €\n"
    assert (await rig.exited(process_id)).exit_code == 0


@pytest.mark.covers("PROC-9")
async def test_a_large_input_goes_through_whole(rig: Rig) -> None:
    process_id = await rig.start("/usr/bin/wc", "-c")
    text = "0123456789abcdef" * 65536
    assert await rig.write(process_id, text, eof=True) == len(text)
    assert (await rig.output(process_id)).strip() == str(len(text))


@pytest.mark.covers("PROC-9")
async def test_more_input_than_is_allowed_at_once_is_refused_whole(rig: Rig) -> None:
    process_id = await rig.sh("wc -c")
    for data in ("x" * (MAX_STDIN_BYTES + 1), "\u00e4" * (MAX_STDIN_BYTES // 2 + 1)):
        with pytest.raises(RunnerError) as caught:
            await rig.write(process_id, data, eof=True)
        assert (caught.value.code, caught.value.details["argument"]) == (ErrorCode.INVALID_ARGUMENT, "data")
    assert await rig.write(process_id, "\u00e4" * (MAX_STDIN_BYTES // 2), eof=True) == MAX_STDIN_BYTES
    assert await rig.output(process_id) == f"{MAX_STDIN_BYTES}\n"


@pytest.mark.covers("PROC-9")
async def test_a_full_pipe_answers_how_much_was_written_and_the_rest_follows(rig: Rig) -> None:
    process_id = await rig.sh("echo ready; read go; exec wc -c")
    await rig.until(process_id, "ready")
    await rig.write(process_id, "go\n")
    stopped = await rig.sh("echo ready; read go; kill -STOP $$; exec cat")
    await rig.until(stopped, "ready")
    await rig.write(stopped, "go\n")
    # Nobody reads: three-byte characters, so that the pipe's size falls inside one.
    text = "€" * 300_000
    written = await rig.write(stopped, text)
    assert 0 < written < len(text.encode())
    assert written % 3 == 0
    assert await rig.write(process_id, text[: written // 3], eof=True) == written
    assert (await rig.output(process_id, 6)).strip() == str(written)


@pytest.mark.covers("PROC-9")
async def test_concurrent_writes_do_not_mix(rig: Rig) -> None:
    process_id = await rig.start("/bin/cat")
    lines = [f"{n}" * 20_000 + "\n" for n in range(8)]
    reading = asyncio.create_task(rig.output(process_id))
    written = await asyncio.gather(*(rig.write(process_id, line) for line in lines))
    assert written == [len(line) for line in lines]
    await rig.write(process_id, "", eof=True)
    assert sorted((await reading).splitlines(keepends=True)) == sorted(lines)


@pytest.mark.covers("PROC-9")
async def test_writing_to_a_command_that_ended_is_not_running(rig: Rig) -> None:
    process_id = await rig.sh("exit 0")
    await rig.exited(process_id)
    with pytest.raises(RunnerError) as caught:
        await rig.write(process_id, "late")
    assert caught.value.code is ErrorCode.PROCESS_NOT_RUNNING


@pytest.mark.covers("PROC-9")
async def test_writing_after_eof_is_refused_and_eof_again_is_not(rig: Rig) -> None:
    process_id = await rig.sh("cat; echo closed; exec sleep 86400")
    await rig.write(process_id, "x", eof=True)
    await rig.until(process_id, "closed")
    assert await rig.write(process_id, "", eof=True) == 0
    with pytest.raises(RunnerError) as caught:
        await rig.write(process_id, "late")
    assert (caught.value.code, caught.value.details["reason"]) == (ErrorCode.INVALID_ARGUMENT, "stdin_closed")


@pytest.mark.covers("PROC-9")
async def test_writing_to_a_command_that_closed_its_input_is_refused(rig: Rig) -> None:
    process_id = await rig.sh("exec <&-; echo closed; exec sleep 86400")
    await rig.until(process_id, "closed")
    with pytest.raises(RunnerError) as caught:
        await rig.write(process_id, "nobody reads")
    assert caught.value.details["reason"] == "stdin_closed"


@pytest.mark.covers("PROC-9")
async def test_terminate_wakes_a_write_that_waits(rig: Rig) -> None:
    process_id = await rig.sh("read first; echo begun; exec sleep 86400")
    writing = asyncio.create_task(rig.write(process_id, "first\n" + "x" * 1_000_000))
    await rig.until(process_id, "begun")
    await rig.terminate(process_id)
    assert await writing < 1_000_000


@pytest.mark.covers("PROC-2")
async def test_without_tty_nothing_is_a_terminal(rig: Rig) -> None:
    output, _ = await rig.run("test -t 0 || test -t 1 || test -t 2 || echo none")
    assert output == "none\n"


@pytest.mark.covers("PROC-2")
async def test_a_terminal_starts_at_24_by_80_and_follows_resize(rig: Rig) -> None:
    process_id = await rig.sh("trap 'stty size' WINCH; stty size; while :; do read x; done", tty=True)
    cursor = await rig.until(process_id, "24 80")
    answer = await rig.runner.resize_process(ResizeProcess(process_id=process_id, rows=50, cols=132))
    assert (answer.rows, answer.cols) == (50, 132)
    await rig.write(process_id, "\n")
    await rig.until(process_id, "50 132", cursor)


@pytest.mark.covers("PROC-2")
async def test_a_control_character_reaches_the_foreground_group(rig: Rig) -> None:
    script = "trap 'echo interrupted; exit 3' INT; echo ready; while :; do read x || :; done"
    process_id = await rig.sh(script, tty=True)
    cursor = await rig.until(process_id, "ready")
    await rig.write(process_id, "\x03")
    await rig.until(process_id, "interrupted", cursor)
    assert (await rig.exited(process_id)).termination == "exited"


@pytest.mark.covers("PROC-2")
@pytest.mark.parametrize("last", ["", "line\n", "begun"])
async def test_eof_on_a_terminal_ends_its_input_even_after_a_line_begun(rig: Rig, last: str) -> None:
    process_id = await rig.sh("stty -echo; echo ready; wc -c; exit 6", tty=True)
    cursor = await rig.until(process_id, "ready")
    await rig.write(process_id, last, eof=True)
    await rig.until(process_id, str(len(last)), cursor)
    status = await rig.exited(process_id)
    assert status.command_exit is not None
    assert status.command_exit.code == 6


@pytest.mark.covers("PROC-4")
async def test_the_last_words_on_a_terminal_are_not_lost(rig: Rig) -> None:
    for _ in range(10):
        output, _ = await rig.run("seq 1 500; echo end", tty=True)
        assert output == "".join(f"{n}\r\n" for n in range(1, 501)) + "end\r\n"


@pytest.mark.covers("PROC-5")
async def test_resize_without_a_terminal_or_after_the_end_is_refused(rig: Rig) -> None:
    pipes = await rig.start("/bin/cat")
    with pytest.raises(RunnerError) as caught:
        await rig.runner.resize_process(ResizeProcess(process_id=pipes, rows=10, cols=10))
    assert caught.value.code is ErrorCode.PROCESS_NOT_TTY
    over = await rig.sh("exit 0", tty=True)
    await rig.exited(over)
    with pytest.raises(RunnerError) as caught:
        await rig.runner.resize_process(ResizeProcess(process_id=over, rows=10, cols=10))
    assert caught.value.code is ErrorCode.PROCESS_NOT_RUNNING
