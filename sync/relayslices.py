"""Our EndpointSlices in the remote, which lead to relay pods (`sync.relayback` decides which)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Mapping, Sequence

from sync.about import about
from sync.informer import Informer
from sync.kube.client import KubeClient
from sync.kube.errors import AlreadyExists
from sync.kube.resources import ENDPOINT_SLICES
from sync.relay import WITHDRAW_SECONDS
from sync.store import Key
from translators import endpointslice, relay, relayback
from translators.diff import merge_patch
from translators.naming import Identity
from translators.types import (
    HomeNamespace,
    Object,
    is_deleting,
    is_ready,
    metadata,
    name_of,
    namespace_of,
    uid_of,
)

changes = logging.getLogger("cluster-bridge.changes")


class RelaySlices:
    """``slices`` and ``services`` are informers of this home's copies, ``pods`` of its pods there;
    all are indexed as `sync.engine` does."""

    def __init__(
        self,
        client: KubeClient,
        slices: Informer,
        services: Informer,
        pods: Informer,
        identity: Identity,
    ) -> None:
        self._client = client
        self._slices = slices
        self._services = services
        self._pods = pods
        self._identity = identity

    def present(self, home: HomeNamespace) -> list[Object]:
        """Our slices for the namespace."""
        found = self._slices.store.by_index("relay", home)
        return [it for it in found if relayback.is_ours(it, self._identity)]

    async def write(self, wanted: Mapping[str, Object], present: Sequence[Object]) -> None:
        """Has the remote's slices be these, and no others."""
        left = dict(wanted)
        for slice_ in present:
            desired = left.pop(name_of(slice_), None)
            if is_deleting(slice_):
                continue  # Its end is an event that brings the key back.
            if desired is None:
                await self._delete(slice_)
            elif patch := _patch(slice_, desired):
                patch.setdefault("metadata", {})["uid"] = uid_of(slice_)
                changed = await self._client.patch(
                    ENDPOINT_SLICES, name_of(slice_), patch, namespace=namespace_of(slice_)
                )
                self._slices.observe(changed)
        for desired in left.values():
            with contextlib.suppress(AlreadyExists):  # The cache lags; its event brings the key.
                made = await self._client.create(
                    ENDPOINT_SLICES, desired, namespace=namespace_of(desired)
                )
                self._slices.observe(made)
        before = {endpointslice.service_name(it) for it in present}
        for name in sorted(before ^ {endpointslice.service_name(it) for it in wanted.values()}):
            self._say_served(name, [*present, *wanted.values()], is_served=name not in before)

    async def withdrawn(self) -> bool:
        """Takes out the endpoints of Services that pods in the remote serve; whether any were."""
        served = [it for it in self._slices.store if self._is_served_there(it)]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(WITHDRAW_SECONDS):
                gone = await asyncio.gather(*map(self._delete, served), return_exceptions=True)
                return any(it is None for it in gone)
        return False

    def _is_served_there(self, slice_: Object) -> bool:
        if not relayback.is_ours(slice_, self._identity):
            return False
        key = Key(namespace_of(slice_), endpointslice.service_name(slice_))
        copy, home = self._services.store.get(key), relayback.home_of(slice_)
        return copy is not None and any(
            relay.selects(copy, pod) and is_ready(pod) and not is_deleting(pod)
            for pod in self._pods.store.by_index("namespace", home)
        )

    async def _delete(self, slice_: Object) -> None:
        await self._client.delete(
            ENDPOINT_SLICES, name_of(slice_), namespace=namespace_of(slice_), uid=uid_of(slice_)
        )

    def _say_served(self, name: str, slices: Iterable[Object], *, is_served: bool) -> None:
        namespace = next(
            namespace_of(it) for it in slices if endpointslice.service_name(it) == name
        )
        said = "leads to home's pods" if is_served else "leads to home's pods no more"
        where = about("Service", name, namespace=namespace, cluster="remote")
        changes.info("Service %s/%s in the remote %s", namespace, name, said, extra=where)


def _patch(slice_: Object, desired: Object) -> Object:
    """What the slice lacks. Labels and annotations of others may stay: they bring no endpoint."""
    fields = {key: desired[key] for key in ("endpoints", "ports")}
    owned = {key: desired["metadata"][key] for key in ("labels", "ownerReferences")}
    owned["labels"] = {**(metadata(slice_).get("labels") or {}), **owned["labels"]}
    patch: Object = merge_patch(slice_, {**fields, "metadata": owned})
    return patch
