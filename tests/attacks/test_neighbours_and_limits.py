"""Commands of two workspaces beside each other, and one that takes all it can get while the other goes on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.attacks.harness import Finished, Place, SandboxDriver, make_place

pytestmark = pytest.mark.timeout(90)
PYTHON = "/usr/bin/python3"


@pytest.fixture
def other(sandbox: SandboxDriver) -> Iterator[Place]:
    with make_place(sandbox.identity) as made:
        yield made


LEAVE_TRACES = """
import os, socket, sys
for path in ("/tmp/trace", "/dev/shm/trace", os.path.expanduser("~/trace")):
    open(path, "w").close()
abstract = socket.socket(socket.AF_UNIX); abstract.bind("\\0codespace-trace"); abstract.listen()
tcp = socket.create_server(("127.0.0.1", 45678))
print("traces left", flush=True)
sys.stdin.read()
"""
LOOK_FOR_TRACES = """
import os, socket, sys
found = [path for path in ("/tmp/trace", "/dev/shm/trace", os.path.expanduser("~/trace")) if os.path.exists(path)]
for family, address in ((socket.AF_UNIX, "\\0codespace-trace"), (socket.AF_INET, ("127.0.0.1", 45678))):
    try:
        socket.socket(family).connect(address); found.append(repr(address))
    except ConnectionRefusedError:
        pass
found += [pid for pid in os.listdir("/proc") if pid.isdigit() and int(pid) not in (1, os.getpid())]
found += [sys.argv[1]] if os.path.exists(sys.argv[1]) else []
print(found)
"""


@pytest.mark.covers("BOX-6", "NET-1")
def test_commands_of_two_workspaces_do_not_see_each_other(sandbox: SandboxDriver, place: Place, other: Place) -> None:
    first = sandbox.launch(place.terms(), [PYTHON, "-c", LEAVE_TRACES])
    sandbox.expect(first, "traces left")
    found = sandbox.run(other.terms(), [PYTHON, "-c", LOOK_FOR_TRACES, str(place.workspace)])
    assert found.output == "[]\n"
    # The control: in the same sandbox the traces are found.
    both = LEAVE_TRACES.replace("sys.stdin.read()", LOOK_FOR_TRACES)
    control = sandbox.run(place.terms(), [PYTHON, "-c", both, str(place.workspace)]).output
    assert all(trace in control for trace in ("/tmp/trace", "/dev/shm/trace", "codespace-trace", "45678"))
    assert str(place.workspace) in control
    sandbox.kill(first)
    sandbox.wait(first)


FORK_BOMB = """
import os, sys, time
made = 0
while True:
    try:
        if os.fork() == 0:
            time.sleep(1000)
    except BlockingIOError:
        print("no more after", made, flush=True)
        sys.stdin.read()
        break
    made += 1
"""
TEN_CHILDREN = """
import os
children = []
for _ in range(10):
    child = os.fork()
    if child == 0:
        os._exit(0)
    children.append(child)
print(sum(os.waitpid(child, 0)[1] == 0 for child in children))
"""


@pytest.mark.covers("BOX-8")
def test_a_fork_bomb_is_contained_alone(sandbox: SandboxDriver, place: Place, other: Place) -> None:
    bomb = sandbox.launch(place.terms(limits={"processes": 40}), [PYTHON, "-c", FORK_BOMB])
    sandbox.expect(bomb, "no more after")
    # The neighbour has the same limit, the same uid, and all of its own share.
    assert sandbox.run(other.terms(limits={"processes": 40}), [PYTHON, "-c", TEN_CHILDREN]).output == "10\n"
    sandbox.kill(bomb)
    made = int(sandbox.wait(bomb).output.split()[-1])
    assert 30 <= made < 40


@pytest.mark.covers("BOX-8")
def test_a_busy_loop_ends_at_its_cpu_time_and_says_so(sandbox: SandboxDriver, place: Place) -> None:
    finished = sandbox.run(place.terms(limits={"cpu_s": 1}), ["/bin/sh", "-c", "while :; do :; done"])
    assert finished.exit["command_signal"] in ("SIGXCPU", "SIGKILL")
    assert finished.exit["limit"] == "cpu_s"


@pytest.mark.covers("BOX-8")
def test_a_file_that_grows_too_large_ends_its_writer_and_says_so(sandbox: SandboxDriver, place: Place) -> None:
    finished = sandbox.shell(place.terms(limits={"file_size_mb": 1}), "exec head -c 2000000 /dev/zero > big")
    assert finished.exit["command_signal"] == "SIGXFSZ"
    assert finished.exit["limit"] == "file_size_mb"
    assert (place.workspace / "big").stat().st_size == 1 << 20


TOO_MANY_FILES = """
import os
held = []
try:
    while len(held) < 10_000:
        held.append(os.open("/dev/null", os.O_RDONLY))
except OSError as error:
    print(len(held), error.strerror)
"""


@pytest.mark.covers("BOX-8")
def test_ten_thousand_open_files_are_refused_at_the_limit(sandbox: SandboxDriver, place: Place) -> None:
    assert sandbox.run(place.terms(), [PYTHON, "-c", TOO_MANY_FILES]).output == "1021 Too many open files\n"


HOG = """
import mmap
try:
    blocks = [bytearray(32 << 20) for _ in range(32)]
    print("had it all")
except MemoryError:
    print("refused")
"""


@pytest.mark.covers("BOX-8")
def test_a_memory_hog_is_refused_at_the_limit(sandbox: SandboxDriver, place: Place) -> None:
    def hog(memory_mb: int) -> Finished:
        return sandbox.run(place.terms(limits={"memory_mb": memory_mb}), [PYTHON, "-c", HOG])

    refused = hog(256)
    # Where a control group limits, the kernel kills instead.
    assert refused.output == "refused\n" or refused.exit["limit"] == "memory_mb", refused
    assert hog(4096).output == "had it all\n"


@pytest.mark.covers("BOX-8")
@pytest.mark.parametrize("folder", ["/tmp", "/dev/shm"])
def test_the_private_file_systems_end_before_memory_does(sandbox: SandboxDriver, place: Place, folder: str) -> None:
    script = f"head -c 100000000 /dev/zero > {folder}/fill"
    full = sandbox.run(place.terms(limits={"memory_mb": 64}), ["/bin/sh", "-c", script])
    assert "No space left on device" in full.output, full
    assert sandbox.run(place.terms(), ["/bin/sh", "-c", script]).code == 0


@pytest.mark.covers("BOX-8", "PROC-6")
def test_a_command_that_crashes_leaves_no_core(sandbox: SandboxDriver, place: Place) -> None:
    finished = sandbox.run(place.terms(), ["/bin/sh", "-c", "ulimit -c unlimited; ulimit -Hc; kill -SEGV $$"])
    assert "0" in finished.output.split()
    assert finished.exit["command_signal"] == "SIGSEGV"
    assert list(place.workspace.iterdir()) == []
