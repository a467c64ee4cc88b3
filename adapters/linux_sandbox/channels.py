"""The descriptors of one start: pipes for input, output, status and control, and the socket for the set-up's report.

Refuses to know the helper's process. Called by the launcher.
"""

from __future__ import annotations

import fcntl
import os
import socket
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from adapters.linux_sandbox.client import readable
from adapters.linux_sandbox.process import Channels
from sandbox_helper.protocol import (
    LISTENERS_TAKEN,
    MAX_LISTENERS,
    STAGES,
    Cover,
    Failure,
    ProtocolError,
    parse_covers,
    parse_failure,
    parse_object,
)

OUTPUT_PIPE_BYTES = 1024 * 1024
MAX_REPORT_BYTES = 64 * 1024
_ANCILLARY_BYTES = socket.CMSG_SPACE(4 * MAX_LISTENERS)

HandOn = Callable[[list[tuple[str, int]]], Awaitable[bool]]
"""Listening sockets as (kind, descriptor), not its own to close; whether somebody serves them now."""


@dataclass
class SetUpReport:
    """What the child said until its report socket closed. `executing`: it was about to exec, and nothing failed after
    that. `failure`: the step that did. `stage`: the last one entered. `covers`: of protected names.
    `descriptors`: those that came and have no place yet."""

    stage: str = "namespace"
    covers: tuple[Cover, ...] = ()
    failure: Failure | None = None
    master: int | None = None
    descriptors: list[int] = field(default_factory=list)

    @property
    def executing(self) -> bool:
        return self.stage == "exec" and self.failure is None


@dataclass
class StartChannels:
    """Both ends of everything: `for_child()` goes with the request and is closed afterwards, the rest is ours."""

    tty: bool
    _ours: dict[str, int] = field(default_factory=dict)
    _theirs: dict[str, int] = field(default_factory=dict)
    report: socket.socket | None = None

    def open(self) -> None:
        """Raises OSError, with nothing left open."""
        try:
            if not self.tty:
                self._theirs["stdin"], self._ours["stdin"] = os.pipe2(os.O_CLOEXEC)
                self._ours["output"], self._theirs["stdout"] = os.pipe2(os.O_CLOEXEC)
                self._theirs["stderr"] = os.dup(self._theirs["stdout"])
                _widen(self._ours["output"])
            self.report, report_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
            self._theirs["report"] = report_end.detach()
            self._ours["status"], self._theirs["status"] = os.pipe2(os.O_CLOEXEC)
            self._theirs["control"], self._ours["control"] = os.pipe2(os.O_CLOEXEC)
            self.report.setblocking(False)
            for fd in self._ours.values():
                os.set_blocking(fd, False)
        except OSError:
            self.close()
            raise

    def for_child(self) -> list[int]:
        return list(self._theirs.values())

    def close_child_ends(self) -> None:
        while self._theirs:
            os.close(self._theirs.popitem()[1])

    async def read_report(self, hand_on: HandOn | None = None) -> SetUpReport:
        """Until the child's end is closed, by exec or by its death. A report that makes no sense is a failure.

        `hand_on`: takes the listening sockets of the command's network; the child waits until it has returned, and
        fails if it says no or is not there.
        """
        assert self.report is not None
        result, buffer, total = SetUpReport(), b"", 0
        try:
            while True:
                data = await self._receive(result)
                if not data:
                    break
                total += len(data)
                if total > MAX_REPORT_BYTES:
                    raise ProtocolError("report", "is too long")
                *lines, buffer = (buffer + data).split(b"\n")
                for line in lines:
                    kinds = _take_line(result, line)
                    if kinds is not None:
                        await self._hand_on(result, kinds, hand_on)
            if buffer:
                raise ProtocolError("report", "ends within a line")
        except ProtocolError as error:
            result.failure = Failure(result.stage, "EPROTO", "", str(error))
        finally:
            _close_all(result.descriptors)
        if result.master is not None:
            os.set_blocking(result.master, False)
            self._ours["output"] = result.master
        return result

    async def _hand_on(self, result: SetUpReport, kinds: list[str], hand_on: HandOn | None) -> None:
        assert self.report is not None
        if len(kinds) != len(result.descriptors):
            raise ProtocolError("report", "other sockets than it names")
        taken = hand_on is not None and await hand_on(list(zip(kinds, result.descriptors, strict=True)))
        _close_all(result.descriptors)
        try:
            self.report.send(LISTENERS_TAKEN if taken else b"0")
        except OSError:
            pass  # the child is dead, as the end of the report will say

    async def _receive(self, result: SetUpReport) -> bytes:
        assert self.report is not None
        while True:
            try:
                data, ancillary, _, _ = self.report.recvmsg(4096, _ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC)
            except BlockingIOError:
                await readable(self.report.fileno())
                continue
            except ConnectionResetError:
                return b""
            for level, kind, content in ancillary:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    result.descriptors.extend(
                        int.from_bytes(content[at : at + 4], sys.byteorder) for at in range(0, len(content) - 3, 4)
                    )
            return data

    def drain_output(self) -> bytes:
        """What a finished child wrote, up to the width of its pipe. Raises OSError."""
        parts = []
        while part := os.read(self._ours["output"], MAX_REPORT_BYTES):
            parts.append(part)
        return b"".join(parts)

    def stop(self) -> None:
        """PID 1 takes the end of the control pipe for the end of the runner, and ends."""
        fd = self._ours.pop("control", None)
        if fd is not None:
            os.close(fd)

    def take(self) -> Channels:
        """The runner's descriptors, now the receiver's to close."""
        assert self.report is not None
        self.report.close()
        ours, self._ours = self._ours, {}
        output = ours["output"]
        return Channels(ours["status"], ours["control"], output, output if self.tty else ours["stdin"], self.tty)

    def close(self) -> None:
        """Everything not taken. Idempotent."""
        self.close_child_ends()
        while self._ours:
            os.close(self._ours.popitem()[1])
        if self.report is not None:
            self.report.close()


def _take_line(result: SetUpReport, line: bytes) -> list[str] | None:
    """The kinds of the listeners, if that is what the line says. Raises ProtocolError."""
    value = parse_object(line, "report")
    if value.keys() == {"listeners"} and isinstance(value["listeners"], list):
        return [str(kind) for kind in value["listeners"]]
    if value.keys() == {"stage"} and value["stage"] in STAGES:
        result.stage = value["stage"]
    elif value.keys() == {"covers"}:
        result.covers = parse_covers(value["covers"])
    elif value.keys() == {"failed"}:
        result.failure = parse_failure(value["failed"])
    elif value.keys() == {"master"} and result.master is None and len(result.descriptors) == 1:
        result.master = result.descriptors.pop()
    else:
        raise ProtocolError("report", "is not of this protocol")
    return None


def _close_all(fds: list[int]) -> None:
    while fds:
        os.close(fds.pop())


def _widen(fd: int) -> None:
    """A wide pipe saves wake-ups; an ordinary user may be over the machine's budget for them, and needs none."""
    try:
        fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, OUTPUT_PIPE_BYTES)
    except PermissionError:
        pass
