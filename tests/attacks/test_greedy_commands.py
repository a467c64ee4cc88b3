"""Commands that take all they can get, through the whole program, beside a neighbour that must not notice.

After each, and while those that are only contained still run, the neighbour's command answers. The kernel says which
limit ended a command; where it says nothing, nothing is named.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.attacks.appliance import Appliance, serving
from tests.attacks.harness import Identity, Place, identities, make_place

pytestmark = [pytest.mark.covers("BOX-8", "PROC-3"), pytest.mark.timeout(120)]
PYTHON = "/usr/bin/python3"
LIMITS = {"cpu_s": 1, "memory_mb": 128, "processes": 40, "open_files": 64, "file_size_mb": 2, "timeout_s": 60}
FORK_BOMB = """
import os, signal
while True:
    try:
        if os.fork() == 0:
            signal.pause()
    except BlockingIOError:
        print("no more", flush=True)
        signal.pause()
"""
MEMORY_HOG = """
held = []
try:
    while True:
        held.append(bytearray(8 << 20))
except MemoryError:
    print("no more", len(held) < 16, flush=True)
"""
OPEN_FILES = """
import os
held = []
try:
    while len(held) < 10_000:
        held.append(os.open("/dev/null", os.O_RDONLY))
except OSError as error:
    print("no more", len(held), error.strerror)
"""


@pytest.fixture(scope="module")
def beside() -> Iterator[tuple[Appliance, str]]:
    """An appliance and the neighbour's command, which echoes lines. As an ordinary user, whose processes the machine
    counts together; `test_neighbours_and_limits` has the same limits as root."""
    identity = identities()[-1]
    with make_place(identity) as place, make_place(identity) as other, serve(identity, place, other) as appliance:
        yield appliance, appliance.execute("other", ["/bin/cat"])


def serve(identity: Identity, place: Place, other: Place) -> Any:
    return serving(identity, place, {"limits": LIMITS}, "uds", {"other": other})


def answers(beside: tuple[Appliance, str], word: str) -> bool:
    """Whether the neighbour's command goes on as if nothing were."""
    appliance, neighbour = beside
    start = appliance.call("process_status", process_id=neighbour)["output_total"]
    appliance.call("write_stdin", process_id=neighbour, data=f"{word}\n")
    said = appliance.call("read_process", process_id=neighbour, cursor=start, wait_ms=30_000)
    return bool(said["chunk"] == f"{word}\n")


def end_of(appliance: Appliance, process_id: str) -> dict[str, Any]:
    appliance.output_of(process_id)
    return appliance.call("process_status", process_id=process_id, wait_ms=30_000)


def test_a_fork_bomb_is_held_at_its_limit_and_ends_on_request(beside: tuple[Appliance, str]) -> None:
    appliance, _ = beside
    bomb = appliance.execute("place", [PYTHON, "-c", FORK_BOMB])
    said = appliance.call("read_process", process_id=bomb, wait_ms=30_000)
    assert "no more" in said["chunk"]
    assert answers(beside, "while the bomb stands")
    appliance.call("terminate_process", process_id=bomb)
    assert end_of(appliance, bomb)["termination"] == "terminated"
    assert answers(beside, "after the bomb")


def test_a_memory_hog_ends_alone(beside: tuple[Appliance, str]) -> None:
    appliance, _ = beside
    hog = appliance.execute("place", [PYTHON, "-c", MEMORY_HOG])
    output = appliance.output_of(hog)
    ended = end_of(appliance, hog)
    by_group = ended["isolation"]["limits"]["memory_mb"] == "cgroup"
    assert (ended.get("limit"), output) == (("memory_mb", "") if by_group else (None, "no more True\n"))
    assert answers(beside, "after the hog")


def test_a_disk_filler_ends_at_the_file_size_and_says_so(beside: tuple[Appliance, str]) -> None:
    appliance, _ = beside
    filler = appliance.execute("place", ["/bin/sh", "-c", "exec cat /dev/zero > fill"])
    ended = end_of(appliance, filler)
    assert (ended["command_exit"], ended["limit"]) == ({"signal": "SIGXFSZ"}, "file_size_mb")
    assert answers(beside, "after the filler")


def test_ten_thousand_open_files_stop_at_the_limit(beside: tuple[Appliance, str]) -> None:
    appliance, _ = beside
    output = appliance.output_of(appliance.execute("place", [PYTHON, "-c", OPEN_FILES]))
    assert output.startswith("no more ")
    assert int(output.split()[2]) < LIMITS["open_files"]
    assert answers(beside, "after the files")


def test_a_busy_loop_ends_at_its_processor_time_and_says_so(beside: tuple[Appliance, str]) -> None:
    appliance, _ = beside
    loop = appliance.execute("place", ["/bin/sh", "-c", "while :; do :; done"])
    assert answers(beside, "while the loop runs")
    ended = end_of(appliance, loop)
    assert ended["limit"] == "cpu_s"
    assert ended["command_exit"]["signal"] in ("SIGXCPU", "SIGKILL")
    assert answers(beside, "after the loop")


def test_nothing_of_a_greedy_command_is_left(beside: tuple[Appliance, str]) -> None:
    appliance, _ = beside
    bomb = appliance.execute("place", [PYTHON, "-c", FORK_BOMB])
    assert "no more" in appliance.call("read_process", process_id=bomb, wait_ms=30_000)["chunk"]
    children = appliance.managed_children()
    assert len(children) == 2, "the bomb's and the neighbour's PID 1"
    appliance.call("terminate_process", process_id=bomb)
    end_of(appliance, bomb)
    (left,) = appliance.managed_children()
    assert left in children
    assert os.path.exists(f"/proc/{left}")
