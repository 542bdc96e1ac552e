"""Copies the PodDisruptionBudgets of home namespaces that have pods on the virtual node.

The example of docs/development/add-a-controller.md, which quotes this file.
"""

from __future__ import annotations

import logging

from sync.cache.informer import Informer
from sync.cache.store import Key, key_of
from sync.declaration.controller_context import ControllerContext
from sync.declaration.controller_declaration import Declaration, HomeWatch, Watch
from sync.kube.api_resources import POD_DISRUPTION_BUDGETS
from sync.runtime.controller import Controller
from translators.merge_patch import merge_patch
from translators.object_accessors import HomeNamespace, Object, is_deleting, name_of, uid_of
from translators.ownership_labels import home_selector, origin_of, remote_metadata
from translators.virtual_node_identity import Identity

changes = logging.getLogger("cluster-bridge.changes")


def to_remote(home: Object, identity: Identity) -> Object:
    """The remote PodDisruptionBudget. Labels of pods are the same in both clusters."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": remote_metadata(home, identity),
        "spec": home["spec"],
    }


class BudgetController:
    """One key, namespace and name at home, for a budget and its copy."""

    def __init__(self, context: ControllerContext) -> None:
        self._client = context.remote
        self._identity = context.identity
        self._home_pods = context.home_pods
        self._home_watches = context.watches
        self._namespaces = context.namespaces
        self._copies = Informer(
            context.remote, POD_DISRUPTION_BUDGETS, labels=home_selector(context.identity)
        )
        self.controller: Controller[Key] = Controller(
            "budgets", self._reconcile, workers=2, kind="PodDisruptionBudget"
        )

    def declare(self) -> Declaration:
        """Returns the declaration for the engine."""
        return Declaration(
            self.controller.name,
            controller=self.controller,
            watches=[
                Watch(self._copies, self.copy_changed),
                Watch(self._home_pods, self.home_pod_changed),
            ],
            home_watches=[HomeWatch(POD_DISRUPTION_BUDGETS, self.budget_changed)],
            requeue_namespace=self.requeue_namespace,
        )

    def budget_changed(self, old: Object | None, new: Object | None) -> None:
        """Queues a budget of home."""
        self.controller.queue.add(key_of(new or old or {}))

    def copy_changed(self, old: Object | None, new: Object | None) -> None:
        """Queues the budget that a copy stands for."""
        origin = origin_of(new or old or {})
        if origin is not None:
            self.controller.queue.add(Key(origin.namespace, origin.name))

    def home_pod_changed(self, old: Object | None, new: Object | None) -> None:
        """Requeues the namespace of a deleted pod: its last pod may be gone."""
        if old is not None and new is None:
            self.requeue_namespace(HomeNamespace(key_of(old).namespace))

    def requeue_namespace(self, namespace: HomeNamespace) -> None:
        """Queues all budgets of a home namespace, and all copies for it."""
        watch = self._home_watches.get(namespace)
        if watch is not None:
            for home in watch.informers[POD_DISRUPTION_BUDGETS].store:
                self.budget_changed(None, home)
        for copy in self._copies.store:
            origin = origin_of(copy)
            if origin is not None and origin.namespace == namespace:
                self.copy_changed(None, copy)

    async def _reconcile(self, key: Key) -> None:
        namespace = HomeNamespace(key.namespace)
        has_pods = self._home_pods.store.has("namespace", namespace)
        watch = self._home_watches.get(namespace)
        if watch is None and has_pods:
            return  # `requeue_namespace` brings the key back when the namespace is listed.
        home = watch.informers[POD_DISRUPTION_BUDGETS].store.get(key) if watch is not None else None
        copy = self._copies.store.get(Key(self._identity.remote_namespace(namespace), key.name))
        if home is not None and has_pods:
            await self._write(namespace, home, copy)
        elif copy is not None and not is_deleting(copy):
            await self._client.delete(
                POD_DISRUPTION_BUDGETS, key.name, namespace=key_of(copy).namespace, uid=uid_of(copy)
            )
            changes.info("PodDisruptionBudget %s: deleted in the remote", key)

    async def _write(self, namespace: HomeNamespace, home: Object, copy: Object | None) -> None:
        remote_namespace = await self._namespaces.ensure(namespace)
        desired = to_remote(home, self._identity)
        if copy is None:
            written = await self._client.create(
                POD_DISRUPTION_BUDGETS, desired, namespace=remote_namespace
            )
        elif patch := merge_patch(copy, desired, exact=frozenset({"matchLabels"})):
            patch.setdefault("metadata", {})["uid"] = uid_of(copy)
            written = await self._client.patch(
                POD_DISRUPTION_BUDGETS, name_of(copy), patch, namespace=remote_namespace
            )
        else:
            return
        self._copies.observe_write(written)
