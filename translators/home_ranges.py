"""The addresses of home's own network, which no pod of the remote can have. Pure.

Home shows them in its Nodes and ServiceCIDRs. A Node's pod CIDRs count less than the other ranges:
home's controller manager assigns them even where a network plugin uses others
(`translators.pods.pod_addresses`). Those of virtual nodes do not count at all: no pod has them.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from translators.object_accessors import Object
from translators.ownership_labels import LABEL_VIRTUAL

IpNetwork: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True, eq=False)
class HomeRanges:
    """The ranges. Two of them are equal if they are the same object, so that decisions can be
    cached by it at no cost."""

    nodes: frozenset[str] = frozenset()
    """Addresses of home's nodes, in the form of `ipaddress`."""
    services: tuple[IpNetwork, ...] = ()
    """Ranges of home's Services."""
    pods: tuple[IpNetwork, ...] = ()
    """Pod CIDRs of home's nodes, merged."""


NO_RANGES = HomeRanges()


def home_ranges(nodes: Iterable[Object], service_cidrs: Iterable[Object]) -> HomeRanges:
    """The ranges in these Nodes and ServiceCIDRs. Values that are no addresses are ignored."""
    addresses = set[str]()
    pods: list[IpNetwork] = []
    for node in nodes:
        reported = (node.get("status") or {}).get("addresses") or ()
        addresses.update(
            str(it.network_address) for it in _networks(it["address"] for it in reported)
        )
        if LABEL_VIRTUAL not in (node["metadata"].get("labels") or {}):
            pods += _networks((node.get("spec") or {}).get("podCIDRs") or ())
    services = [
        network
        for known in service_cidrs
        for network in _networks((known.get("spec") or {}).get("cidrs") or ())
    ]
    return HomeRanges(frozenset(addresses), _merged(services), _merged(pods))


def _networks(texts: Iterable[str]) -> Iterator[IpNetwork]:
    for text in texts:
        try:
            yield ipaddress.ip_network(text, strict=False)
        except ValueError:
            continue  # A Node's addresses contain names too.


def _merged(networks: Iterable[IpNetwork]) -> tuple[IpNetwork, ...]:
    found = list(networks)
    v4 = [it for it in found if isinstance(it, ipaddress.IPv4Network)]
    v6 = [it for it in found if isinstance(it, ipaddress.IPv6Network)]
    return (*ipaddress.collapse_addresses(v4), *ipaddress.collapse_addresses(v6))
