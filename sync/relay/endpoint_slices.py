"""Writes the bridge's EndpointSlices in one cluster.

`EndpointSliceWriter` makes the slices of an informer match the desired ones. It leaves alone a
slice that is being deleted: the end of the deletion queues the key again. Updates and deletions are
conditional on the UID. A slice that another client sets back, deletes or creates again and again is
written at growing intervals (`sync.base.repeated_writes`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence

from sync.base.repeated_writes import RepeatedWrites
from sync.cache.informer import Informer
from sync.cache.store import Key, key_of
from sync.kube.api_errors import AlreadyExists, KubeError
from sync.kube.api_resources import ENDPOINT_SLICES
from sync.kube.client import KubeClient
from sync.runtime.log_fields import changes, name_fields
from translators.merge_patch import merge_patch
from translators.mirror import endpoint_slice
from translators.object_accessors import (
    HomeNamespace,
    Object,
    is_deleting,
    is_ready,
    metadata,
    name_of,
    namespace_of,
    uid_of,
)
from translators.relay import forward_plan, reverse_plan
from translators.virtual_node_identity import Identity

#: Seconds to withdraw slices when the bridge stops.
WITHDRAW_SECONDS = 1.5


class EndpointSliceWriter:
    """Writes the slices of the informer ``slices``."""

    def __init__(self, client: KubeClient, slices: Informer) -> None:
        self._client = client
        self._slices = slices
        # The last write of each slice: a patch, or what became of the slice.
        self._repeated: RepeatedWrites[Key] = RepeatedWrites()

    async def write(self, desired: Mapping[str, Object], present: Sequence[Object]) -> float:
        """Makes ``present`` match ``desired``, which is keyed by name. Returns after how many
        seconds the caller must repeat this, because a slice must not be written yet; 0 if none.
        Raises KubeError."""
        missing, waits = dict(desired), [0.0]
        for slice_ in present:
            wanted = missing.pop(name_of(slice_), None)
            if not is_deleting(slice_):
                waits.append(await self._replace(slice_, wanted))
        for wanted in missing.values():
            if not (wait := self._seconds_left(wanted, "created")):
                await self._create(wanted)
            waits.append(wait)
        return min(filter(None, waits), default=0.0)

    async def _replace(self, slice_: Object, wanted: Object | None) -> float:
        # The addressType is immutable.
        if wanted is None or wanted["addressType"] != slice_.get("addressType"):
            if wait := self._seconds_left(slice_, "deleted"):
                return wait
            await self._delete(slice_)
            self._written(slice_, "deleted")
        elif patch := _patch(slice_, wanted):
            if wait := self._seconds_left(slice_, patch):
                return wait
            meta = {**patch.get("metadata", {}), "uid": uid_of(slice_)}
            changed = await self._client.patch(
                ENDPOINT_SLICES,
                name_of(slice_),
                {**patch, "metadata": meta},
                namespace=namespace_of(slice_),
            )
            self._slices.observe_write(changed)
            self._written(slice_, patch)
        return 0.0

    async def _create(self, wanted: Object) -> None:
        with contextlib.suppress(AlreadyExists):  # the cache lags; the event queues the key
            created = await self._client.create(
                ENDPOINT_SLICES, wanted, namespace=namespace_of(wanted)
            )
            self._written(wanted, "created")
            self._slices.observe_write(created)

    def _seconds_left(self, slice_: Object, write: Object | str) -> float:
        """Seconds until this write, which was repeated, may be sent again; 0 for now."""
        delayed = self._repeated.delayed(key_of(slice_))
        return delayed[1] if delayed is not None and delayed[0] == write else 0.0

    def _written(self, slice_: Object, write: Object | str) -> None:
        self._repeated.sent(namespace_of(slice_), key_of(slice_), write)

    async def withdraw(
        self,
        should_withdraw: Callable[[Object], bool] = lambda _: True,
        patch_for: Callable[[Object], Object | None] = lambda _: None,
    ) -> bool:
        """Deletes slices when the bridge stops, or applies the patch that ``patch_for`` returns;
        gives up after `WITHDRAW_SECONDS`. Returns whether a slice was withdrawn. If another bridge
        serves the node, its fence rejects these writes (`sync.kube.leader_write_fence`)."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(WITHDRAW_SECONDS):
                slices = [it for it in await self._published() if should_withdraw(it)]
                results = await asyncio.gather(
                    *(self._withdraw(it, patch_for(it)) for it in slices), return_exceptions=True
                )
                return any(it is None for it in results)
        return False

    async def _published(self) -> list[Object]:
        """All slices, as the server lists them: the cache may lack one whose create request was
        interrupted. If the list fails, those in the cache."""
        try:
            return await self._slices.list_now()
        except KubeError:
            return list(self._slices.store)

    async def _withdraw(self, slice_: Object, patch: Object | None) -> None:
        if patch is None:
            await self._delete(slice_)
            return
        body = {**patch, "metadata": {"uid": uid_of(slice_)}}
        await self._client.patch(
            ENDPOINT_SLICES, name_of(slice_), body, namespace=namespace_of(slice_)
        )

    async def _delete(self, slice_: Object) -> None:
        await self._client.delete(
            ENDPOINT_SLICES, name_of(slice_), namespace=namespace_of(slice_), uid=uid_of(slice_)
        )


