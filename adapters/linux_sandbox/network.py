"""What an `enabled` network adds to a plan: listeners for the proxy, addresses that stand for names, variables.

A program that knows no proxy looks a name up, gets an address that stands for it, and connects to a listener on the
port that it means; there is one for each port of the allow list, since on any other nothing can be allowed. Listed
IPv4 addresses are local too, and so reach the same listeners. Pure. Refuses to know the proxy's process. Called by the
plan and the launcher.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from adapters.egress_proxy.policy import BadRule, Policy, parse_policy
from runner.api import Protection, WorkspaceTerms
from runner.ports import LaunchFailed
from sandbox_helper.protocol import MAX_NETLINK_MESSAGES, Listener, Plan

PROXY_PORT = 3128
PROXY_PLACE = f"127.0.0.1:{PROXY_PORT}"
NAMES_PORT = 53
MAX_PORTS = 128
STAND_IN_INTERFACE = ipaddress.IPv4Interface("198.18.0.1/15")
"""Its network is where the proxy takes the addresses from that stand for names."""
_LOOPBACK = ipaddress.IPv4Network("127.0.0.0/8")


class NetworkProxy(Protocol):
    """The managed proxy as the launcher needs it. Raises LaunchFailed where there is none."""

    async def serve(
        self, terms: WorkspaceTerms, process_id: str, pidfd: int, listeners: Sequence[tuple[str, int]]
    ) -> None: ...
    async def close(self) -> None: ...


class HandOver:
    """The step of one start at which its listeners go to the proxy. `failure`: why they did not."""

    def __init__(self, proxy: NetworkProxy | None, terms: WorkspaceTerms, process_id: str, pidfd: int) -> None:
        self._proxy, self._terms, self._process_id, self._pidfd = proxy, terms, process_id, pidfd
        self.failure: LaunchFailed | None = None

    async def __call__(self, listeners: Sequence[tuple[str, int]]) -> bool:
        if self._proxy is None:
            return False
        try:
            await self._proxy.serve(self._terms, self._process_id, self._pidfd, listeners)
        except LaunchFailed as error:
            self.failure = error
        return self.failure is None


@dataclass(frozen=True)
class NetworkParts:
    """Of one plan. `untransparent`: why programs that know no proxy are not served, None where they are."""

    listeners: tuple[Listener, ...] = ()
    netlink: tuple[str, ...] = ()
    resolv_conf: str = ""
    env: tuple[tuple[str, str], ...] = ()
    untransparent: str | None = None


RESTRICTED = NetworkParts()


def network_parts(terms: WorkspaceTerms, *, transparent: bool) -> NetworkParts:
    """`transparent`: whether the kernel was seen to take what that needs. Loads pyroute2 if so.

    Raises BadRule for lists that the registry should not have taken.
    """
    if terms.network == "restricted":
        return RESTRICTED
    policy = parse_policy(terms.network_allow, terms.network_deny)
    proxy = Listener("proxy", "127.0.0.1", PROXY_PORT)
    env = _variables()
    why = _untransparent(policy) if transparent else "the kernel refuses the addresses that stand for names"
    if why is not None:
        return NetworkParts((proxy,), env=env, untransparent=why)
    from adapters.linux_sandbox.netlink import local_addresses

    return NetworkParts(
        listeners=(
            proxy,
            Listener("names_udp", "127.0.0.1", NAMES_PORT),
            Listener("names_tcp", "127.0.0.1", NAMES_PORT),
            *(Listener("transparent", "0.0.0.0", port) for port in policy.ports()),
        ),
        netlink=local_addresses(STAND_IN_INTERFACE, _blocks(policy)),
        resolv_conf="nameserver 127.0.0.1\noptions timeout:5 attempts:2\n",
        env=env,
    )


def _untransparent(policy: Policy) -> str | None:
    ports = policy.ports()
    taken = {PROXY_PORT, NAMES_PORT} & set(ports)
    if taken:
        return f"port {min(taken)} of the allow list is taken inside"
    if len(ports) > MAX_PORTS:
        return f"the allow list has more than {MAX_PORTS} different ports"
    if len(_blocks(policy)) >= MAX_NETLINK_MESSAGES:
        return f"the allow list has more than {MAX_NETLINK_MESSAGES} addresses and blocks"
    return None


def _blocks(policy: Policy) -> tuple[ipaddress.IPv4Network, ...]:
    """Loopback is the command's own, and never stands for the machine's."""
    return tuple(
        block
        for block in policy.listed_networks()
        if isinstance(block, ipaddress.IPv4Network)
        and not block.subnet_of(_LOOPBACK)
        and not block.subnet_of(STAND_IN_INTERFACE.network)
    )


def _variables() -> tuple[tuple[str, str], ...]:
    """Both spellings: curl ignores HTTP_PROXY, others know only that."""
    url, around = f"http://{PROXY_PLACE}", "localhost,127.0.0.1,::1"
    upper = {"HTTP_PROXY": url, "HTTPS_PROXY": url, "ALL_PROXY": url, "NO_PROXY": around}
    return tuple((name, value) for key, value in upper.items() for name in (key, key.lower()))


def network_protections(plan: Plan, terms: WorkspaceTerms, *, transparent: bool) -> tuple[Protection, ...]:
    """Of a plan that a sandbox was made of, which starts only once its listeners are served."""
    if plan.network != "enabled":
        return ()
    why = network_parts(terms, transparent=transparent).untransparent
    return (
        Protection(name="managed_proxy", state="active", required=True),
        Protection(
            name="network_transparent",
            state="active" if why is None else "degraded",
            required=False,
            detail=None if why is None else f"{why}; only programs that use the proxy variables reach the allow list",
            remedy=None if why is None else _REMEDY,
        ),
    )


_REMEDY = "Use a kernel with IPv4 on its loopback interface, or shorten network_allow."

__all__ = [
    "PROXY_PLACE",
    "RESTRICTED",
    "BadRule",
    "HandOver",
    "NetworkParts",
    "NetworkProxy",
    "network_parts",
    "network_protections",
]
