"""Our EndpointSlices in the remote, which lead to relay pods (`sync.relay.reverse` decides
which)."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

from sync.cache.informer import Informer
from sync.cache.store import Key
from sync.kube.client import KubeClient
from sync.relay.endpoint_slices import EndpointSliceWriter
from sync.runtime.log_fields import name_fields
from translators.identity import Identity
from translators.mirror import endpointslice
from translators.objects import HomeNamespace, Object, is_deleting, is_ready, namespace_of
from translators.relay import forward, reverse

changes = logging.getLogger("cluster-bridge.changes")


class ReverseSlices:
    """``slices`` and ``services`` are informers of this home's copies, ``pods`` of its pods there;
    all are indexed as `sync.engine.engine` does."""

    def __init__(
        self,
        client: KubeClient,
        slices: Informer,
        services: Informer,
        pods: Informer,
        identity: Identity,
    ) -> None:
        self._writer = EndpointSliceWriter(client, slices)
        self._slices = slices
        self._services = services
        self._pods = pods
        self._identity = identity

    def present(self, home: HomeNamespace) -> list[Object]:
        """Our slices for the namespace."""
        found = self._slices.store.by_index("relay", home)
        return [it for it in found if reverse.is_own_relay_object(it, self._identity)]

    async def write(self, wanted: Mapping[str, Object], present: Sequence[Object]) -> None:
        """Has the remote's slices be these, and no others."""
        await self._writer.write(wanted, present)
        before = {endpointslice.service_name(it) for it in present}
        for name in sorted(before ^ {endpointslice.service_name(it) for it in wanted.values()}):
            self._say_served(name, [*present, *wanted.values()], is_served=name not in before)

    async def withdrawn(self) -> bool:
        """Takes out the endpoints of Services that pods in the remote serve; whether any were."""
        return await self._writer.withdraw(self._is_served_there)

    def _is_served_there(self, slice_: Object) -> bool:
        if not reverse.is_own_relay_object(slice_, self._identity):
            return False
        key = Key(namespace_of(slice_), endpointslice.service_name(slice_))
        copy, home = self._services.store.get(key), reverse.relay_home_namespace(slice_)
        return copy is not None and any(
            forward.selects_pod(copy, pod) and is_ready(pod) and not is_deleting(pod)
            for pod in self._pods.store.by_index("namespace", home)
        )

    def _say_served(self, name: str, slices: Iterable[Object], *, is_served: bool) -> None:
        namespace = next(
            namespace_of(it) for it in slices if endpointslice.service_name(it) == name
        )
        said = "leads to home's pods" if is_served else "leads to home's pods no more"
        where = name_fields("Service", name, namespace=namespace, cluster="remote")
        changes.info("Service %s/%s in the remote %s", namespace, name, said, extra=where)
