"""An informer of one resource in some namespaces, for a credential that may not read others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import chain

from sync.cache.informer import Informer
from sync.cache.store import Indexer
from sync.cache.store_writer import Handler
from sync.kube.api_errors import KubeError
from sync.kube.api_resources import Resource
from sync.kube.client import KubeClient
from translators.object_accessors import Object, namespace_of


class NamespacedInformer(Informer):
    """Lists and watches each namespace by an `Informer` of its own; all fill one store.

    It is synced when every namespace is listed, and fails while one of them does: an object that
    the store lacks then does not exist in these namespaces.
    """

    def __init__(
        self,
        client: KubeClient,
        resource: Resource,
        *,
        namespaces: Collection[str],
        labels: str = "",
        indexers: Mapping[str, Indexer] | None = None,
        indexed: Iterable[str] | None = None,
    ) -> None:
        super().__init__(client, resource, labels=labels, indexers=indexers, indexed=indexed)
        self._parts = {
            namespace: Informer(
                client, resource, namespace=namespace, labels=labels, store=self.store
            )
            for namespace in namespaces
        }
        for part in self._parts.values():
            part.on_synced(self._part_synced)

    @property
    def error(self) -> KubeError | None:
        return next((it.error for it in self._parts.values() if it.error is not None), None)

    @property
    def failing_since(self) -> float | None:
        failing = (it.failing_since for it in self._parts.values())
        return min((it for it in failing if it is not None), default=None)

    @property
    def last_contact(self) -> float | None:
        contacts = [it.last_contact for it in self._parts.values()]
        known = [it for it in contacts if it is not None]
        return min(known) if len(known) == len(contacts) else None

    @property
    def resource_version(self) -> str:
        """Empty: each namespace has a version of its own."""
        return ""

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
        await asyncio.gather(*(it.refresh() for it in self._parts.values()))

    def observe_write(self, obj: Object) -> None:
        self._parts[namespace_of(obj)].observe_write(obj)

    async def list_now(self) -> list[Object]:
        lists = await asyncio.gather(*(it.list_now() for it in self._parts.values()))
        return list(chain.from_iterable(lists))

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for namespace, part in self._parts.items():
                group.create_task(part.run(), name=f"watch-{self.resource}-{namespace}")

    def _part_synced(self) -> None:
        if not self.synced.is_set() and all(it.synced.is_set() for it in self._parts.values()):
            self.synced.set()
            self._synced_handlers()
