"""Assigns an address at home to each pod behind a headless Service, for
`sync.relay.forward_controller`.

- The bridge's EndpointSlices record the assignments (`headless_forward_plan.recorded_address`).
  Those of running pods are restored before the first new assignment, the oldest slice first. The
  slices stay while the bridge or the remote is away, with endpoints that are not ready.
- An address is reused only when the bridge no longer listens on it for the previous pod and no
  slice of that pod records it. Then the Services that lack an address are queued again. Addresses
  that a slice records for another pod are assigned last.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Protocol

from sync.cache.informer import Informer
from sync.cache.store import Indexer, Key, key_of
from translators.object_accessors import Object, name_of
from translators.relay import forward_plan, headless_forward_plan, ipam
from translators.relay.forward_plan import Backend
from translators.relay.headless_forward_plan import HeadlessEndpoint, HeadlessPlan, ListenAddress
from translators.relay.ipam import AddressPool, PodName
from translators.virtual_node_identity import Identity


class AddressListeners(Protocol):
    """Listens on pod addresses."""

    async def listen(self, key: Key, addresses: Mapping[ListenAddress, Backend]) -> None:
        """Listens for the Service at these addresses only. Raises PortUnavailableError."""


class HeadlessServices:
    """The addresses of all pods behind headless Services. ``slices`` is the informer of all slices
    of the bridge, with `indexers`; ``requeue`` queues a Service."""

    def __init__(
        self,
        cidr: str,
        listeners: AddressListeners,
        slices: Informer,
        identity: Identity,
        requeue: Callable[[Key], None],
    ) -> None:
        self._listeners = listeners
        self._identity = identity
        self._slices = slices
        self._requeue = requeue
        self._addresses = AddressPool(ipaddress.ip_network(cidr))
        self._cidr = cidr
        self.family = forward_plan.address_family(cidr)
        """The addressType of the slices."""
        # By Service: the pods for which the bridge listens, and the Services that lack an address.
        self._served: dict[Key, frozenset[PodName]] = {}
        self._lacking: set[Key] = set()

    def restore(self, runs: Callable[[PodName], bool]) -> None:
        """Restores the assignments that the slices record for pods that run in the remote. Call it
        once, before `assign`."""
        for slice_ in sorted(self._slices.store, key=headless_forward_plan.age_order):
            recorded = headless_forward_plan.recorded_address(slice_, self._identity)
            if recorded is not None and runs(recorded[0]):
                self._addresses.restore(*recorded)

    def assign(
        self, key: Key, plan: HeadlessPlan
    ) -> tuple[dict[str, HeadlessEndpoint], tuple[str, ...]]:
        """The pods behind the Service by address, and messages about those without one."""
        assigned: dict[str, HeadlessEndpoint] = {}
        for endpoint in plan.endpoints:
            others = partial(self._is_recorded_for_another, endpoint.pod)
            address = self._addresses.allocate(endpoint.pod, others)
            if address is not None:
                assigned[address] = endpoint
        lacking = len(plan.endpoints) - len(assigned)
        if not lacking:
            self._lacking.discard(key)
            return assigned, ()
        self._lacking.add(key)
        size = ipam.pool_size(self._addresses.cidr)
        return assigned, (
            f"{lacking} pod(s) have no address: all {size} of --relay-cidr {self._cidr} are taken",
        )

    async def serve(
        self, key: Key, assigned: Mapping[str, HeadlessEndpoint], *, reachable: bool
    ) -> None:
        """Listens for these pods of the Service only. If they are not ``reachable``, closes the
        listeners, but the pods keep their addresses. Raises PortUnavailableError."""
        addresses = {
            listen_address: backend
            for address, endpoint in assigned.items()
            for listen_address, backend in headless_forward_plan.listeners_of(
                endpoint, address
            ).items()
            if reachable
        }
        before = self._served.get(key, frozenset())
        # Before the await: no other worker may reassign an address that is being opened.
        self._served[key] = before | {it.pod for it in assigned.values()}
        await self._listeners.listen(key, addresses)
        self._served[key] = frozenset(it.pod for it in assigned.values())
        for pod in before - self._served[key]:
            self._release(pod)
        if not assigned:
            del self._served[key]

    def slices_of(
        self,
        service: Object,
        assigned: Mapping[str, HeadlessEndpoint],
        *,
        reachable: bool,
    ) -> dict[str, Object]:
        """The Service's desired slices by name."""
        slices = (
            headless_forward_plan.endpoint_slice(
                service, endpoint, address, self._identity, reachable=reachable
            )
            for address, endpoint in assigned.items()
        )
        return {name_of(it): it for it in slices}

    def slice_changed(self, old: Object | None, new: Object | None) -> None:
        """Releases an address that a slice no longer records, if no listener or other slice uses
        it."""
        before, after = (
            set(_recorded("pod", self._identity, slice_ or {})) for slice_ in (old, new)
        )
        for pod in before - after:
            self._release(pod)

    def _is_recorded_for_another(self, pod: PodName, address: str) -> bool:
        store = self._slices.store
        slices = {key_of(slice_) for slice_ in store.by_index("address", address)}
        return bool(slices - {key_of(slice_) for slice_ in store.by_index("pod", pod)})

    def _release(self, pod: PodName) -> None:
        is_served = any(pod in pods for pods in self._served.values())
        if is_served or self._slices.store.by_index("pod", pod):
            return
        if self._addresses.release(pod):
            lacking, self._lacking = self._lacking, set()
            for key in lacking:
                self._requeue(key)


def indexers(identity: Identity) -> dict[str, Indexer]:
    """Of slices, by the pod and by the address that they record."""
    return {index: partial(_recorded, index, identity) for index in ("pod", "address")}


def _recorded(part: str, identity: Identity, slice_: Object) -> Iterable[Any]:
    recorded = headless_forward_plan.recorded_address(slice_, identity)
    return () if recorded is None else (recorded[part == "address"],)
