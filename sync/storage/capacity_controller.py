"""Keeps the CSIStorageCapacity objects of this virtual node at home.

Home's scheduler considers the node for a PVC only if such an object reports enough capacity. An
object is written only when its capacity changes: `SETTLE` seconds after the first of a burst of
changes in the remote, so that a remote whose capacity changes all the time causes few writes. An
object that another client sets back, deletes or creates again and again is written at growing
intervals (`sync.base.repeated_writes`).
"""

from __future__ import annotations

import contextlib

from sync.base.repeated_writes import RepeatedWrites
from sync.cache.informer import Informer
from sync.cache.store import Key
from sync.declaration.controller_context import ControllerContext, StorageInformers
from sync.declaration.controller_declaration import Declaration, Watch
from sync.kube.api_errors import NotFound
from sync.kube.api_resources import CSI_STORAGE_CAPACITIES
from sync.runtime.controller import Controller
from translators.merge_patch import merge_patch
from translators.object_accessors import Object, name_of, uid_of
from translators.ownership_labels import LABEL_NODE
from translators.storage.storage_capacity import (
    NAMESPACE,
    class_of_storage_capacity,
    storage_capacity,
    storage_capacity_name,
)

#: Seconds between a change in the remote and the write that follows from it.
SETTLE = 1.0


class StorageCapacityController:
    """The reconciler of CSIStorageCapacity objects. A key is the name of a StorageClass of home."""

    def __init__(self, context: ControllerContext, storage: StorageInformers) -> None:
        self._account = context.account
        self._identity = context.identity
        self._prepared = context.policy.remote_namespaces
        self._classes = storage.home_classes
        self._remote_classes = storage.remote_classes
        self._own = Informer(
            context.account,
            CSI_STORAGE_CAPACITIES,
            namespace=NAMESPACE,
            labels=f"{LABEL_NODE}={context.identity.node_label}",
        )
        self._remote = Informer(context.remote, CSI_STORAGE_CAPACITIES)
        self._quotas = context.remote_quotas
        # The last object of each class that was written; None for a deletion.
        self._repeated: RepeatedWrites[Key] = RepeatedWrites()
        self.controller: Controller[Key] = Controller(
            "storage-capacity", self._reconcile, workers=1, kind="StorageClass"
        )

    def declare(self) -> Declaration:
        """Returns the declaration for the engine."""
        # Quotas count only where the bridge works in prepared namespaces alone.
        handler = self.remote_changed if self._prepared else None
        return Declaration(
            self.controller.name,
            controller=self.controller,
            watches=[
                Watch(self._classes, self.class_changed),
                Watch(self._own, self.capacity_changed),
                Watch(self._remote, self.remote_changed, replay=False),
                Watch(self._remote_classes, self.remote_changed, replay=False),
                Watch(self._quotas, handler, replay=False),
            ],
        )

    def class_changed(self, old: Object | None, new: Object | None) -> None:
        self.controller.queue.add(Key("", name_of(new or old or {})))

    def capacity_changed(self, old: Object | None, new: Object | None) -> None:
        """Queues the class of an object that another client changed or deleted."""
        self.controller.queue.add(Key("", class_of_storage_capacity(new or old or {})))

    def remote_changed(self, _: Object | None, __: Object | None) -> None:
        """Queues all classes: any of them may depend on what changed in the remote."""
        for storage_class in self._classes.store:
            self.controller.queue.add_after(Key("", name_of(storage_class)), SETTLE)

    async def _reconcile(self, key: Key) -> None:
        name = storage_capacity_name(key.name, self._identity)
        current, wanted = self._own.store.get(Key(NAMESPACE, name)), self._wanted(key)
        if wanted is None:
            is_needed = current is not None
        else:
            is_needed = current is None or bool(merge_patch(current, wanted))
        if not is_needed:
            return
        delayed = self._repeated.delayed(key)
        if delayed is not None and delayed[0] == wanted:
            self.controller.queue.add_after(key, delayed[1])
            return
        await self._write(name, current, wanted)
        self._repeated.sent(NAMESPACE, key, wanted)

    async def _write(self, name: str, current: Object | None, wanted: Object | None) -> None:
        if current is None:
            body = wanted or {}
            made = await self._account.create(CSI_STORAGE_CAPACITIES, body, namespace=NAMESPACE)
            self._own.observe_write(made)
        elif wanted is None:
            await self._account.delete(
                CSI_STORAGE_CAPACITIES, name, namespace=NAMESPACE, uid=uid_of(current)
            )
        else:
            patch = merge_patch(current, wanted)
            with contextlib.suppress(NotFound):  # the deletion queues the class
                changed = await self._account.patch(
                    CSI_STORAGE_CAPACITIES, name, patch, namespace=NAMESPACE
                )
                self._own.observe_write(changed)

    def _wanted(self, key: Key) -> Object | None:
        storage_class = self._classes.store.get(key)
        if storage_class is None:
            return None
        return storage_capacity(
            storage_class,
            self._identity,
            remote_classes=list(self._remote_classes.store),
            remote_capacities=self._remote.store,
            quotas=self._quotas.store,
            namespaces=self._prepared,
        )
