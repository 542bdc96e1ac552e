"""An informer of one cluster-scoped object, for a credential that may not list the resource.

A Role in a namespace authorizes ``get`` and ``watch`` of the Namespace itself: RBAC takes the
namespace of a request from its path (`pkg/endpoints/request/requestinfo.go` of k8s.io/apiserver).
So the object is read by a GET of its name, and watched at ``/api/v1/watch/namespaces/NAME``, the
only path of a watch that has the name; a list or a watch with a field selector has none, and needs
a ClusterRole.
"""

from __future__ import annotations

from collections.abc import Callable

from sync.cache.informer import Informer
from sync.cache.store import Key, Store
from sync.kube.api_resources import Resource
from sync.kube.client import KubeClient
from translators.object_accessors import Object

#: The version of a watch that begins with the current state: that of the object can be so old that
#: the server has compacted it.
_ANY_VERSION = "0"


class NamedObjectInformer(Informer):
    """The object of one name, if it exists. It is read again when a watch ends, which shows a
    deletion between the GET and the begin of the watch."""

    _lists_after_watch = True

    def __init__(
        self,
        client: KubeClient,
        resource: Resource,
        name: str,
        *,
        store: Store | None = None,
        slim: Callable[[Object], Object] | None = None,
        shape: str = "",
    ) -> None:
        prefix, _, plural = resource.path().rpartition("/")
        super().__init__(
            client,
            resource,
            store=store,
            slim=slim,
            shape=shape,
            watch_path=f"{prefix}/watch/{plural}/{name}",
        )
        self._name = name

    async def list_now(self) -> list[Object]:
        found = await self.client.find(self.resource, self._name)
        return [] if found is None else [found]

    async def _list(self) -> str:
        self._watched = False
        self.client.metrics.lists[str(self.resource)] += 1
        found = await self.list_now()
        key = Key("", self._name)
        for obj in found:
            self._writer.put(obj, allow_older=True)
        known = self.store.get(key)
        if not found and known is not None:
            self._writer.remove(key, known)
        self._listed()
        return _ANY_VERSION
