"""The allow and deny lists of one workspace, and what they say of a destination (NET-4).

Deny wins; an empty allow list allows nothing; a rule without a port means 80 and 443. A name is judged before it is
resolved, so that nothing is asked of a name server for a name that is not allowed; then every address that it has is
judged again. Addresses of special ranges need a rule that lists them as an address or a block: an allowed name is not
enough. Pure. Refuses to know sockets and resolvers. The lists are the operator's, checked by the registry already; what
does not parse here is an error all the same.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from adapters.egress_proxy.hosts import Address, Host, embedded, plain

DEFAULT_PORTS = (80, 443)

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

SPECIAL_RANGES: tuple[tuple[Network, str], ...] = tuple(
    (ipaddress.ip_network(block), name)
    for block, name in (
        ("0.0.0.0/8", "this network"),
        ("10.0.0.0/8", "private"),
        ("100.64.0.0/10", "carrier-grade NAT"),
        ("127.0.0.0/8", "loopback"),
        ("169.254.0.0/16", "link-local and metadata"),
        ("172.16.0.0/12", "private"),
        ("192.0.0.0/24", "protocol assignments"),
        ("192.0.2.0/24", "documentation"),
        ("192.31.196.0/24", "AS112"),
        ("192.52.193.0/24", "AMT"),
        ("192.88.99.0/24", "6to4 relay"),
        ("192.168.0.0/16", "private"),
        ("192.175.48.0/24", "AS112"),
        ("198.18.0.0/15", "benchmarking"),
        ("198.51.100.0/24", "documentation"),
        ("203.0.113.0/24", "documentation"),
        ("224.0.0.0/4", "multicast"),
        ("240.0.0.0/4", "reserved"),
        # A metadata service of one large cloud at an otherwise public address.
        ("168.63.129.16/32", "metadata"),
        ("::/96", "unspecified, loopback and IPv4-compatible"),
        ("64:ff9b:1::/48", "local NAT64"),
        ("100::/64", "discard"),
        ("2001::/23", "protocol assignments, Teredo among them"),
        ("2001:db8::/32", "documentation"),
        ("2002::/16", "6to4"),
        ("3fff::/20", "documentation"),
        ("5f00::/16", "segment routing"),
        ("fc00::/7", "unique local"),
        ("fe80::/10", "link-local"),
        ("fec0::/10", "site-local"),
        ("ff00::/8", "multicast"),
    )
)
"""Sources: the IANA special-purpose registries of IPv4 and IPv6, RFC 6890."""


class BadRule(ValueError):
    """A destination of the lists that is of no known form."""

    def __init__(self, text: str) -> None:
        super().__init__(f"{text!r} is no host, *.domain, address or block, with or without :port")


@dataclass(frozen=True)
class Rule:
    """Exactly one of `name` (lower case) and `network`. `subdomains`: those of the name, without itself."""

    text: str
    ports: tuple[int, ...]
    name: str | None = None
    subdomains: bool = False
    network: Network | None = None

    def covers_name(self, name: str) -> bool:
        if self.name is None:
            return False
        return name.endswith(f".{self.name}") if self.subdomains else name == self.name

    def covers_address(self, address: Address) -> bool:
        return self.network is not None and address in self.network


@dataclass(frozen=True)
class Decision:
    """`rule`: the text of the one that decided, if one did. `reason`: for a person, without the destination."""

    allowed: bool
    reason: str
    rule: str | None = None


@dataclass(frozen=True)
class Policy:
    """Both lists of one workspace."""

    allow: tuple[Rule, ...]
    deny: tuple[Rule, ...]

    def destination(self, host: Host, port: int) -> Decision:
        """Before anything is resolved. An allowed name is still to be judged by its addresses; an address is done."""
        if not isinstance(host, str):
            return self.address(host, port, named=None)
        denied = _first(rule for rule in self.deny if port in rule.ports and rule.covers_name(host))
        if denied:
            return Decision(False, "the deny list has it", denied.text)
        allowed = _first(rule for rule in self.allow if port in rule.ports and rule.covers_name(host))
        if allowed:
            return Decision(True, "the allow list has it", allowed.text)
        return Decision(False, _not_allowed(self.allow))

    def address(self, address: Address, port: int, *, named: Decision | None) -> Decision:
        """`named`: the decision for the name that has this address, None for an address that a client asked for."""
        decision = self._one_address(plain(address), port, named)
        inner = embedded(address)
        if inner is None or not decision.allowed:
            return decision
        # A rule for the outer address allows what the gateway makes of it, unless that is special or denied itself.
        return self._one_address(inner, port, decision)

    def _one_address(self, address: Address, port: int, named: Decision | None) -> Decision:
        denied = _first(rule for rule in self.deny if port in rule.ports and rule.covers_address(address))
        if denied:
            return Decision(False, f"the deny list has the address {address}", denied.text)
        listed = _first(rule for rule in self.allow if port in rule.ports and rule.covers_address(address))
        if listed:
            return Decision(True, "the allow list has its address", listed.text)
        special = special_range(address)
        if special:
            return Decision(False, f"the address {address} is {special}, and the allow list does not have it")
        return named if named is not None else Decision(False, _not_allowed(self.allow))

    def addresses(self, addresses: Sequence[Address], port: int, named: Decision) -> Decision:
        """All that a name resolved to. One that is refused refuses the name: it may be there to be tried first."""
        decision = Decision(False, "the name has no address")
        for address in addresses:
            decision = self.address(address, port, named=named)
            if not decision.allowed:
                return decision
        return decision

    def knows_name(self, name: str) -> bool:
        """Whether some port of this name is allowed, before its addresses are known."""
        ports = {port for rule in self.allow if rule.covers_name(name) for port in rule.ports}
        return any(self.destination(name, port).allowed for port in ports)

    def ports(self) -> tuple[int, ...]:
        """Every port on which anything can be allowed."""
        return tuple(sorted({port for rule in self.allow for port in rule.ports}))

    def listed_networks(self) -> tuple[Network, ...]:
        """The addresses and blocks of the allow list."""
        return tuple(dict.fromkeys(rule.network for rule in self.allow if rule.network is not None))


def special_range(address: Address) -> str | None:
    """What an address that belongs to a special range is, else None."""
    for network, name in SPECIAL_RANGES:
        if address.version == network.version and address in network:
            return name
    return None


def parse_policy(allow: Iterable[str], deny: Iterable[str]) -> Policy:
    """Raises BadRule."""
    return Policy(tuple(parse_rule(text) for text in allow), tuple(parse_rule(text) for text in deny))


def parse_rule(text: str) -> Rule:
    """`host`, `*.domain`, an address or a block, each with `:port` or without. Raises BadRule."""
    host, port = _split_port(text.lower())
    if port is not None and not (port.isascii() and port.isdigit() and len(port) <= 5 and 1 <= int(port) <= 65535):
        raise BadRule(text)
    ports = (int(port),) if port is not None else DEFAULT_PORTS
    try:
        return Rule(text, ports, network=_network(host))
    except ValueError:
        pass
    name = host.removeprefix("*.").removesuffix(".")
    if not name or "/" in name or "*" in name or ":" in name or name.split(".")[-1].isdigit():
        raise BadRule(text)
    return Rule(text, ports, name=name, subdomains=host.startswith("*."))


def _network(text: str) -> Network:
    """Raises ValueError. A block of IPv4-mapped addresses is the IPv4 block, as `plain` has the addresses."""
    network = ipaddress.ip_network(text, strict=True)
    if isinstance(network, ipaddress.IPv6Network) and network.prefixlen >= 96:
        mapped = network.network_address.ipv4_mapped
        if mapped is not None:
            return ipaddress.IPv4Network((mapped, network.prefixlen - 96))
    return network


def _split_port(text: str) -> tuple[str, str | None]:
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise BadRule(text)
        return host, rest[1:] if rest else None
    if text.count(":") == 1:
        host, _, port = text.partition(":")
        return host, port
    return text, None


def _first(rules: Iterable[Rule]) -> Rule | None:
    return next(iter(rules), None)


def _not_allowed(allow: tuple[Rule, ...]) -> str:
    return "the allow list does not have it" if allow else "the allow list is empty"
