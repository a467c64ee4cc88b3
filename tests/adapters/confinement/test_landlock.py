"""Landlock in forked children: what is refused under it works without it."""

from __future__ import annotations

import errno
import json
import os
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from adapters.confinement import landlock

SUPPORT = landlock.support()
needs_landlock = [
    pytest.mark.kernel("landlock"),
    pytest.mark.skipif(
        SUPPORT.abi == 0,
        reason=f"this kernel has no Landlock: {errno.errorcode.get(SUPPORT.errno or 0)}",
    ),
]
pytestmark = pytest.mark.covers("PATCH-4")


@pytest.fixture
def trees() -> Iterator[dict[str, Path]]:
    with tempfile.TemporaryDirectory(prefix="landlock-") as base:
        places = {name: Path(base, name) for name in ("read", "write", "other")}
        for place in places.values():
            (place / "inner").mkdir(parents=True)
            (place / "file").write_text("text")
        yield places


def in_child(work: Callable[[], object]) -> object:
    """What `work` returned, or `error: ERRNO`, from a forked child."""
    source, sink = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            try:
                answer = work()
            except OSError as error:
                answer = f"error: {errno.errorcode[error.errno or 0]}"
            os.write(sink, json.dumps(answer).encode())
        finally:
            os._exit(0)
    os.close(sink)
    with os.fdopen(source, "rb") as answers:
        text = answers.read()
    os.waitpid(child, 0)
    return json.loads(text)


def outcome(action: Callable[[], object]) -> str:
    try:
        action()
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "ok"


def confine(trees: dict[str, Path], execute: tuple[int, ...] = ()) -> landlock.Confinement:
    descriptors = {name: [os.open(trees[name], os.O_PATH)] for name in ("read", "write")}
    return landlock.restrict(read=descriptors["read"], write=descriptors["write"], execute=execute)


def touch_everything(trees: dict[str, Path]) -> dict[str, str]:
    return {
        "read in read": outcome(lambda: (trees["read"] / "file").read_text()),
        "list read": outcome(lambda: os.listdir(trees["read"])),
        "write in read": outcome(lambda: (trees["read"] / "file").write_text("x")),
        "make in read": outcome(lambda: (trees["read"] / "new").write_text("x")),
        "write in write": outcome(lambda: (trees["write"] / "file").write_text("x")),
        "make in write": outcome(lambda: (trees["write"] / "inner" / "new").write_text("x")),
        "rename in write": outcome(lambda: os.rename(trees["write"] / "inner" / "new", trees["write"] / "new")),
        "remove in write": outcome(lambda: os.unlink(trees["write"] / "new")),
        "link in write": outcome(lambda: os.symlink("file", trees["write"] / "link")),
        "read in other": outcome(lambda: (trees["other"] / "file").read_text()),
        "list other": outcome(lambda: os.listdir(trees["other"])),
        "write in other": outcome(lambda: (trees["other"] / "new").write_text("x")),
        "run a program": outcome(lambda: os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)),
    }


class TestWithLandlock:
    pytestmark = needs_landlock

    def test_only_the_given_trees_can_be_reached(self, trees: dict[str, Path]) -> None:
        def confined() -> object:
            confine(trees)
            return touch_everything(trees)

        rename = "ok" if SUPPORT.abi >= 2 else "EXDEV"
        assert in_child(confined) == {
            "read in read": "ok",
            "list read": "ok",
            "write in read": "EACCES",
            "make in read": "EACCES",
            "write in write": "ok",
            "make in write": "ok",
            "rename in write": rename,
            "remove in write": "ok" if rename == "ok" else "ENOENT",
            "link in write": "EACCES",
            "read in other": "EACCES",
            "list other": "EACCES",
            "write in other": "EACCES",
            "run a program": "EACCES",
        }

    def test_a_link_out_of_a_given_tree_leads_nowhere(self, trees: dict[str, Path]) -> None:
        (trees["write"] / "link").symlink_to(trees["other"] / "file")

        def confined() -> object:
            confine(trees)
            return [outcome((trees["write"] / "link").read_text), outcome(lambda: os.open("/proc/self/environ", 0))]

        assert in_child(confined) == ["EACCES", "EACCES"]

    def test_a_rule_on_a_single_file_holds_for_that_file(self, trees: dict[str, Path]) -> None:
        def confined() -> object:
            landlock.restrict(read=[os.open(trees["other"] / "file", os.O_PATH)])
            return [outcome((trees["other"] / "file").read_text), outcome((trees["read"] / "file").read_text)]

        assert in_child(confined) == ["ok", "EACCES"]

    def test_programs_run_only_from_trees_given_for_execution(self, trees: dict[str, Path]) -> None:
        def confined() -> object:
            places = [place for place in ("/usr", "/lib64") if os.path.exists(place)]
            confine(trees, execute=tuple(os.open(place, os.O_PATH) for place in places))
            return os.waitpid(os.posix_spawn("/usr/bin/true", ["true"], {}), 0)[1]

        assert in_child(confined) == 0

    @pytest.mark.skipif(SUPPORT.abi < 4, reason=f"Landlock {SUPPORT.abi} does not cover TCP")
    def test_tcp_is_refused(self, trees: dict[str, Path]) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:

            def connect() -> object:
                return outcome(lambda: socket.create_connection(server.getsockname(), 2).close())

            def confined() -> object:
                confine(trees)
                return connect()

            assert in_child(confined) == "EACCES"
            assert in_child(connect) == "ok"

    @pytest.mark.skipif(SUPPORT.abi < 6, reason=f"Landlock {SUPPORT.abi} has no scopes")
    def test_signals_to_processes_outside_are_refused(self, trees: dict[str, Path]) -> None:
        parent = os.getpid()

        def confined() -> object:
            confine(trees)
            return outcome(lambda: os.kill(parent, 0)), outcome(lambda: os.kill(os.getpid(), 0))

        assert in_child(confined) == ["EPERM", "ok"]
        assert in_child(lambda: outcome(lambda: os.kill(parent, 0))) == "ok"

    def test_no_new_privs_comes_with_it_and_what_stays_open_is_said(self, trees: dict[str, Path]) -> None:
        def confined() -> object:
            descriptor = os.open("/proc/self/status", os.O_RDONLY)
            used = confine(trees)
            return [used.abi, list(used.open), "NoNewPrivs:\t1\n" in os.read(descriptor, 8192).decode()]

        answer = in_child(confined)
        assert isinstance(answer, list)
        assert answer[0] == SUPPORT.abi
        assert ("TCP" in answer[1]) == (SUPPORT.abi < 4)
        assert answer[2] is True

    def test_a_newer_version_than_there_is_confines_nothing(self, trees: dict[str, Path]) -> None:
        def confined() -> object:
            refusal = outcome(lambda: landlock.restrict(read=[], at_least=10_000))
            return [refusal, outcome((trees["other"] / "file").read_text)]

        assert in_child(confined) == [errno.errorcode[errno.EOPNOTSUPP], "ok"]

    def test_a_descriptor_that_is_closed_is_an_error(self) -> None:
        assert in_child(lambda: landlock.restrict(read=[999])) == "error: EBADF"


def test_without_landlock_all_of_it_works(trees: dict[str, Path]) -> None:
    assert set(touch_everything(trees).values()) == {"ok"}


def test_the_version_is_what_the_kernel_says_and_its_absence_has_an_errno() -> None:
    assert landlock.abi() == SUPPORT.abi
    assert (SUPPORT.errno is None) == (SUPPORT.abi > 0)
