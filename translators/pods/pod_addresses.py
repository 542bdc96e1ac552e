"""Decides which of the addresses that the remote reports for a pod are copied to home.

Home's Services lead clients to the addresses in the statuses of pods: a hostile remote could name
an address that belongs to another machine.

- Never copied: special addresses, and home's own: its API server, its nodes, its Services.
- `Policy.remote_pod_cidrs`, if there are any, decide about all others.
- Without them, addresses in the pod CIDRs of home's nodes are not copied: home routes these to its
  own pods. With them they are: home's nodes have pod CIDRs even where home's network plugin uses
  others, and the option states that these addresses are the remote's.

The ranges that the *remote's* nodes publish (``spec.podCIDRs``) do not count: a hostile API server
writes them too, and several network plugins (Calico's own IPAM, Cilium's, the AWS VPC CNI) use
others.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import TypeAlias

from translators.home_ranges import HomeRanges, IpNetwork
from translators.object_accessors import Object
from translators.translation_options import Policy

_IpAddress: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

#: Addresses whose decision is cached.
_CACHED_MAX = 16_384
#: Characters of the longest address.
_LENGTH_MAX = 45
#: A pod has one address of each family.
_MOST = 2


def rejected_addresses(status: Object, policy: Policy) -> list[str]:
    """The addresses of a remote pod's status that are not copied, each with the reason, such as
    ``127.0.0.1 (loopback)``; without those that are none."""
    texts = [text for text in _reported(status) if len(text) <= _LENGTH_MAX]
    reasons = ((text, _rejection(text, policy)) for text in dict.fromkeys(texts))
    return [f"{text} ({reason})" for text, reason in reasons if reason]


def copied_addresses(status: Object, policy: Policy) -> list[str]:
    """The addresses of a remote pod's status that home's status gets, the first one first."""
    found: dict[int, str] = {}
    for text in dict.fromkeys(_reported(status)):
        if len(text) <= _LENGTH_MAX and not _rejection(text, policy):
            found.setdefault(ipaddress.ip_address(text).version, text)
    return list(found.values())[:_MOST]


def _reported(status: Object) -> Iterator[str]:
    if ip := status.get("podIP"):
        yield ip
    for entry in status.get("podIPs") or ():
        if ip := entry.get("ip"):
            yield ip


def _rejection(text: str, policy: Policy) -> str:
    servers = (policy.node_address, *policy.home_addresses)
    return _reason(text, policy.remote_pod_cidrs, servers, policy.home_ranges())


@lru_cache(maxsize=_CACHED_MAX)
def _reason(text: str, allowed: tuple[str, ...], home: tuple[str, ...], ranges: HomeRanges) -> str:
    """Why a pod in the remote cannot have the address; "" if it can."""
    try:
        ip = ipaddress.ip_address(text)
    except ValueError:
        return "no IP address"
    mapped = getattr(ip, "ipv4_mapped", None)
    kinds = {
        "unspecified": ip.is_unspecified,
        "loopback": ip.is_loopback,
        "link-local": ip.is_link_local,
        "multicast": ip.is_multicast,
        "broadcast": text == "255.255.255.255",
        "IPv4 in IPv6": mapped is not None,
        "with a zone": "%" in text,
    }
    if kind := next((kind for kind, applies in kinds.items() if applies), ""):
        return kind
    if any(ip == known for known in map(_parsed, home)) or str(ip) in ranges.nodes:
        return "an address of home"
    if network := _containing(ip, ranges.services):
        return f"in home's Service range {network}"
    if allowed:
        is_allowed = _containing(ip, map(ipaddress.ip_network, allowed))
        return "" if is_allowed else "outside of --remote-pod-cidr"
    if network := _containing(ip, ranges.pods):
        return f"in the range {network} of home's pods"
    return ""


def _containing(ip: _IpAddress, networks: Iterable[IpNetwork]) -> IpNetwork | None:
    """The first of the networks that contains the address."""
    return next((network for network in networks if ip in network), None)


def _parsed(text: str) -> _IpAddress | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None
