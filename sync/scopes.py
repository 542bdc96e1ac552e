"""What the bridge watches of home's namespaces: only those that have pods on the virtual node.

For each such namespace there is a `Scope`: informers of its ConfigMaps, Secrets and Services, and
of its EndpointSlices where home's addresses mean something in the remote; and ``beside`` them what
else goes on as long, for which nobody waits. Nothing of any other namespace is read. A scope ends
`LINGER` seconds after its last pod, so that a rollout or a job that comes every few seconds does
not list the namespace each time.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any

from sync.informer import Informer
from sync.kube.client import KubeClient
from sync.kube.resources import CONFIG_MAPS, ENDPOINT_SLICES, SECRETS, SERVICES, Resource
from sync.store import Indexer
from translators import endpointslice
from translators.policy import Network
from translators.types import HomeNamespace, Object

#: Seconds that a namespace is watched after its last pod.
LINGER = 60.0
#: What is watched for each kind of network: what pods refer to, and what refers to pods.
SCOPED: Mapping[Network, tuple[Resource, ...]] = {
    "flat": (CONFIG_MAPS, SECRETS, SERVICES, ENDPOINT_SLICES),
    "none": (CONFIG_MAPS, SECRETS, SERVICES),
}
#: How the objects of a kind are looked up, other than by name.
_INDEXERS: Mapping[Resource, Mapping[str, Indexer]] = {
    ENDPOINT_SLICES: {"service": lambda slice_: (endpointslice.service_name(slice_),)}
}

#: Runs until cancelled, and raises nothing else.
Beside = Callable[[HomeNamespace], Coroutine[Any, Any, None]]


class Scope:
    """The informers of one home namespace."""

    def __init__(
        self, client: KubeClient, namespace: HomeNamespace, kinds: Iterable[Resource]
    ) -> None:
        self.namespace = namespace
        self.informers: Mapping[Resource, Informer] = {
            kind: Informer(client, kind, namespace=namespace, indexers=_INDEXERS.get(kind))
            for kind in kinds
        }

    @property
    def synced(self) -> bool:
        """Whether each informer has had its first full list."""
        return all(informer.synced.is_set() for informer in self.informers.values())

    async def run(self, on_synced: Callable[[HomeNamespace], None], beside: Beside | None) -> None:
        """Watches until cancelled; calls ``on_synced`` once, when all have been listed."""
        async with asyncio.TaskGroup() as group:
            if beside is not None:
                group.create_task(beside(self.namespace), name=f"beside-{self.namespace}")
            for resource, informer in self.informers.items():
                group.create_task(informer.run(), name=f"watch-{resource}-{self.namespace}")
            for informer in self.informers.values():
                await informer.synced.wait()
            on_synced(self.namespace)


class Scopes:
    """Scopes come and go with `want` and `release`; they live in the task of `run`."""

    def __init__(
        self,
        client: KubeClient,
        *,
        on_change: Callable[[Resource, Object | None, Object | None], None],
        on_synced: Callable[[HomeNamespace], None],
        network: Network = "flat",
        beside: Beside | None = None,
        linger: float = LINGER,
    ) -> None:
        self._client = client
        self._kinds = SCOPED[network]
        self._on_change = on_change
        self._on_synced = on_synced
        self._beside = beside
        self._linger = linger
        self._scopes: dict[HomeNamespace, Scope] = {}
        self._tasks: dict[HomeNamespace, asyncio.Task[None]] = {}
        self._ending: dict[HomeNamespace, asyncio.TimerHandle] = {}
        self._group: asyncio.TaskGroup | None = None

    def get(self, namespace: HomeNamespace) -> Scope | None:
        """The scope if it is there and complete: what it lacks does not exist at home."""
        scope = self._scopes.get(namespace)
        return scope if scope is not None and scope.synced else None

    def want(self, namespace: HomeNamespace) -> None:
        """The namespace has a pod on the node."""
        timer = self._ending.pop(namespace, None)
        if timer is not None:
            timer.cancel()
        if namespace in self._scopes:
            return
        scope = Scope(self._client, namespace, self._kinds)
        for resource, informer in scope.informers.items():
            informer.on_change(functools.partial(self._on_change, resource))
        self._scopes[namespace] = scope
        if self._group is not None:
            self._start(self._group, scope)

    def release(self, namespace: HomeNamespace) -> None:
        """The namespace's last pod is gone."""
        if namespace in self._scopes and namespace not in self._ending:
            loop = asyncio.get_running_loop()
            self._ending[namespace] = loop.call_later(self._linger, self._end, namespace)

    async def run(self) -> None:
        """Runs the scopes until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                for scope in self._scopes.values():
                    self._start(group, scope)
                await asyncio.get_running_loop().create_future()
        finally:
            self._group = None
            for timer in self._ending.values():
                timer.cancel()

    def _start(self, group: asyncio.TaskGroup, scope: Scope) -> None:
        work = scope.run(self._on_synced, self._beside)
        self._tasks[scope.namespace] = group.create_task(work, name=f"scope-{scope.namespace}")

    def _end(self, namespace: HomeNamespace) -> None:
        self._ending.pop(namespace, None)
        self._scopes.pop(namespace, None)
        task = self._tasks.pop(namespace, None)
        if task is not None:
            task.cancel()
