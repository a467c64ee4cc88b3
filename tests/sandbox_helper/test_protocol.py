"""The helper's parser takes what the adapter makes and refuses everything else, by name."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.linux_sandbox.host import HostFacts
from adapters.linux_sandbox.plan import Abilities, build_plan
from runner.api import WorkspaceTerms
from sandbox_helper import protocol
from sandbox_helper.protocol import CommandEnd, Failure, Once, Plan, ProtocolError, Run

pytestmark = pytest.mark.covers("BOX-3")
HOST = HostFacts(1000, 1000, "host", (("/bin", "usr/bin"),), (), (), ("/etc/ssl",), None)


def plan() -> Plan:
    return build_plan(WorkspaceTerms(workspace_id="w", root="/work/space", protect=(".git/hooks",)), HOST, Abilities())


def value() -> dict[str, Any]:
    made: dict[str, Any] = json.loads(json.dumps(protocol.plan_value(plan())))
    return made


def test_a_plan_comes_back_equal() -> None:
    assert protocol.parse_plan(value()) == plan()


@pytest.mark.parametrize("field", Plan._fields)
def test_a_plan_without_any_one_field_is_refused(field: str) -> None:
    changed = value()
    del changed[field]
    with pytest.raises(ProtocolError, match=f"missing field {field}"):
        protocol.parse_plan(changed)


@pytest.mark.parametrize("field", Plan._fields)
@pytest.mark.parametrize("wrong", [None, 1.5, {"a": 1}, [[[1]]], -1], ids=str)
def test_a_plan_with_a_field_of_another_type_is_refused(field: str, wrong: object) -> None:
    with pytest.raises(ProtocolError, match=r"plan|two mounts"):
        protocol.parse_plan(value() | {field: wrong})


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"approved": True}, "unknown field approved"),
        ({"network": "enabled"}, "plan.listeners"),
        ({"listeners": [{"kind": "proxy", "address": "127.0.0.1", "port": 3128}]}, "plan.listeners"),
        ({"netlink": ["00" * 16]}, "plan.netlink"),
        ({"network": "none"}, "plan.network"),
        ({"namespaces": ["user", "mnt", "pid", "ipc", "uts"]}, "missing namespace net"),
        ({"namespaces": ["user", "mnt", "pid", "net", "ipc", "uts", "time"]}, "plan.namespaces"),
        ({"mounts": []}, "missing mount"),
        ({"workspace": "/work/../etc"}, "plan.workspace"),
        ({"workspace": "/work//space"}, "plan.workspace"),
        ({"workspace": "/other"}, "exactly one workspace"),
        ({"protect": ["../x"]}, "plan.protect"),
        ({"protect": ["/etc"]}, "plan.protect"),
        ({"protect": ["a\0b"]}, "plan.protect"),
        ({"uid": True}, "plan.uid"),
        ({"uid": 2**32}, "plan.uid"),
        ({"home": "/home/agent"}, "plan.home"),
        ({"mode": "plain"}, "plan"),
        ({"env": [["A=B", "c"]]}, "plan.env"),
        ({"env": [["", "c"]]}, "plan.env"),
    ],
    ids=str,
)
def test_a_plan_that_promises_less_or_more_is_refused(change: dict[str, Any], what: str) -> None:
    with pytest.raises(ProtocolError, match=what):
        protocol.parse_plan(value() | change)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"kind": "writable"}, "kind"),
        ({"target": "/"}, "helper's own"),
        ({"target": "/proc/sys"}, "helper's own"),
        ({"target": "/dev/pts"}, "helper's own"),
        ({"target": "/tmp"}, "one target"),
        ({"target": "etc"}, "target"),
        ({"source": ""}, "source"),
        ({"mode": 0o20000}, "mode"),
        ({"extra": 1}, "unknown field extra"),
    ],
    ids=str,
)
def test_a_mount_that_cannot_be_is_refused(change: dict[str, Any], what: str) -> None:
    changed = value()
    place = next(n for n, mount in enumerate(changed["mounts"]) if mount["target"] == "/etc/ssl")
    changed["mounts"][place] |= change
    with pytest.raises(ProtocolError, match=what):
        protocol.parse_plan(changed)


@pytest.mark.parametrize("target", ["/usr", "/tmp", "/dev/shm", "/work/space"])
def test_a_plan_without_a_mount_that_every_sandbox_has_is_refused(target: str) -> None:
    changed = value()
    changed["mounts"] = [mount for mount in changed["mounts"] if mount["target"] != target]
    with pytest.raises(ProtocolError, match=r"missing mount|top of a private"):
        protocol.parse_plan(changed)


@given(
    argv=st.lists(st.binary(max_size=20).map(lambda b: b.replace(b"\0", b"")), min_size=1, max_size=6),
    tty=st.none() | st.tuples(st.integers(1, 1000), st.integers(1, 1000)),
    leaf=st.booleans(),
)
def test_a_request_comes_back_equal(argv: list[bytes], tty: tuple[int, int] | None, leaf: bool) -> None:
    run = Run(7, "plan", (b"program", *argv), tty, "exec", leaf)
    operation, number, fields, raw = protocol.split_request(protocol.run_request(run))
    assert (operation, number) == ("run", 7)
    assert protocol.parse_run(fields, raw) == run


@given(st.lists(st.binary(max_size=20).map(lambda b: b.replace(b"\0", b"")), max_size=6))
def test_what_a_waiting_child_is_told_comes_back_equal(rest: list[bytes]) -> None:
    argv = (b"program", *rest)
    message = protocol.fed_message(argv)
    assert message is not None
    assert int.from_bytes(message[:4], "big") == len(message) - 4
    assert protocol.parse_fed(message[4:]) == argv


def test_a_waiting_child_takes_no_more_than_arrives_at_once() -> None:
    longest = b"x" * (protocol.MAX_FED_BYTES - 1)
    assert protocol.fed_message((longest,)) is not None
    assert protocol.fed_message((longest + b"x",)) is None
    with pytest.raises(ProtocolError, match="NUL"):
        protocol.fed_message((b"a\0b",))


@pytest.mark.parametrize(("payload", "argv"), [("exec", b"true\0"), ("posture", b"")])
def test_a_run_that_waits_is_told_its_command_later_and_is_no_probe(payload: str, argv: bytes) -> None:
    head = {"op": "run", "id": 1, "plan_id": "p", "tty": None, "payload": payload, "leaf": False, "waits": True}
    with pytest.raises(ProtocolError, match=r"run\.waits"):
        protocol.parse_run(head, argv)
    assert protocol.parse_run(head | {"payload": "exec"}, b"") == Run(1, "p", (), None, "exec", waits=True)


@pytest.mark.parametrize(("code", "signal"), [(0, None), (255, None), (None, 9)])
def test_stages_and_the_end_are_told_apart_on_the_status_pipe(code: int | None, signal: int | None) -> None:
    end = protocol.end_record(code, signal, 12)
    stages = b"".join(map(protocol.stage_line, protocol.STAGES))
    assert protocol.split_status(stages + end) == (protocol.STAGES[-1], end)
    assert protocol.split_status(end) == (None, end)
    assert protocol.split_status(b"") == (None, b"")
    assert protocol.parse_command_end(end) == protocol.CommandEnd(code, signal, 12)


@pytest.mark.parametrize("value", [[], [["/a", 1, 2, 3]], [["a", 1, 2, 3, 4]], [["/a", 1, 2, 3, "4"]], {}])
def test_a_standing_that_names_no_whole_place_is_refused(value: object) -> None:
    with pytest.raises(ProtocolError, match="stands_on"):
        protocol.parse_standing(value)
    assert protocol.parse_standing([["/a", 1, 2, 3, 4]]) == (protocol.Standing("/a", (1, 2, 3, 4)),)


@given(st.binary(max_size=200))
def test_bytes_that_are_no_request_are_refused(message: bytes) -> None:
    try:
        operation, _, fields, argv = protocol.split_request(message)
        if operation == "run":
            protocol.parse_run(fields, argv)
        elif operation == "plan":
            protocol.parse_laid_plan(fields)
    except ProtocolError:
        return
    raise AssertionError(f"taken for a request: {message!r}")


@pytest.mark.parametrize("argv", [b"", b"\0", b"no end", b"a\0b"])
def test_a_run_without_a_whole_argv_is_refused(argv: bytes) -> None:
    head = {"op": "run", "id": 1, "plan_id": "p", "tty": None, "payload": "exec", "leaf": False, "waits": False}
    with pytest.raises(ProtocolError, match=r"run\.argv"):
        protocol.parse_run(head, argv)


def test_a_request_beyond_the_bound_is_refused_before_it_is_sent() -> None:
    with pytest.raises(ProtocolError, match="more than"):
        protocol.run_request(Run(1, "p", (b"x" * protocol.MAX_MESSAGE_BYTES,), None, "exec"))
    with pytest.raises(ProtocolError, match="NUL"):
        protocol.run_request(Run(1, "p", (b"a\0b",), None, "exec"))


@given(st.text(), st.text(), st.text())
def test_a_failure_comes_back_equal(errno: str, path: str, message: str) -> None:
    failure = Failure("mounts", errno.replace("\0", ""), path.replace("\0", ""), message.replace("\0", ""))
    line = protocol.encode(protocol.failure_value(failure))
    assert protocol.parse_failure(protocol.parse_object(line, "report")["failed"]) == failure


@pytest.mark.parametrize(
    "line",
    [b"", b"{}", b'{"code":1,"signal":9,"cpu_ms":0}', b'{"code":null,"signal":null,"cpu_ms":0}',
     b'{"code":256,"signal":null,"cpu_ms":0}', b'{"code":0,"signal":null}',
     b'{"code":0,"signal":null,"cpu_ms":0,"x":1}'],
)  # fmt: skip
def test_a_status_that_lies_is_refused(line: bytes) -> None:
    with pytest.raises(ProtocolError):
        protocol.parse_command_end(line)


def test_a_status_is_a_code_or_a_signal() -> None:
    line = protocol.encode({"code": None, "signal": 9, "cpu_ms": 12})
    assert protocol.parse_command_end(line) == CommandEnd(None, 9, 12)


def test_one_command_comes_back_equal() -> None:
    once = Once(plan(), ("a", "ü", "\udcff"), (24, 80))
    assert protocol.parse_once(protocol.once_value(once)) == once
    for wrong in (b"{}", b"[", protocol.once_value(Once(plan(), (), None))):
        with pytest.raises(ProtocolError):
            protocol.parse_once(wrong)