def _patch(slice_: Object, desired: Object) -> Object:
    """The patch of a slice. Other clients' labels and annotations stay: they add no endpoint."""
    fields = {key: desired[key] for key in ("endpoints", "ports")}
    owned = {key: desired["metadata"][key] for key in ("labels", "ownerReferences")}
    owned["labels"] = {**(metadata(slice_).get("labels") or {}), **owned["labels"]}
    patch: Object = merge_patch(slice_, {**fields, "metadata": owned})
    return patch


class ReverseSlices:
    """The bridge's slices in the remote, which lead to relay agents. ``slices`` and ``services``
    are informers of this home's copies, ``pods`` of its pods there, with the engine's indexers."""

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
        slices = self._slices.store.by_index("relay", home)
        return [it for it in slices if reverse_plan.is_own_relay_object(it, self._identity)]

    async def write(self, desired: Mapping[str, Object], present: Sequence[Object]) -> float:
        """Makes ``present`` match ``desired`` and logs which Services change. Returns and raises as
        `EndpointSliceWriter.write`."""
        wait = await self._writer.write(desired, present)
        before = {endpoint_slice.service_name(it) for it in present}
        after = {endpoint_slice.service_name(it) for it in desired.values()}
        for name in sorted(before ^ after):
            _log_change(name, [*present, *desired.values()], is_served=name in after)
        return wait

    async def withdraw(self) -> bool:
        """Withdraws the slices of Services that pods in the remote serve as well."""
        return await self._writer.withdraw(self._is_served_in_remote)

    def _is_served_in_remote(self, slice_: Object) -> bool:
        if not reverse_plan.is_own_relay_object(slice_, self._identity):
            return False
        key = Key(namespace_of(slice_), endpoint_slice.service_name(slice_))
        copy, home = self._services.store.get(key), reverse_plan.relay_home_namespace(slice_)
        return copy is not None and any(
            forward_plan.selects_pod(copy, pod) and is_ready(pod) and not is_deleting(pod)
            for pod in self._pods.store.by_index("namespace", home)
        )


def _log_change(name: str, slices: Iterable[Object], *, is_served: bool) -> None:
    namespace = next(namespace_of(it) for it in slices if endpoint_slice.service_name(it) == name)
    change = "now has endpoints at home" if is_served else "no longer has endpoints at home"
    fields = name_fields("Service", name, namespace=namespace, cluster="remote")
    changes.info("Service %s/%s in the remote %s", namespace, name, change, extra=fields)
