"""Watches of Secrets by their names, for a credential that may read these alone."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable

from sync.cache.informer import Informer
from sync.cache.store import Key
from sync.kube.api_errors import KubeError
from sync.kube.api_resources import SECRETS
from sync.kube.client import KubeClient
from translators.object_accessors import Object

#: Seconds for the first list of a Secret.
LIST_SECONDS = 5.0

#: A Secret, None if there is none, or why it cannot be read.
FoundSecret = Object | KubeError | None


class SecretWatches:
    """Secrets of one namespace, each watched by its name. ``wake`` is set after each change."""

    def __init__(
        self, home: KubeClient, namespace: str, group: asyncio.TaskGroup, wake: asyncio.Event
    ) -> None:
        self._home = home
        self._namespace = namespace
        self._group = group
        self._wake = wake
        self._followed: dict[str, tuple[Informer, asyncio.Task[None]]] = {}

    async def follow(self, names: Iterable[str]) -> dict[str, FoundSecret]:
        """The Secrets, by name."""
        wanted = {it for it in names if it}
        for name in self._followed.keys() - wanted:
            self._followed.pop(name)[1].cancel()
        for name in wanted - self._followed.keys():
            informer = Informer(
                self._home, SECRETS, namespace=self._namespace, fields=f"metadata.name={name}"
            )
            informer.on_change(lambda _old, _new: self._wake.set())
            informer.on_synced(self._wake.set)
            task = self._group.create_task(informer.run(), name=f"secret-{name}")
            self._followed[name] = (informer, task)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LIST_SECONDS):
                await asyncio.gather(*(it.synced.wait() for it, _ in self._followed.values()))
        found: dict[str, FoundSecret] = {}
        for name, (informer, _) in self._followed.items():
            secret = informer.store.get(Key(self._namespace, name))
            found[name] = secret if informer.synced.is_set() else informer.error
        return found
