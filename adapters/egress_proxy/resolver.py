"""From a name to its addresses, once for each connection. Refuses to know rules and to keep answers.

The machine's own resolver runs in threads, since it blocks and nothing can end it; they are shared out by turns. A
fixed one serves tests, whose names are nobody's.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

from adapters.egress_proxy.hosts import Address, plain
from adapters.egress_proxy.share import Share
from adapters.egress_proxy.turns import Turns

RESOLVE_TIMEOUT_S = 15.0
MAX_THREADS = 256
"""Of all workspaces together, each started when it is first needed: the spare ones and one each for 232 workspaces."""
STACK_BYTES = 1024 * 1024
"""Of each; the C library's default would be 2 GiB for all of them."""


class NotResolved(Exception):
    """The name has no address, or nobody said in time."""


class Resolver(Protocol):
    async def addresses(self, name: str, port: int, share: Share) -> tuple[Address, ...]:
        """In the order in which they should be tried. Raises NotResolved."""
        ...


class SystemResolver:
    """getaddrinfo(3), with whatever /etc/nsswitch.conf says."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(MAX_THREADS, "resolver")
        self._turns = Turns()

    async def addresses(self, name: str, port: int, share: Share) -> tuple[Address, ...]:
        late = "the workspace has too many names under resolution"
        try:
            async with asyncio.timeout(RESOLVE_TIMEOUT_S):
                await self._turns.take(share)
                late = "no name server answered in time"
                found = await asyncio.wrap_future(self._look_up(name, port, share))
        except TimeoutError:
            raise NotResolved(late) from None
        except (OSError, UnicodeError) as error:
            raise NotResolved(f"the name has no address: {error}") from None
        return tuple(dict.fromkeys(plain(ipaddress.ip_address(entry[4][0])) for entry in found))

    def _look_up(self, name: str, port: int, share: Share) -> Future[list[Any]]:
        """Gives the share's turn back once the thread is: whoever waits may give up, getaddrinfo cannot."""
        loop = asyncio.get_running_loop()

        def back(_: object) -> None:
            try:
                loop.call_soon_threadsafe(self._turns.give_back, share)
            except RuntimeError:
                pass  # the loop is closed, so nobody waits for a turn

        try:
            looking = self._threads.submit(socket.getaddrinfo, name, port, type=socket.SOCK_STREAM)
        except BaseException:
            self._turns.give_back(share)
            raise
        looking.add_done_callback(back)
        return looking


class FixedResolver:
    """Knows these names and no others."""

    def __init__(self, names: Mapping[str, tuple[str, ...]]) -> None:
        """Raises ValueError for an address that is none."""
        self._names = {name: tuple(plain(ipaddress.ip_address(a)) for a in found) for name, found in names.items()}

    async def addresses(self, name: str, port: int, share: Share) -> tuple[Address, ...]:
        if name not in self._names:
            raise NotResolved("the name has no address")
        return self._names[name]
