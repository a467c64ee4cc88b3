"""Attacks on the network: listeners of the machine by every kind of address, other interfaces, odd protocols."""

from __future__ import annotations

import socket

from .base import Outcome, Place, found_any, probe, tried

_NETLINK_KOBJECT_UEVENT = 15
_WAIT_S = 5


def _connect(family: socket.AddressFamily, address: tuple[str, int] | str) -> None:
    with socket.socket(family, socket.SOCK_STREAM) as client:
        client.settimeout(_WAIT_S)
        client.connect(address)


@probe("network", "reach-loopback-of-the-machine")
def _loopback(place: Place) -> Outcome:
    return tried(_connect, socket.AF_INET, ("127.0.0.1", place.bait["port"]))


@probe("network", "reach-an-abstract-socket-of-the-machine")
def _abstract(place: Place) -> Outcome:
    return tried(_connect, socket.AF_UNIX, "\0" + place.bait["word"])


@probe("network", "reach-a-socket-outside-the-workspace")
def _path(place: Place) -> Outcome:
    return tried(_connect, socket.AF_UNIX, place.bait["socket"])


@probe("network", "see-another-interface")
def _interfaces(place: Place) -> Outcome:
    found = [name for _, name in socket.if_nameindex() if name != "lo"]
    if place.control and not found:
        return Outcome("untried", None, "this machine has only the loopback interface")
    return found_any(found)


@probe("network", "find-a-way-out")
def _route(place: Place) -> Outcome:
    """A datagram socket that is connected sends nothing: it only looks up the route."""
    for family, address in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        with socket.socket(family, socket.SOCK_DGRAM) as client:
            outcome = tried(client.connect, (address, 9))
        if outcome.state == "open":
            return Outcome("open", None, address)
    if place.control:
        return Outcome("untried", outcome.errno, "this machine has no route out")
    return outcome


@probe("network", "listen-to-the-kernel-by-netlink")
def _netlink(place: Place) -> Outcome:
    return tried(lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_KOBJECT_UEVENT).close())
