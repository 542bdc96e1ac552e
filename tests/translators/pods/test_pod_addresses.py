"""Pod IPs that the remote reports and no pod of it can have do not reach home."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.sync.pod_states import POLICY
from translators.home_ranges import NO_RANGES, home_ranges
from translators.object_accessors import Object
from translators.pods.pod_addresses import copied_addresses, rejected_addresses
from translators.pods.pod_status import translate_status
from translators.translation_options import Network, Policy

FLAT = replace(POLICY, network="flat", home_addresses=("192.0.2.1", "home.example", "2001:db8::1"))
LIMITED = replace(FLAT, remote_pod_cidrs=("10.1.0.0/16", "fd00:1::/64"))
NOW = "2025-11-03T10:00:00Z"


def status(*ips: str) -> Object:
    return {"phase": "Running", "podIP": ips[0], "podIPs": [{"ip": ip} for ip in ips]}


def at_home(remote_status: Object, policy: object = FLAT) -> tuple[object, object]:
    assert isinstance(policy, type(FLAT))
    home = {"metadata": {"name": "a", "uid": "u"}, "spec": {}, "status": {"podIP": "10.1.0.9"}}
    remote = {"metadata": {"name": "a"}, "spec": {}, "status": remote_status}
    made = translate_status(home, remote, policy, now=NOW)
    return made["podIP"], made["podIPs"]


@pytest.mark.parametrize(
    "ips", [("10.1.0.4",), ("10.1.0.4", "fd00:1::4"), ("fd00:1::4", "10.1.0.4"), ("172.31.0.9",)]
)
def test_addresses_of_pods_are_copied(ips: tuple[str, ...]) -> None:
    assert at_home(status(*ips)) == (ips[0], [{"ip": ip} for ip in ips])
    assert rejected_addresses(status(*ips), FLAT) == []


@pytest.mark.parametrize(
    ("ip", "reason"),
    [
        ("127.0.0.1", "loopback"),
        ("::1", "loopback"),
        ("169.254.169.254", "link-local"),
        ("fe80::1", "link-local"),
        ("224.0.0.1", "multicast"),
        ("ff02::1", "multicast"),
        ("0.0.0.0", "unspecified"),
        ("::", "unspecified"),
        ("255.255.255.255", "broadcast"),
        ("::ffff:127.0.0.1", "IPv4 in IPv6"),
        ("fd00::1%eth0", "with a zone"),
        ("10.1.0.4/32", "no IP address"),
        ("010.1.0.4", "no IP address"),
        ("example.com", "no IP address"),
        ("192.0.2.1", "an address of home"),
        ("2001:DB8:0::1", "an address of home"),
        (POLICY.node_address, "an address of home"),
    ],
)
def test_special_addresses_and_those_of_home_are_rejected(ip: str, reason: str) -> None:
    assert rejected_addresses(status(ip), FLAT) == [f"{ip} ({reason})"]
    assert at_home(status(ip)) == (None, None)
    assert at_home(status(ip, "10.1.0.4")) == ("10.1.0.4", [{"ip": "10.1.0.4"}])


def test_addresses_outside_of_the_option_are_rejected() -> None:
    assert copied_addresses(status("10.1.0.4", "fd00:1::4"), LIMITED) == ["10.1.0.4", "fd00:1::4"]
    assert at_home(status("10.2.0.4"), LIMITED) == (None, None)
    assert rejected_addresses(status("10.2.0.4", "fd00:2::4"), LIMITED) == [
        "10.2.0.4 (outside of --remote-pod-cidr)",
        "fd00:2::4 (outside of --remote-pod-cidr)",
    ]


def with_home_ranges(policy: Policy) -> Policy:
    """Home has these nodes and Services."""
    worker = {"name": "worker", "labels": {}}
    addresses = [
        {"type": "InternalIP", "address": "192.0.2.7"},
        {"type": "InternalIP", "address": "2001:db8:0:0::7"},
        {"type": "Hostname", "address": "worker"},
    ]
    virtual = {"name": "virtual", "labels": {"cluster-bridge.io/virtual-node": "true"}}
    ranges = home_ranges(
        [
            {
                "metadata": worker,
                "spec": {"podCIDRs": ["10.244.0.0/24", "fd00:244::/64"]},
                "status": {"addresses": addresses},
            },
            {"metadata": virtual, "spec": {"podCIDRs": ["10.244.1.0/24"]}},
        ],
        [{"spec": {"cidrs": ["10.96.0.0/12", "fd00:96::/112"]}}, {"spec": {"cidrs": ["what?"]}}],
    )
    return replace(policy, home_ranges=lambda: ranges)


@pytest.mark.parametrize(
    ("ip", "reason"),
    [
        ("192.0.2.7", "an address of home"),
        ("2001:db8::7", "an address of home"),
        ("10.100.0.1", "in home's Service range 10.96.0.0/12"),
        ("fd00:96::a", "in home's Service range fd00:96::/112"),
        ("10.244.0.9", "in the range 10.244.0.0/24 of home's pods"),
        ("fd00:244::9", "in the range fd00:244::/64 of home's pods"),
    ],
)
def test_addresses_in_homes_own_ranges_are_rejected(ip: str, reason: str) -> None:
    policy = with_home_ranges(FLAT)
    assert rejected_addresses(status(ip), policy) == [f"{ip} ({reason})"]
    assert at_home(status(ip), policy) == (None, None)


@pytest.mark.parametrize("ip", ["10.244.1.9", "10.1.0.4", "192.0.2.8", "fd00:1::4"])
def test_addresses_outside_of_homes_ranges_are_copied(ip: str) -> None:
    """As those in the pod CIDR that home assigned to the virtual node, where it has no pods."""
    assert copied_addresses(status(ip), with_home_ranges(FLAT)) == [ip]


def test_option_overrides_pod_cidrs_of_homes_nodes_alone() -> None:
    """Home's nodes have pod CIDRs even where its network plugin uses others."""
    wide = with_home_ranges(replace(FLAT, remote_pod_cidrs=("10.0.0.0/8", "192.0.2.0/24")))
    assert copied_addresses(status("10.244.0.9"), wide) == ["10.244.0.9"]
    assert copied_addresses(status("10.100.0.1"), wide) == []
    assert copied_addresses(status("192.0.2.7"), wide) == []


def test_ranges_that_are_read_again_apply_at_once() -> None:
    current = NO_RANGES
    policy = replace(FLAT, home_ranges=lambda: current)
    assert copied_addresses(status("10.100.0.1"), policy) == ["10.100.0.1"]
    current = with_home_ranges(FLAT).home_ranges()
    assert copied_addresses(status("10.100.0.1"), policy) == []


def test_a_pod_has_one_address_of_each_family() -> None:
    many = status("10.1.0.4", "10.1.0.5", "fd00:1::4", "fd00:1::5", *["10.1.0.6"] * 10_000)
    assert copied_addresses(many, FLAT) == ["10.1.0.4", "fd00:1::4"]


def test_text_of_any_length_is_no_address() -> None:
    assert copied_addresses(status("1" * 10**6), FLAT) == []
    assert rejected_addresses(status("1" * 10**6), FLAT) == []


@pytest.mark.parametrize("network", ["relay", "none"])
def test_other_modes_copy_no_address(network: Network) -> None:
    policy = replace(FLAT, network=network)
    assert at_home(status("10.1.0.4"), policy) == (None, None)
