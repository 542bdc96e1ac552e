"""The remote namespaces that stand for home's: made when first needed, never taken from others.

`Namespaces.ensure` answers from its cache where it can. A namespace of that name which is not
ours is refused (`Waiting`), unless its owners handed it over with an annotation
(`naming.ANNOTATION_ACCEPTS`); what was handed over is asked again after `ACCEPTED_FOR` seconds.
One that `Namespaces.remove` deletes is not given out from the moment of the request on.

Several virtual nodes of one home share a remote namespace, and any of them may delete it when it is
empty. Each claims it, by an annotation, before the first object that it creates there. To delete it
a node withdraws its own claim (`Namespaces.release`), which says who else claims it, looks what is
in it, and deletes it on condition that it has not changed since then. So a claim is either seen, or
it is a change and the deletion fails, or it meets a namespace that is already being deleted.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable

import cachetools

from sync.controller import Waiting
from sync.informer import Informer
from sync.kube.client import KubeClient
from sync.kube.errors import AlreadyExists, Conflict, KubeError, NotFound
from sync.kube.resources import NAMESPACES
from sync.store import Key
from translators import naming
from translators.naming import Identity
from translators.types import (
    HomeNamespace,
    Object,
    RemoteNamespace,
    is_deleting,
    name_of,
    uid_of,
)

#: Seconds for which a namespace that was handed over is not asked about again.
ACCEPTED_FOR = 60.0


class Namespaces:
    """``informer`` watches the remote's namespaces, at least those that this home owns."""

    def __init__(self, client: KubeClient, informer: Informer, identity: Identity) -> None:
        self._client = client
        self._informer = informer
        self._identity = identity
        self._accepted: cachetools.TTLCache[str, bool] = cachetools.TTLCache(1024, ACCEPTED_FOR)
        # UIDs of those that we delete: the cache shows it only a moment later.
        self._removed: cachetools.LRUCache[str, bool] = cachetools.LRUCache(1024)
        # A burst of pods comes to a namespace that is not there yet: one of them makes it.
        self._making: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def ensure(self, namespace: HomeNamespace) -> RemoteNamespace:
        """The remote namespace for ``namespace``, which exists and may be used.

        Raises Waiting where it is foreign or being deleted, and what the API server raises.
        """
        name = self._identity.remote_namespace(namespace)
        async with self._making[name]:
            if name in self._accepted:
                return name
            known = self.known(namespace)
            if known is None:
                known = await self._create(namespace, name)
            if not self._is_going(known) and self._lacks_claim(known):
                known = await self._claim(known)
        if self._is_going(known):
            raise _going(name)
        return name

    def known(self, namespace: HomeNamespace) -> Object | None:
        """The namespace of ours that stands for ``namespace``, if it is there."""
        name = self._identity.remote_namespace(namespace)
        found = self._informer.store.get(Key("", name))
        return found if found is not None and naming.is_owned(found, self._identity) else None

    def is_made(self, namespace: HomeNamespace) -> bool:
        """Whether the bridge made the namespace that stands for ``namespace``. Nobody but the
        remote's administrators is expected to write there; into one that was handed over, the
        remote's tenants may write too."""
        return self.known(namespace) is not None

    async def release(self, remote: Object, *, unused: Callable[[], bool]) -> Object | None:
        """Withdraws this node's claim of a namespace of ours. Returns the namespace as it is then;
        None where it is gone, or where ``unused`` no longer holds. Raises Waiting and KubeError."""
        async with self._making[name_of(remote)]:
            if not unused():
                return None
            try:
                return await self._annotate(remote, None)
            except NotFound:
                return None

    async def remove(self, remote: Object) -> None:
        """Deletes a namespace of ours as `release` returned it. Raises Waiting where it has changed
        since, and KubeError."""
        self._removed[uid_of(remote)] = True
        try:
            await self._client.delete_unchanged(NAMESPACES, remote)
        except KubeError as error:
            # Where it was deleted all the same, the informer tells.
            self._removed.pop(uid_of(remote), None)
            if isinstance(error, Conflict):
                raise Waiting("RemoteNamespaceChanged", error.message) from error
            raise

    def _is_going(self, remote: Object) -> bool:
        return is_deleting(remote) or uid_of(remote) in self._removed

    def _lacks_claim(self, remote: Object) -> bool:
        claimed = self._identity.node_label in naming.claimants(remote)
        return naming.is_owned(remote, self._identity) and not claimed

    async def _claim(self, remote: Object) -> Object:
        """Raises Waiting where the namespace is gone, and KubeError."""
        try:
            return await self._annotate(remote, "true")
        except NotFound as error:
            raise _going(name_of(remote)) from error

    async def _annotate(self, remote: Object, claim: str | None) -> Object:
        annotations = {naming.claim_of(self._identity.node_label): claim}
        patch: Object = {"metadata": {"uid": uid_of(remote), "annotations": annotations}}
        try:
            changed = await self._client.patch(NAMESPACES, name_of(remote), patch)
        except Conflict as error:  # Another one has the name by now, or it is admission's.
            raise Waiting("RemoteNamespaceChanged", error.message) from error
        self._informer.observe(changed)
        return changed

    async def _create(self, namespace: HomeNamespace, name: RemoteNamespace) -> Object:
        body: Object = {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {
                "name": name,
                "labels": naming.owner_labels(self._identity),
                "annotations": {
                    naming.ANNOTATION_HOME_NAMESPACE: namespace,
                    naming.claim_of(self._identity.node_label): "true",
                },
            },
        }
        try:
            made = await self._client.create(NAMESPACES, body)
        except AlreadyExists:
            made = await self._client.get(NAMESPACES, name)
        if naming.is_owned(made, self._identity):
            self._informer.observe(made)
        elif naming.accepts(made, self._identity):
            self._accepted[name] = True
        else:
            raise Waiting(
                "RemoteClash",
                f"namespace {name} exists in the remote cluster and is not this bridge's; join "
                "with another --namespace-template, or hand it over: kubectl annotate namespace "
                f"{name} {naming.ANNOTATION_ACCEPTS}={self._identity.home_name}",
            )
        return made


def _going(name: str) -> Waiting:
    return Waiting(
        "RemoteNamespaceTerminating",
        f"namespace {name} is being deleted in the remote cluster; "
        "it is made again when it is gone",
    )
