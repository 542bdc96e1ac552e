"""The part of `sync.relay.forward` for headless Services: which pod has which address at home.

- The slices of ours are the memory: what they tell is taken up before anything is chosen, so
  after a restart, or a takeover, each pod has the address of before. They stay while the bridge or
  the remote is away, and say that nobody is ready.
- An address is another pod's only when nothing is listened on there any more for the pod that had
  it, and no slice tells it.
- Services that lack an address come again when one is given back.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from sync.cache.informer import Informer
from sync.cache.store import Key
from translators.identity import Identity
from translators.objects import Object, name_of
from translators.relay import forward, headless, ipam
from translators.relay.forward import Backend
from translators.relay.headless import HeadlessEndpoint, HeadlessPlan, ListenAddress
from translators.relay.ipam import AddressPool, PodName


class AddressListeners(Protocol):
    """What listens at addresses of pods."""

    async def listen(self, key: Key, addresses: Mapping[ListenAddress, Backend]) -> None:
        """Listens for the Service at these addresses only. Raises PortUnavailableError."""


class HeadlessServices:
    """``slices`` is the informer of all slices of ours, indexed by "pod" (`pods_of`); ``again``
    has a Service reconciled."""

    def __init__(
        self, cidr: str, doors: AddressListeners, slices: Informer, again: Callable[[Key], None]
    ) -> None:
        self._doors = doors
        self._slices = slices
        self._again = again
        self._addresses = AddressPool(ipaddress.ip_network(cidr))
        self._cidr = cidr
        self.family = forward.address_family(cidr)
        """The addressType of its slices."""
        # The pods that each Service is listened for.
        self._served: dict[Key, frozenset[PodName]] = {}
        self._lacking: set[Key] = set()

    def take_up(self) -> None:
        """Keeps what the slices tell; once, before the first `place`."""
        for slice_ in self._slices.store:
            if (told := headless.recorded_address(slice_)) is not None:
                self._addresses.restore(*told)

    def place(
        self, key: Key, plan: HeadlessPlan
    ) -> tuple[dict[str, HeadlessEndpoint], tuple[str, ...]]:
        """The address of each pod behind the Service, and what to tell of those without one."""
        placed: dict[str, HeadlessEndpoint] = {}
        for endpoint in plan.endpoints:
            address = self._addresses.allocate(endpoint.pod)
            if address is not None:
                placed[address] = endpoint
        count = len(plan.endpoints) - len(placed)
        if not count:
            self._lacking.discard(key)
            return placed, ()
        self._lacking.add(key)
        room = ipam.pool_size(self._addresses.cidr)
        said = f"{count} pod(s) have no address: --relay-cidr {self._cidr} has {room}, all taken"
        return placed, (said,)

    async def serve(
        self, key: Key, placed: Mapping[str, HeadlessEndpoint], *, reached: bool
    ) -> None:
        """Listens for these pods, and for no other of the Service; for none where they are not
        ``reached``, but they keep their addresses. Raises NoPort."""
        doors = {
            at: backend
            for address, endpoint in placed.items()
            for at, backend in headless.listeners_of(endpoint, address).items()
            if reached
        }
        before = self._served.get(key, frozenset())
        # Before it waits: another Service's worker must not be given what is being opened.
        self._served[key] = before | {it.pod for it in placed.values()}
        await self._doors.listen(key, doors)
        self._served[key] = frozenset(it.pod for it in placed.values())
        for pod in before - self._served[key]:
            self._give_back(pod)
        if not placed:
            del self._served[key]

    def slices_of(
        self,
        service: Object,
        placed: Mapping[str, HeadlessEndpoint],
        identity: Identity,
        *,
        reached: bool,
    ) -> dict[str, Object]:
        """What home is to have, by name."""
        made = (
            headless.endpoint_slice(service, endpoint, address, identity, reachable=reached)
            for address, endpoint in placed.items()
        )
        return {name_of(it): it for it in made}

    def slice_changed(self, old: Object | None, new: Object | None) -> None:
        """One that is gone may have been the last to tell a pod's address."""
        if new is None:
            for pod in pods_of(old or {}):
                self._give_back(pod)

    def _give_back(self, pod: PodName) -> None:
        is_served = any(pod in pods for pods in self._served.values())
        if is_served or self._slices.store.by_index("pod", pod):
            return
        if self._addresses.release(pod):
            lacking, self._lacking = self._lacking, set()
            for key in lacking:
                self._again(key)


def pods_of(slice_: Object) -> Iterable[PodName]:
    """The index of slices by the pod whose address they tell."""
    told = headless.recorded_address(slice_)
    return () if told is None else (told[0],)
