"""The descriptors of one start: pipes for input, output, status and control, and the socket for the set-up's report.

Refuses to know the helper's process. Called by the launcher.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import sys
import termios
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
    split_status,
)

OUTPUT_PIPE_BYTES = 1024 * 1024
MAX_REPORT_BYTES = 64 * 1024
STATUS_BYTES = 4096
_ANCILLARY_BYTES = socket.CMSG_SPACE(4 * MAX_LISTENERS)

HandOn = Callable[[list[tuple[str, int]]], Awaitable[bool]]
"""Listening sockets as (kind, descriptor), not its own to close; whether somebody serves them now."""


@dataclass
class SetUpReport:
    """What the child said until its report socket closed. `executing`: it was about to exec, and nothing failed after
    that. `failure`: the step that did. `stage`: the last one entered, known at the end. `covers`: of protected names.
    `waiting`: it is ready and waits for its command; `mounts` is its mount namespace then. `stale`: why it did not take
    it. `descriptors`: those that came and have no place yet."""

    stage: str = "namespace"
    covers: tuple[Cover, ...] = ()
    failure: Failure | None = None
    master: int | None = None
    waiting: bool = False
    mounts: int | None = None
    stale: str | None = None
    descriptors: list[int] = field(default_factory=list)

    @property
    def executing(self) -> bool:
        return self.stage == "exec" and self.failure is None


@dataclass
class StartChannels:
    """Both ends of everything: `for_child()` goes with the request and is closed afterwards, the rest is ours.
    `narrow`: the output's pipe gets its width later, by `widen`."""

    tty: bool
    narrow: bool = False
    _ours: dict[str, int] = field(default_factory=dict)
    _theirs: dict[str, int] = field(default_factory=dict)
    report: socket.socket | None = None
    _said: SetUpReport = field(default_factory=SetUpReport)
    _line: bytes = b""
    _total: int = 0
    _status_said: bytes = b""

    def open(self) -> None:
        """Raises OSError, with nothing left open."""
        try:
            if not self.tty:
                self._theirs["stdin"], self._ours["stdin"] = os.pipe2(os.O_CLOEXEC)
                self._ours["output"], self._theirs["stdout"] = os.pipe2(os.O_CLOEXEC)
                self._theirs["stderr"] = os.dup(self._theirs["stdout"])
                if not self.narrow:
                    self.widen()
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

    def widen(self) -> None:
        """A wide pipe saves wake-ups; an ordinary user may be over the machine's budget for them, and needs none."""
        try:
            fcntl.fcntl(self._ours["output"], fcntl.F_SETPIPE_SZ, OUTPUT_PIPE_BYTES)
        except PermissionError:
            pass

    def set_size(self, rows: int, columns: int) -> None:
        """Of the terminal, once it has come. Raises OSError."""
        fcntl.ioctl(self._ours["output"], termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))

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
        result = self._said
        try:
            while await self._read_on(hand_on):
                pass
            if self._line:
                raise ProtocolError("report", "ends within a line")
        except ProtocolError as error:
            result.failure = Failure(result.stage, "EPROTO", "", str(error))
        finally:
            _close_all(result.descriptors)
        self._take_stages()
        return result

    async def until_waiting(self, hand_on: HandOn | None = None) -> SetUpReport:
        """Of a run that waits: until it does, or its report ends; then `waiting` is false, and `failure` may say why.

        The same report is read on by `read_report` once the child was fed.
        """
        try:
            while not self._said.waiting and await self._read_on(hand_on):
                pass
        except ProtocolError as error:
            self._said.failure = Failure(self._said.stage, "EPROTO", "", str(error))
        if not self._said.waiting:
            _close_all(self._said.descriptors)
            self._take_stages()
        return self._said

    def feed(self, message: bytes) -> bool:
        """Gives a waiting child its command. False where it did not arrive as a whole, and so never will."""
        assert self.report is not None
        try:
            return self.report.send(message) == len(message)
        except OSError:
            return False

    async def _read_on(self, hand_on: HandOn | None) -> bool:
        """False at the end. Raises ProtocolError."""
        data = await self._receive(self._said)
        self._total += len(data)
        if self._total > MAX_REPORT_BYTES:
            raise ProtocolError("report", "is too long")
        *lines, self._line = (self._line + data).split(b"\n")
        for line in lines:
            kinds = _take_line(self._said, line)
            if kinds is not None:
                await self._hand_on(self._said, kinds, hand_on)
            if self._said.master is not None and self._ours.get("output") != self._said.master:
                os.set_blocking(self._said.master, False)
                self._ours["output"] = self._said.master
        return bool(data)

    def _take_stages(self) -> None:
        """Once the report has ended every stage is in the pipe; the command's end may be there too."""
        try:
            data = os.read(self._ours["status"], STATUS_BYTES)
        except BlockingIOError:
            return
        stage, rest = split_status(data)
        self._status_said += rest
        if stage in STAGES:
            self._said.stage = stage

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
        stdin = output if self.tty else ours["stdin"]
        return Channels(ours["status"], ours["control"], output, stdin, self.tty, self._status_said)

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
    if value == {"waiting": True} and len(result.descriptors) == 1:
        result.waiting, result.mounts = True, result.descriptors.pop()
    elif value.keys() == {"stale"} and isinstance(value["stale"], str):
        result.stale = value["stale"]
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
