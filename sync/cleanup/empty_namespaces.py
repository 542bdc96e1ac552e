"""Deletes remote namespaces that this home created and that are empty again.

A namespace is checked at start, ``linger`` seconds after the last home pod of this node in it was
deleted, and when the last object of this home in it is deleted:

1. The caches must contain no object of this home, of any virtual node, in the namespace.
2. The node removes itself as a user (`sync.namespaces.remote_namespace_creation`).
3. There must be no reason to keep the namespace (`remote_inventory.reason_to_keep`).
4. The deletion requires the UID and the resourceVersion that the namespace had after step 2, so
   that it fails if a user was added meanwhile.

A PVC is such an object, and one that the bridge created is unmanaged for step 3 as well: no
namespace with data is deleted.

A namespace that is kept is checked again after its next pod, or at the next start. An unmanaged or
granted namespace is never deleted. A pod for which the namespace is still terminating is created
after the end of that deletion.
"""

from __future__ import annotations

import asyncio
import logging

from sync.cleanup import remote_inventory
from sync.declaration.controller_context import ControllerContext
from sync.declaration.controller_declaration import Declaration, Watch
from sync.runtime.controller import Controller
from sync.runtime.log_fields import changes, object_fields
from translators.object_accessors import (
    HomeNamespace,
    Object,
    is_deleting,
    metadata,
    name_of,
    namespace_of,
)
from translators.ownership_labels import ANNOTATION_ACCEPTS, home_namespace_of, is_owned, origin_of
from translators.pods import service_accounts
from translators.relay import reverse_plan
from translators.storage.identifiers import selected_node

log = logging.getLogger(__name__)

#: Checks at once: each sends about sixty lists.
WORKERS = 1


class EmptyNamespaceController:
    """A key is a home namespace; it stands for the remote namespace to which it is mapped."""

    def __init__(self, context: ControllerContext, *, linger: float) -> None:
        self._client = context.remote
        self._identity = context.identity
        self._namespaces = context.namespaces
        self._remote_namespaces = context.remote_namespaces
        self._home_pods = context.home_pods
        # The informers of all objects of this home in the remote, except namespaces.
        self._indexed = [context.remote_pods, *context.copies.values()]
        claims = [context.storage.remote_claims] if context.storage is not None else []
        self._owned = [*self._indexed, *claims]
        self._remote_claims = claims
        self._home_claims = context.storage.home_claims if context.storage is not None else None
        self._linger = linger
        # When the last pod of each was deleted (the loop's time).
        self._since: dict[HomeNamespace, float] = {}
        self.controller: Controller[HomeNamespace] = Controller(
            "namespaces", self._reconcile, workers=WORKERS, kind="Namespace"
        )

    def declare(self) -> Declaration:
        return Declaration(
            self.controller.name,
            controller=self.controller,
            watches=[
                Watch(self._home_pods, self.home_pod_changed),
                Watch(self._remote_namespaces, self.namespace_changed),
                *(Watch(informer, self.owned_changed) for informer in self._owned),
                *([Watch(self._home_claims, self.home_claim_changed)] if self._home_claims else ()),
            ],
        )

    def home_pod_changed(self, old: Object | None, new: Object | None) -> None:
        if old is not None and new is None:
            self._since.pop(HomeNamespace(namespace_of(old)), None)
            self._check_later(HomeNamespace(namespace_of(old)))

    def home_claim_changed(self, old: Object | None, new: Object | None) -> None:
        """Checks a namespace whose PVC home no longer wants on this node."""
        node = self._identity.node
        if old is not None and selected_node(old) == node and selected_node(new or {}) != node:
            namespace = HomeNamespace(namespace_of(old))
            self._since.pop(namespace, None)
            self._check_later(namespace)

    def owned_changed(self, old: Object | None, new: Object | None) -> None:
        if old is None or new is not None:
            return
        origin = origin_of(old) or service_accounts.pod_of_token_secret(old)
        home = origin.namespace if origin is not None else reverse_plan.relay_home_namespace(old)
        if home is not None:
            self._check_later(home)

    def namespace_changed(self, old: Object | None, new: Object | None) -> None:
        """Queues a namespace that the cache first shows with this home's labels."""
        was_owned = old is not None and is_owned(old, self._identity)
        if new is not None and is_owned(new, self._identity) and not was_owned:
            home = home_namespace_of(new)
            if home is not None:
                self._check_later(home)

    def _check_later(self, namespace: HomeNamespace) -> None:
        if not (self.controller.queue.is_paused or self._has_pods(namespace)):
            now = asyncio.get_running_loop().time()
            seconds = self._since.setdefault(namespace, now) + self._linger - now
            self.controller.queue.add_after(namespace, max(seconds, 0))

    def _has_pods(self, namespace: HomeNamespace) -> bool:
        """Whether the namespace has pods on the node, or PVCs for which the node is selected: their
        pods follow."""
        has_pods = self._home_pods.store.has("namespace", namespace)
        claims = self._home_claims
        return has_pods or (claims is not None and claims.store.has("namespace", namespace))

    async def _reconcile(self, namespace: HomeNamespace) -> None:
        since = self._since.get(namespace)
        if since is None or self._has_pods(namespace):
            self._since.pop(namespace, None)
            return  # The deletion of the last pod queues it again.
        seconds = since + self._linger - asyncio.get_running_loop().time()
        if seconds > 0:
            self.controller.queue.add_after(namespace, seconds)
            return
        remote = self._namespaces.owned(namespace)
        if remote is None or not self._may_delete(remote):
            self._since.pop(namespace, None)
            return
        if self._has_own_objects(name_of(remote)):
            return  # The deletion of the last object queues it again.
        await self._remove_empty(namespace, remote, since)

    async def _remove_empty(self, namespace: HomeNamespace, remote: Object, since: float) -> None:
        """Deletes the namespace unless it is used. Whatever the decision depends on is read after
        this node is removed as a user."""

        def is_unused() -> bool:
            is_needed = self._since.get(namespace) != since or self._has_pods(namespace)
            return not is_needed and not self._has_own_objects(name_of(remote))

        released = await self._namespaces.remove_user(remote, unused=is_unused)
        if released is None:
            return  # In use again, or already deleted; the next deletion queues it again.
        reason = "it is not managed by this home"
        if self._may_delete(released):
            reason = await remote_inventory.reason_to_keep(self._client, released)
        if not is_unused():
            return
        if reason:
            log.debug("namespace %s: kept in the remote: %s", name_of(remote), reason)
        else:
            await self._namespaces.delete(released)
            fields = object_fields("Namespace", remote, cluster="remote")
            changes.info(
                "namespace %s: empty, deleted in the remote", name_of(remote), extra=fields
            )
        self._since.pop(namespace, None)

    def _may_delete(self, remote: Object) -> bool:
        is_granted = ANNOTATION_ACCEPTS in (metadata(remote).get("annotations") or {})
        return is_owned(remote, self._identity) and not is_granted and not is_deleting(remote)

    def _has_own_objects(self, name: str) -> bool:
        if any(informer.store.has("place", name) for informer in self._indexed):
            return True
        return any(
            namespace_of(obj) == name for claims in self._remote_claims for obj in claims.store
        )
