"""One command without a standing server, for a terminal: reads plan and argv from a descriptor, and ends as it did.

Set-up and containment are the server's own: this process forks one for its single request and stands where the runner
would, as the parent of PID 1 and holder of the pipes. With a terminal it copies between its own streams and the
command's terminal; whoever wants that starts it on a terminal of its own (ptyprocess). Refuses to know workspaces.
Called by the program.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import socket
import struct
import termios
import tty
from typing import NamedTuple

from sandbox_helper import protocol
from sandbox_helper.protocol import SET_UP_FAILED, Failure, Once, ProtocolError, Run
from sandbox_helper.server import serve

_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
_MAX_PLAN_BYTES = 1024 * 1024
_CHUNK = 65536
_STATUS_BYTES = 4096
_SERVING, _REFUSED = b'{"serving"', b'{"refused"'


class _Start(NamedTuple):
    """`helper`: held, since its end ends the command. `report`, `status`: read ends. `control`: write end. `pidfd`: of
    PID 1. `said`: what was read of `status` beyond the stages."""

    helper: socket.socket
    report: socket.socket
    status: int
    control: int
    pidfd: int
    said: bytearray


class _Bridge(NamedTuple):
    """`message`: goes with a pidfd and the listening sockets. An answer that begins with `_SERVING` is a yes."""

    proxy: socket.socket
    message: bytes


class _Refused(Exception):
    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


def run(plan_fd: int, bridge_fds: tuple[int, int] | None) -> int:
    """The exit status: the command's, 128 + n where a signal ended it, or SET_UP_FAILED.

    `bridge_fds`: for an `enabled` network, the proxy's socket and what to send there with the command's listeners.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # Until somebody is there to pass them on to; the helper, and so the command, starts with an empty mask again.
    signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)
    try:
        once = protocol.parse_once(_read_all(plan_fd))
        if once.tty is not None:
            once = once._replace(tty=_outer_size() or once.tty)
        bridge = _Bridge(socket.socket(fileno=bridge_fds[0]), _read_all(bridge_fds[1])) if bridge_fds else None
        start = _start(once)
        master = _read_report(start, bridge)
    except ProtocolError as error:
        return _say(Failure("namespace", "EPROTO", "", str(error)))
    except _Refused as error:
        return _say(error.failure)
    for number in _PASSED_ON:
        signal.signal(number, lambda number, _frame: _pass_on(start.control, number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
    if master is not None:
        _bridge(master, start.pidfd)
    else:
        _until_over(start.pidfd)
    return _end(start)


def _read_all(fd: int) -> bytes:
    parts, total = [], 0
    while part := os.read(fd, _CHUNK):
        parts.append(part)
        total += len(part)
        if total > _MAX_PLAN_BYTES:
            raise ProtocolError("once", f"is more than {_MAX_PLAN_BYTES} bytes")
    os.close(fd)
    return b"".join(parts)


def _start(once: Once) -> _Start:
    """Raises _Refused, ProtocolError."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        try:
            ours.close()
            os._exit(serve(theirs.detach(), once.plan.mode, None, None))
        finally:
            os._exit(1)
    theirs.close()
    hello = _reply(ours)[0]
    if "failed" in hello:
        raise _Refused(protocol.parse_failure(hello["failed"]))
    ours.send(protocol.plan_request(1, "once", once.plan))
    _reply(ours)
    report, report_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    status_read, status_write = os.pipe2(os.O_CLOEXEC)
    control_read, control_write = os.pipe2(os.O_CLOEXEC)
    given = [] if once.tty else [0, 1, 2]
    given += [report_end.fileno(), status_write, control_read]
    argv = tuple(os.fsencode(argument) for argument in once.argv)
    socket.send_fds(ours, [protocol.run_request(Run(2, "once", argv, once.tty, "exec"))], given)
    answer, pidfd = _reply(ours)
    report_end.close()
    os.close(status_write)
    os.close(control_read)
    if "failed" in answer:
        raise _Refused(protocol.parse_failure(answer["failed"]))
    if pidfd is None:
        raise ProtocolError("reply", f"no process: {answer}")
    return _Start(ours, report, status_read, control_write, pidfd, bytearray())


def _reply(connection: socket.socket) -> tuple[dict[str, object], int | None]:
    message, fds, _, _ = socket.recv_fds(connection, protocol.MAX_MESSAGE_BYTES, 1)
    if not message:
        raise ProtocolError("reply", "the helper ended")
    return protocol.parse_object(message, "reply"), fds[0] if fds else None


def _read_report(start: _Start, bridge: _Bridge | None) -> int | None:
    """The terminal's master, if one was made. Raises _Refused where the command never started."""
    master, buffer, report = None, b"", start.report
    waiting: list[int] = []
    while True:
        data, fds, _, _ = socket.recv_fds(report, _CHUNK, protocol.MAX_LISTENERS)
        waiting.extend(fds)
        if not data:
            break
        *lines, buffer = (buffer + data).split(b"\n")
        for line in lines:
            value = protocol.parse_object(line, "report")
            if "failed" in value:
                raise _Refused(protocol.parse_failure(value["failed"]))
            if "listeners" in value:
                taken = bridge is not None and _hand_over(bridge, [start.pidfd, *waiting])
                while waiting:
                    os.close(waiting.pop())
                report.send(protocol.LISTENERS_TAKEN if taken else b"0")
            if "master" in value:
                master = waiting.pop()
    report.close()
    # Not yet written where it is empty: the end of the report comes after every stage.
    os.set_blocking(start.status, False)
    try:
        stage, start.said[:] = protocol.split_status(os.read(start.status, _STATUS_BYTES))
    except BlockingIOError:
        stage = None
    if stage != "exec":
        raise _Refused(Failure(stage or "namespace", "EIO", "", "the set-up was killed"))
    return master


def _hand_over(bridge: _Bridge, fds: list[int]) -> bool:
    """Whether the proxy serves the listeners now."""
    try:
        socket.send_fds(bridge.proxy, [bridge.message], fds)
        answer = b""
        while not answer.startswith((_SERVING, _REFUSED)):
            if not (answer := bridge.proxy.recv(protocol.MAX_MESSAGE_BYTES)):
                return False
        return answer.startswith(_SERVING)
    except OSError:
        return False


def _pass_on(control: int, number: int) -> None:
    try:
        os.write(control, bytes((number, signal.SIGCONT)))
    except OSError:
        pass  # PID 1 is over


def _until_over(pidfd: int) -> None:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    while not poll.poll():
        pass


def _bridge(master: int, pidfd: int) -> None:
    """Copies until PID 1 is over and the terminal is empty. The outer terminal, if it is one, is raw meanwhile."""
    saved = termios.tcgetattr(0) if os.isatty(0) else None
    if saved is not None:
        tty.setraw(0, termios.TCSADRAIN)  # what was typed already is for the command
    previous = signal.signal(signal.SIGWINCH, lambda _number, _frame: _copy_size(master))
    _copy_size(master)
    os.set_blocking(master, False)
    try:
        _copy(master, pidfd)
    finally:
        signal.signal(signal.SIGWINCH, previous)
        if saved is not None:
            termios.tcsetattr(0, termios.TCSAFLUSH, saved)
        os.close(master)


def _outer_size() -> tuple[int, int] | None:
    """Rows and columns of the terminal on standard input, before the command can ask for them."""
    try:
        rows, columns, _, _ = struct.unpack("4H", fcntl.ioctl(0, termios.TIOCGWINSZ, bytes(8)))
    except OSError:
        return None
    return (rows, columns) if rows and columns else None


def _copy_size(master: int) -> None:
    try:
        fcntl.ioctl(master, termios.TIOCSWINSZ, fcntl.ioctl(0, termios.TIOCGWINSZ, bytes(8)))
    except OSError:
        pass  # standard input is no terminal: the size of the request stays


def _copy(master: int, pidfd: int) -> None:
    poll = select.poll()
    for fd in (master, pidfd, 0):
        poll.register(fd, select.POLLIN)
    over = False
    while True:
        ready = {fd for fd, _ in poll.poll(0 if over else None)}
        if 0 in ready and not _copy_in(master):
            poll.unregister(0)
        if master in ready:
            if not _copy_out(master):
                break
        elif over:
            break
        if pidfd in ready:
            over = True
            poll.unregister(pidfd)
    _until_over(pidfd)


def _copy_in(master: int) -> bool:
    """False at the end of the input, which the command sees as its terminal's own end of file."""
    data = os.read(0, _CHUNK)
    try:
        os.write(master, data or b"\x04")
    except OSError:
        pass  # the terminal is full or over; a terminal drops input it cannot hold
    return bool(data)


def _copy_out(master: int) -> bool:
    """False once the terminal has ended: Linux says EIO when its last opener is gone."""
    try:
        data = os.read(master, _CHUNK)
    except BlockingIOError:
        return True
    except OSError:
        return False
    while data:
        data = data[os.write(1, data) :]
    return True


def _end(start: _Start) -> int:
    result = os.waitid(os.P_PIDFD, start.pidfd, os.WEXITED)
    try:
        end = protocol.parse_command_end(bytes(start.said) + _rest(start.status))
    except ProtocolError:
        return 128 + result.si_status if result is not None and result.si_code != os.CLD_EXITED else 1
    return 128 + end.signal if end.signal is not None else end.code or 0


def _rest(status: int) -> bytes:
    try:
        return os.read(status, _STATUS_BYTES)
    except BlockingIOError:
        return b""


def _say(failure: Failure) -> int:
    os.write(2, protocol.encode(protocol.failure_value(failure)))
    return SET_UP_FAILED
