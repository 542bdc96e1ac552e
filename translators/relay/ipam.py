"""Assigns addresses of a range at home to remote pods.

The choice depends on the pod's name, not on its UID: the same name gets the same address after a
restart of the bridge or when a StatefulSet re-creates the pod, unless the address is in use. So
cached DNS records of ``web-0`` stay valid.
"""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Callable
from typing import NamedTuple

IpNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network

#: The minimum and maximum prefix length of a range, by IP version: a mistake must not occupy the
#: network of a whole organisation, and the first and last addresses are reserved.
PREFIX_LENGTHS = {4: (12, 30), 6: (64, 126)}


class PodName(NamedTuple):
    """A home pod."""

    namespace: str
    name: str


def pool_size(cidr: IpNetwork) -> int:
    """The number of addresses for pods: all except the first and the last, which are reserved (RFC
    1122, 3.2.1.3; RFC 4291, 2.6.1)."""
    return cidr.num_addresses - 2


class AddressPool:
    """The addresses in use. A pod has at most one address, exclusively, until it is released."""

    def __init__(self, cidr: IpNetwork) -> None:
        self.cidr = cidr
        self._of: dict[PodName, str] = {}
        self._taken: dict[str, PodName] = {}

    def __len__(self) -> int:
        return len(self._of)

    def allocate(
        self, pod: PodName, is_avoided: Callable[[str], bool] = lambda _: False
    ) -> str | None:
        """The pod's address, newly assigned if it has none: one that is not avoided, if there is
        one. None if the pool is exhausted."""
        size = pool_size(self.cidr)
        known = self._of.get(pod)
        if known is not None or len(self._of) >= size:
            return known
        digest = hashlib.sha256(f"{pod.namespace}/{pod.name}".encode()).digest()
        first = int.from_bytes(digest[:16], "big")
        avoided: list[str] = []
        for step in range(size):
            address = self._at((first + step) % size)
            if address not in self._taken and not is_avoided(address):
                break
            if address not in self._taken:
                avoided.append(address)
        else:
            address = avoided[0]
        self._take(pod, address)
        return address

    def restore(self, pod: PodName, address: str) -> bool:
        """Assigns an address that an earlier bridge chose; returns whether the pod has it."""
        if not self._may_have(address) or pod in self._of or address in self._taken:
            return self._of.get(pod) == address
        self._take(pod, address)
        return True

    def release(self, pod: PodName) -> bool:
        """Releases the pod's address; returns whether it had one."""
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
        except ValueError:  # A user changed the slice, or the range changed.
            return False
