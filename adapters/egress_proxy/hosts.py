"""Host names and addresses as a client may write them, brought into one form or refused.

One form each, so that a rule cannot be passed by another spelling: lower case, no trailing dot, ASCII labels, addresses
as objects. Spellings of IPv4 that only some resolvers take (0x7f.1, 0177.0.0.1, 2130706433) and scope ids are refused.
Pure. Refuses to know rules. Sources: RFC 1123 section 2.1, RFC 3986 section 3.2.2, WHATWG URL (IPv4 parser).
"""

from __future__ import annotations

import ipaddress
import re

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Host = str | ipaddress.IPv4Address | ipaddress.IPv6Address
"""A name in lower case without its trailing dot, or an address."""

MAX_HOST_CHARS = 1024
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMERIC = re.compile(r"[0-9]+|0x[0-9a-f]*")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


class BadHost(ValueError):
    """Text that names no host, or names it in a way that is refused; the text of the exception says why."""


def parse_host(text: str) -> Host:
    """Raises BadHost."""
    if not text or len(text) > MAX_HOST_CHARS:
        raise BadHost("the host is empty or too long")
    if text.startswith("[") or ":" in text:
        return _ipv6(text)
    name = text.lower()
    if not name.isascii():
        try:
            name = name.encode("idna").decode("ascii").lower()
        except UnicodeError:
            raise BadHost("the host is no international name") from None
    name = name.removesuffix(".")
    labels = name.split(".")
    if _NUMERIC.fullmatch(labels[-1]):
        try:
            return ipaddress.IPv4Address(name)
        except ValueError:
            raise BadHost("the host is a number, but no address of four decimal parts") from None
    if len(name) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        raise BadHost("the host is neither a name nor an address")
    return name


def _ipv6(text: str) -> Address:
    inner = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    if "%" in inner:
        raise BadHost("the address has a scope")
    try:
        return plain(ipaddress.IPv6Address(inner))
    except ValueError:
        raise BadHost("the host is no IPv6 address") from None


def plain(address: Address) -> Address:
    """An IPv4 address that is written as an IPv6 one becomes itself: the kernel connects to the same place."""
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def embedded(address: Address) -> ipaddress.IPv4Address | None:
    """The IPv4 address that a NAT64 gateway would connect to for this one (RFC 6052), or None."""
    if isinstance(address, ipaddress.IPv6Address) and address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return None
