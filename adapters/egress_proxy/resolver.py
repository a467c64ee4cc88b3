"""From a name to its addresses, once for each connection. Refuses to know rules and to keep answers.

The machine's own resolver runs in threads, since it blocks; how many one command may have under way at once is bounded
by the caller. A fixed one serves tests, whose names are nobody's.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Mapping
from typing import Protocol

from adapters.egress_proxy.hosts import Address, plain

RESOLVE_TIMEOUT_S = 15.0


class NotResolved(Exception):
    """The name has no address, or nobody said in time."""


class Resolver(Protocol):
    async def addresses(self, name: str, port: int) -> tuple[Address, ...]:
        """In the order in which they should be tried. Raises NotResolved."""
        ...


class SystemResolver:
    """getaddrinfo(3), with whatever /etc/nsswitch.conf says."""

    async def addresses(self, name: str, port: int) -> tuple[Address, ...]:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(RESOLVE_TIMEOUT_S):
                found = await loop.getaddrinfo(name, port, type=socket.SOCK_STREAM)
        except TimeoutError:
            raise NotResolved("no name server answered in time") from None
        except (OSError, UnicodeError) as error:
            raise NotResolved(f"the name has no address: {error}") from None
        return tuple(dict.fromkeys(plain(ipaddress.ip_address(entry[4][0])) for entry in found))


class FixedResolver:
    """Knows these names and no others."""

    def __init__(self, names: Mapping[str, tuple[str, ...]]) -> None:
        """Raises ValueError for an address that is none."""
        self._names = {name: tuple(plain(ipaddress.ip_address(a)) for a in found) for name, found in names.items()}

    async def addresses(self, name: str, port: int) -> tuple[Address, ...]:
        if name not in self._names:
            raise NotResolved("the name has no address")
        return self._names[name]
