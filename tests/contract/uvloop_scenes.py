"""Scenes with the real sandbox on uvloop, as a program: `python -m tests.contract.uvloop_scenes`.

A program of its own, since uvloop keeps a pipe for signals open for as long as its process lives.
"""

from __future__ import annotations

import asyncio
import sys

import uvloop

from runner.__main__ import build_service
from tests.contract.rig import WAIT_MS, RecordingLog, Rig, in_process
from tests.leaks import holdings, left_over


async def pipes(rig: Rig) -> None:
    process_id = await rig.start("/bin/cat")
    assert await rig.write(process_id, "x" * 300_000) == 300_000
    assert await rig.write(process_id, "€\n", eof=True) == 4
    await rig.exited(process_id)
    assert (await rig.read(process_id, 300_000)).chunk == "€\n"


async def full_pipe(rig: Rig) -> None:
    process_id = await rig.sh("read first; echo begun; exec sleep 86400")
    writing = asyncio.create_task(rig.write(process_id, "first\n" + "x" * 1_000_000))
    await rig.until(process_id, "begun")
    assert (await rig.terminate(process_id)).termination == "terminated"
    assert await writing < 1_000_000


async def terminal(rig: Rig) -> None:
    process_id = await rig.sh("stty size; read x; echo got:$x; cat; exit 6", tty=True)
    cursor = await rig.until(process_id, "24 80")
    await rig.write(process_id, "héé\n")
    cursor = await rig.until(process_id, "got:héé", cursor)
    await rig.write(process_id, "", eof=True)
    status = await rig.exited(process_id)
    assert status.command_exit is not None
    assert status.command_exit.code == 6


async def flood(rig: Rig) -> None:
    process_id = await rig.sh("exec head -c 300000000 /dev/zero")
    while (status := await rig.status(process_id, WAIT_MS)).state == "running":
        pass
    assert status.output_total == 300_000_000


async def many(rig: Rig) -> None:
    ids = [await rig.sh(f"exit {n}", tty=bool(n % 2)) for n in range(8)]
    for n, process_id in enumerate(ids):
        status = await rig.exited(process_id)
        assert status.command_exit is not None
        assert status.command_exit.code == n


SCENES = (pipes, full_pipe, terminal, flood, many)


async def warm_up() -> None:
    """What the loop and its thread pool keep for good is there before the count begins."""
    await asyncio.to_thread(holdings)


async def play() -> None:
    service = build_service(max_processes=8, liveness_fd=None, log=RecordingLog())
    async with in_process(service, "sandbox") as rig:
        for scene in SCENES:
            await scene(rig)
            print(scene.__name__, flush=True)


def main() -> int:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as loop:
        loop.run(warm_up())
        before = holdings()
        loop.run(play())
        left = left_over(before, holdings())
    print("left:", *left)
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
