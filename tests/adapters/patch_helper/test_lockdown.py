"""What a helper can no longer do once it is confined, each with a control that shows the attempt works outside."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from adapters.patch_helper.lockdown import confine, set_limits
from tests.adapters.patch_helper.workspaces import Workspace
from tests.privileges import run_as


def attempts(made: Workspace, outside: Path) -> dict[str, Callable[[], object]]:
    def connect() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made_socket:
            made_socket.connect(("127.0.0.1", 9))

    def fork() -> None:
        if (pid := os.fork()) == 0:
            os._exit(0)
        os.waitpid(pid, 0)

    return {
        "read outside": lambda: outside.read_bytes(),
        "write outside": lambda: outside.write_bytes(b"x"),
        "create outside": lambda: (outside.parent / "new").touch(),
        "rename out of the root": lambda: (made.root / "b").rename(outside.parent / "b"),
        "network": connect,
        "new process": fork,
    }


def results(of: dict[str, Callable[[], object]]) -> dict[str, str]:
    found = {}
    for name, attempt in of.items():
        try:
            attempt()
        except OSError as error:
            found[name] = errno.errorcode[error.errno or 0]
        else:
            found[name] = "done"
    return found


@pytest.mark.kernel("landlock")
@pytest.mark.covers("PATCH-4")
def test_a_confined_helper_reaches_its_root_and_nothing_else(demo: Workspace) -> None:
    outside = demo.root.parent / "outside"
    outside.write_bytes(b"")
    demo.put("a", "1\n")
    demo.put("b", "1\n")

    def body() -> tuple[dict[str, str], dict[str, str], bytes]:
        root = os.open(demo.root, os.O_RDONLY | os.O_DIRECTORY)
        state = confine((root,))
        (demo.root / "a").rename(demo.root / "c")
        return state, results(attempts(demo, outside)), (demo.root / "c").read_bytes()

    state, found, inside = run_as(os.getuid(), body)
    assert state == {"seccomp": "active", "landlock": "active"}
    assert inside == b"1\n"
    assert set(found.values()) <= {"EACCES", "EPERM", "EXDEV"}, found

    control = run_as(os.getuid(), lambda: results(attempts(demo, outside)))
    assert set(control.values()) == {"done"}


@pytest.mark.covers("PATCH-4")
def test_memory_of_a_helper_is_bounded() -> None:
    def body() -> tuple[bool, bool]:
        before = len(bytearray(300 * 1024 * 1024)) > 0
        set_limits()
        try:
            bytearray(300 * 1024 * 1024)
        except MemoryError:
            return before, True
        return before, False

    assert run_as(os.getuid(), body) == (True, True)


@pytest.mark.covers("PATCH-7", "PATCH-4")
def test_a_confined_helper_can_start_no_program_git_or_other(demo: Workspace) -> None:
    def body() -> str:
        confine((os.open(demo.root, os.O_RDONLY | os.O_DIRECTORY),))
        return results({"exec": lambda: os.execv("/bin/true", ["true"])})["exec"]

    assert run_as(os.getuid(), body) in ("EPERM", "EACCES")
    if (control := os.fork()) == 0:
        os.execv("/bin/true", ["true"])
    assert os.waitstatus_to_exitcode(os.waitpid(control, 0)[1]) == 0
