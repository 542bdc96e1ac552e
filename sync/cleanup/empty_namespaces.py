"""Remote namespaces that are empty again go, if we made them.

A namespace is looked at ``linger`` seconds after the last home pod of this node in it went, then
when the last object of ours in it goes, and at start. Nothing of this home (of any virtual node)
may be in the caches. Then, in this order: the node withdraws its claim (`sync.namespaces.mapping`),
no other virtual node may claim the namespace, and no object may be in it, of whatever resource the
remote serves (`cleanup.contents`; what cannot be listed counts as something). The deletion has the
UID and the resource version that the namespace had without our claim: a claim that came meanwhile
makes it fail. What is kept is looked at again after its next pod, or at the next start.

A foreign namespace, also one that was handed over, is never removed. A pod that comes while the
namespace is going waits (`Namespaces.ensure`) and is made when the namespace's end is seen.
"""

from __future__ import annotations

import asyncio
import logging

from sync.cleanup import inventory
from sync.registration.context import ControllerContext
from sync.registration.declaration import Declaration, Watch
from sync.runtime.controller import Controller
from sync.runtime.log_fields import object_fields
from translators.identity import (
    ANNOTATION_ACCEPTS,
    home_namespace_of,
    is_owned,
    namespace_users,
    origin_of,
)
from translators.objects import HomeNamespace, Object, is_deleting, metadata, name_of, namespace_of
from translators.pods import service_accounts
from translators.relay import reverse

log = logging.getLogger(__name__)
changes = logging.getLogger("cluster-bridge.changes")

#: Looks at once: each asks for some sixty lists.
WORKERS = 1


class EmptyNamespaceController:
    """One key, a home namespace, for the remote namespace that it is mapped to."""

    def __init__(self, context: ControllerContext, *, linger: float) -> None:
        self._client = context.remote
        self._identity = context.identity
        self._namespaces = context.namespaces
        self._remote_namespaces = context.remote_namespaces
        self._home_pods = context.home_pods
        # The informers of everything that this home has in the remote, except namespaces.
        self._owned = [context.remote_pods, *context.copies.values()]
        self._linger = linger
        # When the last pod of each was seen to go, in the loop's time.
        self._since: dict[HomeNamespace, float] = {}
        self.controller: Controller[HomeNamespace] = Controller(
            "namespaces", self._reconcile, workers=WORKERS, kind="Namespace"
        )

    def declare(self) -> Declaration:
        """What the engine runs."""
        return Declaration(
            self.controller.name,
            controller=self.controller,
            watches=[
                Watch(self._home_pods, self.home_pod_changed),
                Watch(self._remote_namespaces, self.namespace_changed),
                *(Watch(informer, self.owned_changed) for informer in self._owned),
            ],
        )

    # -- what changed ----------------------------------------------------------------------

    def home_pod_changed(self, old: Object | None, new: Object | None) -> None:
        """A home pod went, perhaps the last of its namespace."""
        if old is not None and new is None:
            self._since.pop(HomeNamespace(namespace_of(old)), None)
            self._went(HomeNamespace(namespace_of(old)))

    def owned_changed(self, old: Object | None, new: Object | None) -> None:
        """An object of ours in the remote went, perhaps the last one."""
        if old is None or new is not None:
            return
        origin = origin_of(old) or service_accounts.pod_of_token_secret(old)
        home = origin.namespace if origin is not None else reverse.relay_home_namespace(old)
        if home is not None:
            self._went(home)

    def namespace_changed(self, old: Object | None, new: Object | None) -> None:
        """A namespace of this home is seen for the first time: nobody may need it."""
        was_owned = old is not None and is_owned(old, self._identity)
        if new is not None and is_owned(new, self._identity) and not was_owned:
            home = home_namespace_of(new)
            if home is not None:
                self._went(home)

    def _went(self, namespace: HomeNamespace) -> None:
        if not (self.controller.queue.is_paused or self._is_wanted(namespace)):
            now = asyncio.get_running_loop().time()
            left = self._since.setdefault(namespace, now) + self._linger - now
            self.controller.queue.add_after(namespace, max(left, 0))

    def _is_wanted(self, namespace: HomeNamespace) -> bool:
        return self._home_pods.store.has("namespace", namespace)

    # -- reconcile -------------------------------------------------------------------------

    async def _reconcile(self, namespace: HomeNamespace) -> None:
        since = self._since.get(namespace)
        if since is None or self._is_wanted(namespace):
            self._since.pop(namespace, None)
            return  # It comes again after the last pod.
        left = since + self._linger - asyncio.get_running_loop().time()
        if left > 0:
            self.controller.queue.add_after(namespace, left)
            return
        known = self._namespaces.owned(namespace)
        if known is None or not self._may_go(known):
            self._since.pop(namespace, None)
            return
        if self._holds_ours(name_of(known)):
            return  # Its end brings the key back.
        await self._remove_empty(namespace, known, since)

    async def _remove_empty(self, namespace: HomeNamespace, known: Object, since: float) -> None:
        """Deletes the namespace unless somebody uses it, with the claims of other virtual nodes
        and all that the decision rests on read after our own claim is withdrawn."""

        def is_unused() -> bool:
            wanted = self._since.get(namespace) != since or self._is_wanted(namespace)
            return not wanted and not self._holds_ours(name_of(known))

        released = await self._namespaces.remove_user(known, unused=is_unused)
        if released is None:
            return  # Something came meanwhile, or it is gone; an end of either brings the key back.
        kept = await self._reason_to_keep(released)
        if not is_unused():
            return
        if kept:
            log.debug("namespace %s is kept in the remote: %s", name_of(known), kept)
        else:
            await self._namespaces.delete(released)
            fields = object_fields("Namespace", known, cluster="remote")
            changes.info(
                "namespace %s: empty, removed from the remote", name_of(known), extra=fields
            )
        self._since.pop(namespace, None)

    async def _reason_to_keep(self, remote: Object) -> str:
        if not self._may_go(remote):
            return "it is not this home's to delete"
        if users := namespace_users(remote):
            return f"virtual node(s) {', '.join(sorted(users))} use it"
        return await inventory.unmanaged_contents(self._client, name_of(remote))

    def _may_go(self, remote: Object) -> bool:
        handed_over = ANNOTATION_ACCEPTS in (metadata(remote).get("annotations") or {})
        return is_owned(remote, self._identity) and not handed_over and not is_deleting(remote)

    def _holds_ours(self, name: str) -> bool:
        return any(namespace_of(obj) == name for it in self._owned for obj in it.store)
