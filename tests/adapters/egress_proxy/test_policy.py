"""The lists: deny wins, nothing is allowed by default, and no other spelling of a host passes a rule."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from adapters.egress_proxy.hosts import BadHost, parse_host, plain
from adapters.egress_proxy.policy import BadRule, Decision, Policy, parse_policy, parse_rule, special_range
from gateway.registry_file import Destination

pytestmark = pytest.mark.covers("NET-4")


def allowed(policy: Policy, host: str, port: int) -> bool:
    return policy.destination(parse_host(host), port).allowed


@pytest.mark.parametrize(
    ("rule", "reached", "not_reached"),
    [
        ("a.test", [("a.test", 80), ("a.test", 443)], [("a.test", 8080), ("x.a.test", 443), ("ba.test", 443)]),
        ("a.test:8080", [("a.test", 8080)], [("a.test", 80), ("a.test", 443)]),
        ("*.a.test", [("x.a.test", 443), ("y.x.a.test", 80)], [("a.test", 443), ("xa.test", 443), ("a.test.b", 443)]),
        ("*.a.test:22", [("x.a.test", 22)], [("x.a.test", 443)]),
        ("8.8.8.8", [("8.8.8.8", 443)], [("8.8.8.9", 443), ("8.8.8.8", 53)]),
        ("8.8.8.0/24:53", [("8.8.8.8", 53)], [("8.8.9.8", 53), ("8.8.8.8", 443)]),
        ("10.0.0.0/8", [("10.1.2.3", 80)], [("11.1.2.3", 80)]),
        ("[2600::1]:8443", [("2600::1", 8443), ("[2600:0::1]", 8443)], [("2600::1", 443), ("2600::2", 8443)]),
        ("2600::/16", [("2600:1::2", 443)], [("2601::1", 443)]),
        ("::ffff:10.0.0.0/104", [("10.1.2.3", 80), ("::ffff:10.1.2.3", 80)], [("11.1.2.3", 80)]),
    ],
)
def test_a_rule_reaches_what_it_says_and_no_more(
    rule: str, reached: list[tuple[str, int]], not_reached: list[tuple[str, int]]
) -> None:
    policy = parse_policy([rule], [])
    for host, port in reached:
        assert allowed(policy, host, port), (host, port)
    for host, port in not_reached:
        assert not allowed(policy, host, port), (host, port)


def test_an_empty_allow_list_is_no_destination_at_all() -> None:
    policy = parse_policy([], [])
    assert not allowed(policy, "a.test", 443)
    assert not allowed(policy, "8.8.8.8", 443)
    assert not policy.knows_name("a.test")
    assert policy.ports() == ()


def test_deny_wins_whatever_the_order_and_the_form() -> None:
    policy = parse_policy(["*.a.test", "8.8.8.0/24", "a.test:22"], ["bad.a.test", "8.8.8.8", "*.deep.a.test:443"])
    assert allowed(policy, "good.a.test", 443)
    assert not allowed(policy, "bad.a.test", 443)
    assert allowed(policy, "x.deep.a.test", 80)
    assert not allowed(policy, "x.deep.a.test", 443)
    assert allowed(policy, "8.8.8.9", 80)
    assert not allowed(policy, "8.8.8.8", 80)


def resolved(policy: Policy, name: str, port: int, *addresses: str) -> Decision:
    decision = policy.destination(parse_host(name), port)
    assert decision.allowed
    return policy.addresses([plain(ipaddress.ip_address(a)) for a in addresses], port, decision)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "169.254.169.254", "100.64.0.1",
        "0.0.0.0", "0.1.2.3", "192.0.0.8", "192.0.2.1", "198.18.0.5", "198.51.100.1", "203.0.113.1", "224.0.0.1",
        "240.0.0.1", "255.255.255.255", "::", "::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::127.0.0.1",
        "64:ff9b::7f00:1", "64:ff9b::a00:1", "64:ff9b:1::1", "2002:7f00:1::", "2001:0:1::1", "fc00::1", "fd00:ec2::254",
        "fe80::1", "fec0::1", "ff02::1", "2001:db8::1", "100::1", "168.63.129.16",
    ],
)  # fmt: skip
def test_an_allowed_name_that_resolves_into_a_special_range_is_refused_until_the_address_is_listed(
    address: str,
) -> None:
    assert resolved(parse_policy(["a.test"], []), "a.test", 443, "8.8.8.8").allowed, "the control: a public address"
    assert not resolved(parse_policy(["a.test"], []), "a.test", 443, address).allowed
    assert not resolved(parse_policy(["a.test"], []), "a.test", 443, "8.8.8.8", address).allowed, "one spoils all"
    assert not parse_policy(["a.test"], []).address(plain(ipaddress.ip_address(address)), 443, named=None).allowed
    inner = {"64:ff9b::7f00:1": "127.0.0.1", "64:ff9b::a00:1": "10.0.0.1"}.get(address)
    listed = [address] if inner is None else [address, inner]
    assert resolved(parse_policy(["a.test", *listed], []), "a.test", 443, address).allowed
    assert not resolved(parse_policy(["a.test", f"{address}/128" if ":" in address else address], [*listed]), "a.test",
                        443, address).allowed  # fmt: skip


def test_a_public_address_behind_nat64_is_reached_by_its_name() -> None:
    assert resolved(parse_policy(["a.test"], []), "a.test", 443, "64:ff9b::808:808").allowed
    assert not resolved(parse_policy(["a.test"], ["8.8.8.8"]), "a.test", 443, "64:ff9b::808:808").allowed


def test_a_denied_address_is_not_reached_by_an_allowed_name() -> None:
    policy = parse_policy(["a.test"], ["8.8.8.0/24"])
    assert not resolved(policy, "a.test", 443, "8.8.8.8").allowed
    assert resolved(policy, "a.test", 443, "8.8.9.8").allowed


def test_a_name_without_an_address_is_refused() -> None:
    assert not resolved(parse_policy(["a.test"], []), "a.test", 443).allowed


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("A.Test", "a.test"), ("a.test.", "a.test"), ("BÜCHER.test", "xn--bcher-kva.test"), ("_dmarc.a.test", None),
        ("[::1]", "::1"), ("::FFFF:8.8.8.8", "8.8.8.8"), ("[::ffff:808:808]", "8.8.8.8"), ("8.8.8.8.", "8.8.8.8"),
    ],
)  # fmt: skip
def test_other_spellings_become_the_one_form(text: str, same: str | None) -> None:
    assert str(parse_host(text)) == (same or text)


@pytest.mark.parametrize(
    "text",
    [
        "", ".", "..", "a..test", ".a.test", "a.test..", "0x7f.1", "0x7f000001", "2130706433", "0177.0.0.1", "127.1",
        "127.0.0.01", "1.2.3.4.5", "a.test:80", "fe80::1%eth0", "[fe80::1%25lo]", "[::1", "::1]", "[a.test]", "a test",
        "a\0.test", "a/b", "*", "*.a.test", "a@b", "-a.test", "a-.test", "a" * 64 + ".test", "a." * 130 + "test",
        "x" * 2000, "a.0x1", "\udcff.test", "a。0x7f",
    ],
)  # fmt: skip
def test_what_names_no_host_in_the_one_form_is_refused(text: str) -> None:
    with pytest.raises(BadHost):
        parse_host(text)


@given(st.text(max_size=80))
def test_any_text_is_a_host_or_refused_and_a_host_stays_itself(text: str) -> None:
    try:
        host = parse_host(text)
    except BadHost:
        return
    assert parse_host(str(host)) == host


@pytest.mark.parametrize("text", ["", "*", "*.", "a.test:0", "a.test:65536", "a.test:x", "10.0.0.1/8", "10.0.0", "a/b",
                                  "[::1", "a:b:c", "a.*.test", "[::1]80", "a.test:", "10.0.0.1:"])  # fmt: skip
def test_a_rule_of_no_known_form_is_an_error(text: str) -> None:
    with pytest.raises(BadRule):
        parse_rule(text)


LABELS = st.from_regex(r"[a-z]([a-z0-9-]{0,8}[a-z0-9])?", fullmatch=True)
HOSTS = st.one_of(
    st.lists(LABELS, min_size=1, max_size=4).map(".".join),
    st.lists(LABELS, min_size=1, max_size=4).map(lambda labels: "*." + ".".join(labels)),
    st.ip_addresses(v=4).map(str),
    st.ip_addresses(v=6).map(lambda address: f"[{address}]"),
    st.ip_addresses(v=6).map(lambda address: f"[{address}/128]"),
    st.integers(0, 32).flatmap(lambda bits: st.ip_addresses(v=4).map(
        lambda address: str(ipaddress.ip_network((address, bits), strict=False)))),
)  # fmt: skip


@given(HOSTS, st.one_of(st.none(), st.integers(0, 70000)))
def test_every_destination_that_the_registry_takes_is_a_rule(host: str, port: int | None) -> None:
    text = host if port is None else f"{host}:{port}"
    try:
        taken = TypeAdapter(Destination).validate_python(text)
    except ValidationError:
        assert port is not None
        assert not 1 <= port <= 65535
        return
    assert parse_rule(taken).ports == ((port,) if port is not None else (80, 443))


@given(st.ip_addresses())
def test_an_address_that_the_registries_call_not_global_is_special(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> None:
    address = plain(address)
    if not address.is_global and address not in ipaddress.ip_network("64:ff9b::/96"):
        named = Decision(True, "named")
        assert special_range(address) is not None or not Policy((), ()).address(address, 443, named=named).allowed
