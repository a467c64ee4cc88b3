"""What only namespaces can promise: the whole tree ends with its command, however far it fled (PROC-7, PROC-11)."""

from __future__ import annotations

import asyncio
import os

import pytest

from runner.api import GrepFiles
from tests.contract.conftest import SANDBOXED
from tests.contract.rig import Rig

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.parametrize("shared_rig", SANDBOXED, indirect=True),
]

DAEMONS = (
    "( setsid sh -c 'trap \"\" TERM HUP INT; exec 9>{fifo}; echo up > daemon1; while :; do sleep 86400; done' & ); "
    "( ( setsid sh -c 'trap \"\" TERM HUP INT; exec 8>{fifo}; echo up > daemon2; sleep 86400; sleep 86400' & ) & ); "
    "while [ ! -s daemon1 ] || [ ! -s daemon2 ]; do sleep 0.01; done; echo ready; "
)


async def daemons(rig: Rig, then: str) -> tuple[str, asyncio.Task[bytes]]:
    """Starts a command with two daemons; the task ends when no process that holds the FIFO is alive."""
    name = f"fifo-{rig.new_id()}"
    os.mkfifo(f"{rig.root}/{name}", 0o666)
    os.chmod(f"{rig.root}/{name}", 0o666)
    for flag in ("daemon1", "daemon2"):
        if flag in os.listdir(rig.root):
            os.unlink(f"{rig.root}/{flag}")
    opening = asyncio.create_task(asyncio.to_thread(os.open, f"{rig.root}/{name}", os.O_RDONLY))
    process_id = await rig.sh(DAEMONS.format(fifo=name) + then, terms=rig.terms(timeout_s=0))
    await rig.until(process_id, "ready")
    fd = await opening
    return process_id, asyncio.create_task(asyncio.to_thread(_read_to_end, fd))


def _read_to_end(fd: int) -> bytes:
    try:
        return os.read(fd, 1)
    finally:
        os.close(fd)


@pytest.mark.covers("PROC-11", "PROC-7")
async def test_daemons_end_with_the_command_that_left_them(rig: Rig) -> None:
    process_id, dead = await daemons(rig, "echo last words; exit 6")
    assert await rig.output(process_id) == "ready\nlast words\n"
    status = await rig.exited(process_id)
    assert (status.termination, status.command_exit and status.command_exit.code) == ("exited", 6)
    assert await dead == b""


@pytest.mark.covers("PROC-9", "PROC-7")
async def test_daemons_end_with_a_terminated_command(rig: Rig) -> None:
    process_id, dead = await daemons(rig, "trap '' TERM; sleep 86400; sleep 86400")
    assert not dead.done()
    assert (await rig.terminate(process_id)).termination == "terminated"
    assert await dead == b""


@pytest.mark.covers("PROC-6", "BOX-2")
async def test_the_status_says_what_was_in_force(rig: Rig) -> None:
    _, status = await rig.run("exit 0")
    assert status.isolation.command_sandbox == "linux-sandbox"
    assert status.isolation.network == "restricted"
    assert set(status.isolation.protections.values()) <= {"active", "degraded", "off"}
    assert status.isolation.protections
    assert status.isolation.limits["timeout_s"] == "deadline"


@pytest.mark.covers("FS-6")
async def test_grep_finds_what_a_running_command_wrote(rig: Rig) -> None:
    process_id = await rig.sh("echo 'a needle here' > hay.txt; echo ready; exec sleep 86400")
    await rig.until(process_id, "ready")
    page = await rig.runner.grep_files(GrepFiles(workspace=rig.ref(), pattern="needle", glob="hay.txt"))
    assert [(match.path, match.line, match.text) for match in page.matches] == [("hay.txt", 1, "a needle here")]
