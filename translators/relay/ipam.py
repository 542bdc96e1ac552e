"""Addresses at home for pods of the remote: which of a range is whose.

The choice depends on the pod's name and on what is taken: the same pod gets the same address after
a restart, and when a StatefulSet makes it anew, as long as nobody else has it. It is not UIDs that
are chosen by, so that what a client remembers of ``web-0`` stays true.
"""

from __future__ import annotations

import hashlib
import ipaddress
from typing import NamedTuple

IpNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network

#: The widest and the narrowest prefix that a range may have, by the version of IP: a mistake must
#: not take a whole organisation's network, and the first and the last address are no pod's.
PREFIX_LENGTHS = {4: (12, 30), 6: (64, 126)}


class PodName(NamedTuple):
    """A pod at home."""

    namespace: str
    name: str


def pool_size(cidr: IpNetwork) -> int:
    """How many pods have room: all addresses but the first and the last, which are the network's
    own (RFC 1122, 3.2.1.3; RFC 4291, 2.6.1)."""
    return cidr.num_addresses - 2


class AddressPool:
    """Who has which. No two pods have one, and a pod keeps its own until it is given back."""

    def __init__(self, cidr: IpNetwork) -> None:
        self.cidr = cidr
        self._of: dict[PodName, str] = {}
        self._taken: dict[str, PodName] = {}

    def __len__(self) -> int:
        return len(self._of)

    def allocate(self, pod: PodName) -> str | None:
        """The pod's address, chosen now if it has none; None where all are taken."""
        known = self._of.get(pod)
        if known is not None or len(self._of) >= pool_size(self.cidr):
            return known
        number = _number(pod, pool_size(self.cidr))
        while (address := self._at(number)) in self._taken:
            number = (number + 1) % pool_size(self.cidr)
        self._take(pod, address)
        return address

    def restore(self, pod: PodName, address: str) -> bool:
        """Takes up what an earlier bridge chose; whether that could be."""
        if not self._may_have(address) or pod in self._of or address in self._taken:
            return self._of.get(pod) == address
        self._take(pod, address)
        return True

    def release(self, pod: PodName) -> bool:
        """The pod needs none any more; whether it had one."""
        address = self._of.pop(pod, None)
        if address is not None:
            del self._taken[address]
        return address is not None

    def _take(self, pod: PodName, address: str) -> None:
        self._of[pod] = address
        self._taken[address] = pod

    def _at(self, number: int) -> str:
        return str(self.cidr.network_address + 1 + number)

    def _may_have(self, address: str) -> bool:
        try:
            offset = int(ipaddress.ip_address(address)) - int(self.cidr.network_address)
            return address == self._at(offset - 1) and 0 < offset <= pool_size(self.cidr)
        except ValueError:  # Somebody wrote it, or the range was another.
            return False


def _number(pod: PodName, count: int) -> int:
    digest = hashlib.sha256(f"{pod.namespace}/{pod.name}".encode()).digest()
    return int.from_bytes(digest[:16], "big") % count
