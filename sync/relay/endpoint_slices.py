"""Has an API server's EndpointSlices of ours be those that are wanted, and no others.

One informer's slices. A slice that is being deleted is left alone: its end is an event, and the key
comes again. Every write names the UID that it means.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence

from sync.cache.informer import Informer
from sync.kube.client import KubeClient
from sync.kube.errors import AlreadyExists, KubeError
from sync.kube.resources import ENDPOINT_SLICES
from translators.merge_patch import merge_patch
from translators.objects import Object, is_deleting, metadata, name_of, namespace_of, uid_of

#: Seconds for the removal of what is published when the bridge stops.
WITHDRAW_SECONDS = 1.5


class EndpointSliceWriter:
    """Writes what ``slices`` is the informer of."""

    def __init__(self, client: KubeClient, slices: Informer) -> None:
        self._client = client
        self._slices = slices

    async def write(self, wanted: Mapping[str, Object], present: Sequence[Object]) -> None:
        """Has ``present`` become ``wanted``, which is by name."""
        left = dict(wanted)
        for slice_ in present:
            desired = left.pop(name_of(slice_), None)
            if is_deleting(slice_):
                continue
            # Its addressType cannot be changed.
            if desired is None or desired["addressType"] != slice_.get("addressType"):
                await self._delete(slice_)
            elif patch := _patch(slice_, desired):
                patch.setdefault("metadata", {})["uid"] = uid_of(slice_)
                changed = await self._client.patch(
                    ENDPOINT_SLICES, name_of(slice_), patch, namespace=namespace_of(slice_)
                )
                self._slices.observe_write(changed)
        for desired in left.values():
            with contextlib.suppress(AlreadyExists):  # The cache lags; its event brings the key.
                made = await self._client.create(
                    ENDPOINT_SLICES, desired, namespace=namespace_of(desired)
                )
                self._slices.observe_write(made)

    async def withdraw(
        self,
        which: Callable[[Object], bool] = lambda _: True,
        left: Callable[[Object], Object | None] = lambda _: None,
    ) -> bool:
        """Takes out these slices, when the bridge stops; whether there were any. ``left``: what is
        written over one instead. Another bridge's are left to it: then no write is let through
        (`sync.kube.write_fence`)."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(WITHDRAW_SECONDS):
                ours = [it for it in await self._published() if which(it)]
                gone = await asyncio.gather(
                    *(self._take_out(it, left(it)) for it in ours), return_exceptions=True
                )
                return any(it is None for it in gone)
        return False

    async def _published(self) -> list[Object]:
        """All, as the server has them: of one that was being written when the bridge was asked to
        stop no answer has come."""
        try:
            return (await self._client.list(ENDPOINT_SLICES, labels=self._slices.labels)).items
        except KubeError:
            return list(self._slices.store)

    async def _take_out(self, slice_: Object, left: Object | None) -> None:
        if left is None:
            await self._delete(slice_)
            return
        patch = {**left, "metadata": {"uid": uid_of(slice_)}}
        await self._client.patch(
            ENDPOINT_SLICES, name_of(slice_), patch, namespace=namespace_of(slice_)
        )

    async def _delete(self, slice_: Object) -> None:
        await self._client.delete(
            ENDPOINT_SLICES, name_of(slice_), namespace=namespace_of(slice_), uid=uid_of(slice_)
        )


def _patch(slice_: Object, desired: Object) -> Object:
    """What the slice lacks. Labels and annotations of others may stay: they bring no endpoint."""
    fields = {key: desired[key] for key in ("endpoints", "ports")}
    owned = {key: desired["metadata"][key] for key in ("labels", "ownerReferences")}
    owned["labels"] = {**(metadata(slice_).get("labels") or {}), **owned["labels"]}
    patch: Object = merge_patch(slice_, {**fields, "metadata": owned})
    return patch
