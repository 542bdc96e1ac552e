"""The remote namespaces that stand for home's: made when first needed, never taken from others.

`Namespaces.ensure` answers from its cache where it can. A namespace of that name which is not
ours is refused (`Waiting`), unless its owners handed it over with an annotation
(`naming.ANNOTATION_ACCEPTS`); what was handed over is asked again after `ACCEPTED_FOR` seconds.
One that `Namespaces.remove` deletes is not given out from the moment of the request on.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict

import cachetools

from sync.controller import Waiting
from sync.informer import Informer
from sync.kube.client import KubeClient
from sync.kube.errors import AlreadyExists, KubeError
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
        if is_deleting(known) or uid_of(known) in self._removed:
            raise Waiting(
                "RemoteNamespaceTerminating",
                f"namespace {name} is being deleted in the remote cluster; "
                "it is made again when it is gone",
            )
        return name

    def known(self, namespace: HomeNamespace) -> Object | None:
        """The namespace of ours that stands for ``namespace``, if it is there."""
        name = self._identity.remote_namespace(namespace)
        found = self._informer.store.get(Key("", name))
        return found if found is not None and naming.is_owned(found, self._identity) else None

    async def remove(self, remote: Object) -> None:
        """Deletes a namespace of ours. Raises what the API server raises."""
        self._removed[uid_of(remote)] = True
        try:
            await self._client.delete(NAMESPACES, name_of(remote), uid=uid_of(remote))
        except KubeError:
            # Where it was deleted all the same, the informer tells.
            self._removed.pop(uid_of(remote), None)
            raise

    async def _create(self, namespace: HomeNamespace, name: RemoteNamespace) -> Object:
        body: Object = {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {
                "name": name,
                "labels": naming.owner_labels(self._identity),
                "annotations": {naming.ANNOTATION_HOME_NAMESPACE: namespace},
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
