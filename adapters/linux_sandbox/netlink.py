"""Requests to rtnetlink(7) that make addresses local in a command's network, encoded by pyroute2.

The one module that loads pyroute2, which takes a third of a second: only for an `enabled` network, once a runner, and
never in the helper, which gets bytes. Refuses to know which addresses. Pure apart from the import. Called for plans.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from pyroute2.netlink import NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE, NLM_F_REQUEST
from pyroute2.netlink.rtnl import RTM_NEWADDR, RTM_NEWROUTE
from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg
from pyroute2.netlink.rtnl.rtmsg import rtmsg

LOOPBACK_INDEX = 1
"""The first interface of every network namespace (LOOPBACK_IFINDEX, net/flow.h)."""
_AF_INET, _SCOPE_HOST, _TABLE_LOCAL, _PROTO_STATIC, _TYPE_LOCAL = 2, 254, 255, 4, 2  # linux/rtnetlink.h


def local_addresses(own: ipaddress.IPv4Interface, others: Sequence[ipaddress.IPv4Network]) -> tuple[str, ...]:
    """Requests in hexadecimal. `own`: an address on lo, whose whole network becomes local by that. `others`: more
    blocks that become local, without an address of their own."""
    address = ifaddrmsg()
    address["family"], address["prefixlen"], address["index"] = _AF_INET, own.network.prefixlen, LOOPBACK_INDEX
    address["attrs"] = [("IFA_LOCAL", str(own.ip)), ("IFA_ADDRESS", str(own.ip))]
    messages = [_encoded(address, RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL, 1)]
    for number, block in enumerate(others, 2):
        route = rtmsg()
        route["family"], route["dst_len"], route["table"] = _AF_INET, block.prefixlen, _TABLE_LOCAL
        route["proto"], route["scope"], route["type"] = _PROTO_STATIC, _SCOPE_HOST, _TYPE_LOCAL
        target = [("RTA_DST", str(block.network_address))] if block.prefixlen else []
        route["attrs"] = [*target, ("RTA_OIF", LOOPBACK_INDEX)]
        messages.append(_encoded(route, RTM_NEWROUTE, NLM_F_CREATE | NLM_F_REPLACE, number))
    return tuple(messages)


def _encoded(message: ifaddrmsg | rtmsg, kind: int, flags: int, number: int) -> str:
    message["header"]["type"] = kind
    message["header"]["flags"] = NLM_F_REQUEST | NLM_F_ACK | flags
    message["header"]["sequence_number"] = number
    message.encode()
    return bytes(message.data).hex()
