"""The one way from a command to a server: judge, resolve once, judge every address, connect by address.

Every protocol of the proxy opens its connections here, so that none can forget a step. Writes one record for each
decision. Refuses to know protocols. One object a command.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace

from adapters.egress_proxy.budget import Budget
from adapters.egress_proxy.hosts import Address, Host
from adapters.egress_proxy.journal import Journal, Record
from adapters.egress_proxy.policy import Policy
from adapters.egress_proxy.resolver import NotResolved, Resolver
from adapters.egress_proxy.share import Share

CONNECT_TIMEOUT_S = 10.0
MAX_TRIED = 4
BUFFER_BYTES = 32 * 1024

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Refused(Exception):
    """The lists do not allow it; the text says why, for the command's author."""


class Unreachable(Exception):
    """Allowed, but there is no connection. `refused`: the server itself said no."""

    def __init__(self, message: str, *, refused: bool = False) -> None:
        super().__init__(message)
        self.refused = refused


@dataclass(frozen=True)
class Gate:
    """`workspace_id`, `process_id`: whose traffic it is, for the journal. `share`: the workspace's."""

    workspace_id: str
    process_id: str
    policy: Policy
    resolver: Resolver
    journal: Journal
    share: Share
    budget: Budget

    async def turn(self) -> None:
        """Waits until this command may ask for another decision."""
        wait_s = self.budget.take(asyncio.get_running_loop().time())
        if wait_s:
            await asyncio.sleep(wait_s)

    def turn_now(self) -> bool:
        """Whether it may at once."""
        return self.budget.try_take(asyncio.get_running_loop().time())

    def note(self, record: Record) -> None:
        self.journal.write(self.workspace_id, self.process_id, record)

    def refuse(self, via: str, host: str, port: int | None, reason: str) -> None:
        """A refusal that no rule decided: something malformed, or too much of it."""
        self.note(Record(via, host, port, False, reason))

    async def open(self, via: str, host: Host, port: int) -> Streams:
        """A connection to the destination. Raises Refused, Unreachable."""
        decision = self.policy.destination(host, port)
        record = Record(via, str(host), port, decision.allowed, decision.reason, decision.rule)
        addresses: Sequence[Address] = ()
        try:
            if decision.allowed and isinstance(host, str):
                addresses = await self.resolver.addresses(host, port, self.share)
                decision = self.policy.addresses(addresses, port, decision)
                shown = ", ".join(str(address) for address in addresses[:MAX_TRIED])
                record = replace(record, allowed=decision.allowed, reason=decision.reason, rule=decision.rule,
                                 address=shown)  # fmt: skip
            elif not isinstance(host, str):
                addresses = (host,)
        except NotResolved as error:
            self.note(record)
            raise Unreachable(str(error)) from None
        self.note(record)
        if not decision.allowed:
            raise Refused(decision.reason)
        return await _connect(addresses, port)


async def _connect(addresses: Sequence[Address], port: int) -> Streams:
    """To the first address that answers, by number: nothing is resolved any more. Raises Unreachable."""
    failure = Unreachable("there is no address")
    for address in addresses[:MAX_TRIED]:
        family = socket.AF_INET if address.version == 4 else socket.AF_INET6
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                return await asyncio.open_connection(
                    str(address), port, family=family, flags=socket.AI_NUMERICHOST, limit=BUFFER_BYTES
                )
        except TimeoutError:
            failure = Unreachable(f"{address}: no answer in {CONNECT_TIMEOUT_S:.0f} s")
        except OSError as error:
            refused = isinstance(error, ConnectionRefusedError)
            failure = Unreachable(f"{address}: {error.strerror or error}", refused=refused)
    raise failure
