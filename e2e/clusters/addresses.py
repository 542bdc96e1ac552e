"""The address plan of a set of clusters. Pure.

A set takes one /16 (its *slot*) out of the configured network:

    .0.0/24             the bridge: .1 is the host, .2 upwards the nodes
    .16·(i+1).0/20      pods of cluster i
    .128+16·i .0/20     services of cluster i

so that no two clusters of a set, and no two sets, share an address.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Interface, IPv4Network

from e2e.clusters.errors import InvalidRequest

# Pods use the third octets 16…127 and services 128…239, sixteen per cluster.
MAX_CLUSTERS = 7
_RANGE = 16 * 256


@dataclass(frozen=True, slots=True)
class Plan:
    """The addresses of one cluster."""

    slot: IPv4Network
    index: int

    @property
    def bridge(self) -> IPv4Interface:
        """The host's address on the bridge, with the bridge's network."""
        return IPv4Interface((self.slot.network_address + 1, 24))

    @property
    def host(self) -> IPv4Address:
        """The host as the cluster sees it."""
        return self.bridge.ip

    @property
    def node(self) -> IPv4Interface:
        """The cluster's node and API server, with the bridge's network."""
        return IPv4Interface((self.slot.network_address + 2 + self.index, 24))

    @property
    def pods(self) -> IPv4Network:
        """The pods of the cluster."""
        return IPv4Network((self.slot.network_address + _RANGE * (self.index + 1), 20))

    @property
    def services(self) -> IPv4Network:
        """The Service addresses of the cluster."""
        return IPv4Network((self.slot.network_address + 128 * 256 + _RANGE * self.index, 20))

    @property
    def api_service(self) -> IPv4Address:
        """The address of the `kubernetes` Service: the API server takes the first one."""
        return self.services.network_address + 1

    @property
    def dns(self) -> IPv4Address:
        """Where pods look for DNS: the tenth Service address, as everywhere."""
        return self.services.network_address + 10


def free_slot(network: IPv4Network, taken: Iterable[IPv4Network]) -> IPv4Network:
    """The first /16 of `network` that overlaps with nothing taken.

    :raises InvalidRequest: no free /16 is left.
    """
    used = list(taken)
    for slot in network.subnets(new_prefix=16):
        if not any(slot.overlaps(other) for other in used):
            return slot
    raise InvalidRequest(
        f"no free /16 in {network}",
        where="--network",
        next_step="take other clusters down, or choose another network",
    )


def free_index(taken: Iterable[int]) -> int:
    """The lowest index that no cluster of the set uses.

    :raises InvalidRequest: the set is full.
    """
    free = set(range(MAX_CLUSTERS)) - set(taken)
    if not free:
        raise InvalidRequest(
            f"a set has room for {MAX_CLUSTERS} clusters", next_step="take another --prefix"
        )
    return min(free)
