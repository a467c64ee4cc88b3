"""A workspace that an earlier command prepared: links, FIFOs and swaps at the places that the set-up touches.

Whatever happens, nothing outside the workspace changes, and no command runs with a protected name that it can write.
"""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.attacks.harness import Finished, LaunchRefused, Place, SandboxDriver

pytestmark = [pytest.mark.covers("BOX-7"), pytest.mark.timeout(90)]

PLANT = """
exec 2> /dev/null
touch .git/hooks/planted && echo planted
{ printf evil >> .git/config; } && echo written
true
"""


def snapshot(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Everything below a directory: mode, and content or link target."""
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        content = b""
        if stat.S_ISREG(status.st_mode):
            content = path.read_bytes()
        elif stat.S_ISLNK(status.st_mode):
            content = os.fsencode(os.readlink(path))
        found[str(path.relative_to(folder))] = (status.st_mode, content)
    return found


def outside_repository(sandbox: SandboxDriver, place: Place) -> Path:
    """A repository outside the workspace, which the runner's uid may write."""
    repository = place.outside / "repository"
    for directory in (repository, repository / "hooks"):
        directory.mkdir()
        sandbox.identity.own(directory)
    (repository / "config").write_text("[core]\n")
    sandbox.identity.own(repository / "config")
    return repository


def attempt(sandbox: SandboxDriver, place: Place) -> Finished | LaunchRefused:
    """Under protection: what the command could do, or the refusal to start it."""
    try:
        return sandbox.run(place.terms(), ["/bin/sh", "-c", PLANT])
    except LaunchRefused as refusal:
        return refusal


def assert_nothing_written(outcome: Finished | LaunchRefused) -> None:
    if isinstance(outcome, Finished):
        assert outcome.code == 0, outcome
        assert outcome.output == ""
    else:
        assert outcome.stage, outcome


def test_the_same_commands_write_where_nothing_is_protected(sandbox: SandboxDriver, place: Place) -> None:
    for name in (".git", ".git/hooks"):
        (place.workspace / name).mkdir()
        sandbox.identity.own(place.workspace / name)
    assert sandbox.run(place.terms(protect=[]), ["/bin/sh", "-c", PLANT]).output == "planted\nwritten\n"


@pytest.mark.parametrize("linked", [".git", ".git/hooks", ".git/config"])
def test_a_link_at_a_protected_name_leads_the_set_up_nowhere(sandbox: SandboxDriver, place: Place, linked: str) -> None:
    repository = outside_repository(sandbox, place)
    before = snapshot(place.outside)
    link = place.workspace / linked
    link.parent.mkdir(exist_ok=True)
    sandbox.identity.own(link.parent)
    link.symlink_to(repository if linked == ".git" else repository / link.name)
    assert_nothing_written(attempt(sandbox, place))
    assert snapshot(place.outside) == before
    assert link.is_symlink()


@pytest.mark.parametrize("linked", [".git", ".git/hooks", ".git/config"])
def test_a_link_within_the_workspace_does_not_move_the_cover(sandbox: SandboxDriver, place: Place, linked: str) -> None:
    """The name is what is protected: a command must not reach a writable thing behind it."""
    real = place.workspace / "real"
    for directory in (real, real / "hooks"):
        directory.mkdir()
        sandbox.identity.own(directory)
    (real / "config").write_text("")
    sandbox.identity.own(real / "config")
    link = place.workspace / linked
    link.parent.mkdir(exist_ok=True)
    sandbox.identity.own(link.parent)
    link.symlink_to(os.path.relpath(real if linked == ".git" else real / link.name, link.parent))
    outcome = attempt(sandbox, place)
    if isinstance(outcome, Finished):
        name = "planted" if linked != ".git/config" else "written"
        assert name not in outcome.output, outcome


@pytest.mark.parametrize("name", [".git", ".git/hooks", ".git/config"])
def test_a_fifo_at_a_protected_name_does_not_hold_the_start_up(sandbox: SandboxDriver, place: Place, name: str) -> None:
    fifo = place.workspace / name
    fifo.parent.mkdir(exist_ok=True)
    sandbox.identity.own(fifo.parent)
    os.mkfifo(fifo)
    sandbox.identity.own(fifo)
    # Not the command's attempts: its own shell would wait for a reader.
    started: Finished | LaunchRefused
    try:
        started = sandbox.run(place.terms(), ["/bin/true"])
    except LaunchRefused as refused:
        started = refused
    assert_nothing_written(started)
    assert stat.S_ISFIFO(fifo.lstat().st_mode)


def test_a_root_that_became_a_link_is_refused(sandbox: SandboxDriver, place: Place) -> None:
    before = snapshot(place.outside)
    place.workspace.rmdir()
    place.workspace.symlink_to(place.outside)
    with pytest.raises(LaunchRefused):
        sandbox.shell(place.terms(), "touch here")
    assert snapshot(place.outside) == before


def test_a_root_that_is_gone_is_refused_and_the_next_command_runs(sandbox: SandboxDriver, place: Place) -> None:
    place.workspace.rmdir()
    with pytest.raises(LaunchRefused) as refusal:
        sandbox.run(place.terms(), ["/bin/true"])
    assert refusal.value.errno == "ENOENT"
    place.workspace.mkdir()
    sandbox.identity.own(place.workspace)
    assert sandbox.run(place.terms(), ["/bin/true"]).code == 0


def test_a_root_that_was_replaced_is_the_new_one(sandbox: SandboxDriver, place: Place) -> None:
    assert sandbox.shell(place.terms(), "touch old").code == 0
    os.rename(place.workspace, place.base / "moved")
    place.workspace.mkdir()
    sandbox.identity.own(place.workspace)
    assert sandbox.shell(place.terms(), "touch new; ls").output == "new\n"
    assert os.listdir(place.base / "moved") == ["old"]


def test_no_placeholder_is_left_where_a_protected_name_was_absent(sandbox: SandboxDriver, place: Place) -> None:
    (place.workspace / ".git").mkdir()
    sandbox.identity.own(place.workspace / ".git")
    for _ in range(20):
        assert_nothing_written(attempt(sandbox, place))
    assert os.listdir(place.workspace / ".git") == []


SWAPPER = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
one, other = (name.encode() for name in sys.argv[1:])
print("swapping", flush=True)
while os.getppid() != 1:
    libc.renameat2(-100, one, -100, other, 2)
"""


@contextmanager
def swapping(sandbox: SandboxDriver, one: Path, other: Path) -> Iterator[None]:
    """A process outside that exchanges two names, as fast as it can."""
    process = subprocess.Popen(
        [sys.executable, "-c", SWAPPER, str(one), str(other)],
        stdout=subprocess.PIPE,
        **sandbox.identity.popen_arguments(),
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"swapping\n"
        yield
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_link_that_is_swapped_in_at_any_moment_is_never_followed(sandbox: SandboxDriver, place: Place) -> None:
    repository = outside_repository(sandbox, place)
    for name in (".git", ".git/hooks"):
        (place.workspace / name).mkdir()
        sandbox.identity.own(place.workspace / name)
    (place.workspace / ".git/config").write_text("")
    sandbox.identity.own(place.workspace / ".git/config")
    (place.workspace / "link").symlink_to(repository)
    before = snapshot(place.outside)
    ran = 0
    with swapping(sandbox, place.workspace / ".git", place.workspace / "link"):
        for _ in range(60):
            outcome = attempt(sandbox, place)
            ran += isinstance(outcome, Finished)
            assert snapshot(place.outside) == before
    # Some of the starts met the directory, so the loop did try.
    assert ran > 0


CONNECT = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1]); print('connected')"


@pytest.mark.covers("BOX-6")
@pytest.mark.parametrize("shown", ["tools", "workspace", "outside"])
def test_a_socket_is_reached_exactly_where_its_directory_is_shown(
    sandbox: SandboxDriver, place: Place, shown: str
) -> None:
    """A read-only mount keeps nobody from connecting: what an operator shows may be used."""
    path = {"tools": place.tools, "workspace": place.workspace, "outside": place.outside}[shown] / "listener"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        path.chmod(0o777)
        finished = sandbox.run(place.terms(), ["/usr/bin/python3", "-c", CONNECT, str(path)])
    assert ("connected" in finished.output) is (shown != "outside"), finished
    assert ("FileNotFoundError" in finished.output) is (shown == "outside")
