"""One store of several informers, for a credential that may not read a resource in all
namespaces."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import chain

from sync.base.background_task import background_task
from sync.cache.informer import Informer
from sync.cache.interning import InternPool
from sync.cache.store import Indexer, Key, Store
from sync.cache.store_writer import Handler
from sync.cache.stub import Stub
from sync.kube.api_errors import Forbidden, KubeError
from sync.kube.api_resources import Resource
from sync.kube.client import KubeClient
from translators.object_accessors import Object, name_of, namespace_of

#: Seconds between looks at a namespace that is listed again, in case it is forbidden now.
POLL_SECONDS = 0.2


class NamespacedInformer(Informer):
    """Lists and watches each of ``namespaces`` by an `Informer` of its own; all fill one store. Of
    a cluster-scoped resource, these are the names of its objects (`NamedObjectInformer`).

    It is synced when every namespace is listed, and fails while one of them does: an object that
    the store lacks then does not exist in these namespaces. After that, a namespace that the
    credential may no longer read (it was deleted with its Role, or the Role was) is no failure
    while others can be read; the store keeps its last state.
    """

    def __init__(
        self,
        client: KubeClient,
        resource: Resource,
        *,
        namespaces: Collection[str],
        labels: str = "",
        fields: str = "",
        indexers: Mapping[str, Indexer] | None = None,
        indexed: Iterable[str] | None = None,
        slim: Callable[[Object], Object] | None = None,
        pool: InternPool | None = None,
        shape: str = "",
        stub: Callable[[Object], Stub] | None = None,
        fast_keepalive: bool = False,
    ) -> None:
        super().__init__(client, resource, labels=labels, indexers=indexers, indexed=indexed)

        def part_for(name: str) -> Informer:
            if not resource.namespaced:
                return NamedObjectInformer(
                    client, resource, name, store=self.store, slim=slim, shape=shape
                )
            return Informer(
                client,
                resource,
                namespace=name,
                labels=labels,
                fields=fields,
                store=self.store,
                slim=slim,
                pool=pool,
                shape=shape,
                stub=stub,
                fast_keepalive=fast_keepalive,
            )

        self._parts = {name: part_for(name) for name in namespaces}
        for part in self._parts.values():
            part.on_synced(self._part_synced)

    @property
    def error(self) -> KubeError | None:
        return next((it.error for it in self._failing()), None)

    @property
    def is_complete(self) -> bool:
        return all(part.is_complete for part in self._parts.values())

    @property
    def failing_since(self) -> float | None:
        failing = (it.failing_since for it in self._failing())
        return min((it for it in failing if it is not None), default=None)

    def _failing(self) -> list[Informer]:
        """The parts that count as failures."""
        failing = [it for it in self._parts.values() if it.error is not None]
        return [it for it in failing if not self._is_tolerated(it)]

    def _is_tolerated(self, part: Informer) -> bool:
        """Whether the credential may no longer read this namespace, and may read another one."""
        works = any(it.error is None for it in self._parts.values())
        return isinstance(part.error, Forbidden) and works and self.synced.is_set()

    @property
    def last_contact(self) -> float | None:
        contacts = [it.last_contact for it in self._parts.values()]
        known = [it for it in contacts if it is not None]
        return min(known) if len(known) == len(contacts) else None

    @property
    def resource_version(self) -> str:
        """The oldest version of the namespaces; "" before all are listed."""
        versions = [it.resource_version for it in self._parts.values()]
        return min(versions, key=lambda it: (len(it), it)) if versions else ""

    def on_change(self, handler: Handler) -> None:
        for part in self._parts.values():
            part.on_change(handler)

    def on_state(self, handler: Callable[[Informer], None]) -> None:
        for part in self._parts.values():
            part.on_state(lambda _: handler(self))

    def rewatch(self) -> None:
        for part in self._parts.values():
            part.rewatch()

    def retry_now(self) -> None:
        for part in self._parts.values():
            part.retry_now()

    async def refresh(self) -> None:
        """As `Informer.refresh`, for the namespaces that the credential may read."""
        await asyncio.gather(*map(self._refresh_part, self._parts.values()))

    async def _refresh_part(self, part: Informer) -> None:
        async with background_task(part.refresh(), name=f"refresh-{self.resource}") as task:
            while not task.done() and not self._is_tolerated(part):
                await asyncio.wait([task], timeout=POLL_SECONDS)

    def observe_write(self, obj: Object) -> None:
        self._part_of(obj).observe_write(obj)

    def compact(self, obj: Object, less: Object) -> None:
        self._part_of(obj).compact(obj, less)

    async def list_now(self) -> list[Object]:
        lists = await asyncio.gather(*(it.list_now() for it in self._parts.values()))
        return list(chain.from_iterable(lists))

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for name, part in self._parts.items():
                group.create_task(part.run(), name=f"watch-{self.resource}-{name}")

    def _part_of(self, obj: Object) -> Informer:
        return self._parts[namespace_of(obj) if self.resource.namespaced else name_of(obj)]

    def _part_synced(self) -> None:
        if not self.synced.is_set() and all(it.synced.is_set() for it in self._parts.values()):
            self.synced.set()
            self._synced_handlers()


#: The version of a watch that begins with the current state: that of the object can be so old that
#: the server has compacted it.
_ANY_VERSION = "0"


class NamedObjectInformer(Informer):
    """An informer of one cluster-scoped object, if it exists, for a credential that may not list
    the resource.

    A Role in a namespace authorizes ``get`` and ``watch`` of the Namespace itself: RBAC takes the
    namespace of a request from its path (`pkg/endpoints/request/requestinfo.go` of
    k8s.io/apiserver). So the object is read by a GET of its name, and watched at
    ``/api/v1/watch/namespaces/NAME``, the only path of a watch that has the name; a list or a watch
    with a field selector has none, and needs a ClusterRole.

    The object is read again when a watch ends, which shows a deletion between the GET and the begin
    of the watch.
    """

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
