"""The descriptors of one start: pipes for input, output, status and control, and the socket for the set-up's report.

Refuses to know the helper's process. Called by the launcher.
"""

from __future__ import annotations

import fcntl
import os
import socket
import sys
from dataclasses import dataclass, field

from adapters.linux_sandbox.client import readable
from adapters.linux_sandbox.process import Channels
from sandbox_helper.protocol import STAGES, Cover, Failure, ProtocolError, parse_covers, parse_failure, parse_object

OUTPUT_PIPE_BYTES = 1024 * 1024
MAX_REPORT_BYTES = 64 * 1024


@dataclass
class SetUpReport:
    """What the child said until its report socket closed. `executing`: it was about to exec, and nothing failed after
    that. `failure`: the step that did. `stage`: the last one entered. `covers`: of protected names."""

    stage: str = "namespace"
    covers: tuple[Cover, ...] = ()
    failure: Failure | None = None
    master: int | None = None

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

    async def read_report(self) -> SetUpReport:
        """Until the child's end is closed, by exec or by its death. A report that makes no sense is a failure."""
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
                    _take_line(result, line)
            if buffer:
                raise ProtocolError("report", "ends within a line")
        except ProtocolError as error:
            result.failure = Failure(result.stage, "EPROTO", "", str(error))
        if result.master is not None:
            os.set_blocking(result.master, False)
            self._ours["output"] = result.master
        return result

    async def _receive(self, result: SetUpReport) -> bytes:
        assert self.report is not None
        while True:
            try:
                data, ancillary, _, _ = self.report.recvmsg(4096, socket.CMSG_SPACE(4), socket.MSG_CMSG_CLOEXEC)
            except BlockingIOError:
                await readable(self.report.fileno())
                continue
            except ConnectionResetError:
                return b""
            for level, kind, content in ancillary:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    fd = int.from_bytes(content[:4], sys.byteorder)
                    if result.master is not None:
                        os.close(fd)
                        raise ProtocolError("report", "two terminals")
                    result.master = fd
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


def _take_line(result: SetUpReport, line: bytes) -> None:
    value = parse_object(line, "report")
    if value.keys() == {"stage"} and value["stage"] in STAGES:
        result.stage = value["stage"]
    elif value.keys() == {"covers"}:
        result.covers = parse_covers(value["covers"])
    elif value.keys() == {"failed"}:
        result.failure = parse_failure(value["failed"])
    elif value.keys() != {"master"} or result.master is None:
        raise ProtocolError("report", "is not of this protocol")


def _widen(fd: int) -> None:
    """A wide pipe saves wake-ups; an ordinary user may be over the machine's budget for them, and needs none."""
    try:
        fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, OUTPUT_PIPE_BYTES)
    except PermissionError:
        pass
