"""The network of every sandboxed command: nothing but loopback, which only has to be switched on.

What an `enabled` one has beside it is the bridge's. Refuses to know proxies. Called by the child, inside its own
network namespace.
"""

from __future__ import annotations

import fcntl
import socket
import struct

_SIOCSIFFLAGS = 0x8914
_IFF_UP = 0x1
_IFREQ_LO_UP = struct.pack("16sh22x", b"lo", _IFF_UP)


def raise_loopback() -> None:
    """127.0.0.1 and ::1 appear by themselves. Raises OSError. Source: netdevice(7)."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        fcntl.ioctl(probe.fileno(), _SIOCSIFFLAGS, _IFREQ_LO_UP)
