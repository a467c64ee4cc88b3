"""The way out of an `enabled` network: sockets that listen inside, and are served by the runner's proxy outside.

The namespace stays as empty as a restricted one. Its listening sockets are made here, by the child, and their
descriptors go to the runner over the report socket; a connection that the command makes is accepted by another process,
so nothing of ours runs beside the command. Addresses that stand for names become local by requests to rtnetlink(7),
which came ready-made with the plan. The command starts only after somebody serves the sockets. Refuses to know what is
served. Called by the child, with its capabilities over its own network still there.
"""

from __future__ import annotations

import errno
import os
import socket
import struct

from sandbox_helper.protocol import LISTENERS_TAKEN, Listener, Plan, encode

BACKLOG = 128
_NETLINK_ROUTE = 0
_NLMSG_ERROR = 2
_ACK_BYTES = 8192


def open_and_hand_over(plan: Plan, report_fd: int) -> None:
    """Returns once the listeners are served. Raises OSError: at `transparent` where the kernel refuses an address, at
    `ADDRESS:PORT` where a socket cannot listen, at `proxy` where nobody took them."""
    _configure(plan.netlink)
    listeners: list[socket.socket] = []
    report = socket.socket(fileno=report_fd)
    try:
        for listener in plan.listeners:
            listeners.append(_listen(listener))
        kinds = [listener.kind for listener in plan.listeners]
        socket.send_fds(report, [encode({"listeners": kinds})], [made.fileno() for made in listeners])
        if report.recv(1) != LISTENERS_TAKEN:
            raise OSError(errno.ENETDOWN, "the egress proxy did not take the command's network", "proxy")
    finally:
        report.detach()
        for made in listeners:
            made.close()


def _listen(listener: Listener) -> socket.socket:
    datagram = listener.kind == "names_udp"
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM if datagram else socket.SOCK_STREAM)
    try:
        made.bind((listener.address, listener.port))
        if not datagram:
            made.listen(BACKLOG)
    except OSError as error:
        made.close()
        raise OSError(error.errno, error.strerror, f"{listener.address}:{listener.port}") from error
    return made


def _configure(messages: tuple[str, ...]) -> None:
    """Each is sent by itself and acknowledged: an answer of zero, or the kernel's errno. Source: netlink(7)."""
    if not messages:
        return
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_ROUTE) as route:
            route.bind((0, 0))
            for message in messages:
                route.sendto(bytes.fromhex(message), (0, 0))
                _acknowledged(route.recv(_ACK_BYTES))
    except OSError as error:
        raise OSError(error.errno, error.strerror, "transparent") from error


def _acknowledged(answer: bytes) -> None:
    """Raises OSError for anything but an acknowledgement."""
    if len(answer) < 20:
        raise OSError(errno.EPROTO, "the kernel's answer is cut off")
    (kind,) = struct.unpack_from("=H", answer, 4)
    (code,) = struct.unpack_from("=i", answer, 16)
    if kind != _NLMSG_ERROR:
        raise OSError(errno.EPROTO, "the kernel's answer is no acknowledgement")
    if code:
        raise OSError(-code, os.strerror(-code))
