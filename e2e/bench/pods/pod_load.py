"""The load: pods that are created at once, each with a ConfigMap and a Secret, and then deleted.

`Crowd` creates them in one cluster and records, through a watch, when they are Running and deleted.
It does not depend on what runs them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import aiohttp
import orjson
from yarl import URL

from e2e.bench.pods.benchmark_client import CONNECTIONS, ApiFailed, BenchmarkClient

#: Maximum seconds of a phase: ten times the slowest bridge's time.
PATIENCE = 600.0
_TIMED_OUT = 504


class PodsLost(Exception):
    """Pods did not become Running, or were not deleted: the run is invalid."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The size of a load."""

    pods: int
    namespaces: int = 1
    references: int = 10
    """Number of ConfigMaps that the pods of a namespace share."""
    secrets: int = 10
    """Number of Secrets that they share."""
    tokens: bool = False
    """Whether the pods have a service account token, as by default."""
    kilobytes: int = 0
    """Kilobytes of environment variables of each pod, the same in all, as from one template."""


class Crowd:
    """The pods of one load in one cluster, bound to ``node`` or scheduled."""

    def __init__(
        self, api: BenchmarkClient, name: str, shape: Shape, *, node: str | None = None
    ) -> None:
        self._api, self.shape, self._node = api, shape, node
        self.namespaces = [f"{name}-{number}" for number in range(shape.namespaces)]
        self._label = f"crowd={name}"
        self.phases: dict[str, str] = {}
        """Pod → its last observed phase; deleted pods are absent."""
        self.running_at: dict[str, float] = {}
        """Pod → the loop's time at which it was seen Running."""
        self._changed = asyncio.Event()
        self._urls: dict[str, URL] = {}

    # -- creation --------------------------------------------------------------------------

    async def prepare(self) -> None:
        """Creates the namespaces and the referenced objects."""
        for namespace in self.namespaces:
            await self._api.call("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
        for kind, field, count in (
            ("configmaps", "data", self.shape.references),
            ("secrets", "stringData", self.shape.secrets),
        ):
            await self._all(partial(self._reference, kind, field), count * len(self.namespaces))

    async def _reference(self, kind: str, field: str, number: int) -> None:
        namespace, name = self._namespace(number), self._shared(number, number + 1)
        body = {"metadata": {"name": name}, field: {"key": "value" * 20}}
        await self._api.call("POST", f"/api/v1/namespaces/{namespace}/{kind}", body)

    def _namespace(self, number: int) -> str:
        return self.namespaces[number % len(self.namespaces)]

    def _shared(self, number: int, count: int) -> str:
        return f"shared-{number // len(self.namespaces) % count}"

    def pod(self, number: int) -> tuple[str, dict[str, Any]]:
        """Namespace and body of one pod."""
        namespace = self._namespace(number)
        config_map = self._shared(number, self.shape.references)
        secret = self._shared(number, self.shape.secrets)
        variables = range(10 * self.shape.kilobytes)
        spec: dict[str, Any] = {
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": self.shape.tokens,
            "containers": [
                {
                    "name": "main",
                    "image": "registry.k8s.io/pause:3.10",
                    "resources": {"requests": {"cpu": "10m", "memory": "8Mi"}},
                    "env": [{"name": f"V{place:03}", "value": "v" * 72} for place in variables],
                    "envFrom": [{"secretRef": {"name": secret}}],
                    "volumeMounts": [{"name": "config", "mountPath": "/config"}],
                }
            ],
            "volumes": [{"name": "config", "configMap": {"name": config_map}}],
        }
        if self._node is not None:
            spec["nodeName"] = self._node
        key, _, value = self._label.partition("=")
        meta = {"name": f"pod-{number}", "labels": {key: value, "app": "bench"}}
        return namespace, {"metadata": meta, "spec": spec}

    async def create(self, number: int) -> None:
        """Creates one pod."""
        namespace, body = self.pod(number)
        await self._api.send("POST", self._pods(namespace), orjson.dumps(body))

    async def delete_one(self, number: int) -> None:
        """Deletes one pod."""
        await self._api.call("DELETE", self.path(number))

    async def patch(self, number: int, body: dict[str, Any]) -> None:
        """Patches one pod."""
        await self._api.call("PATCH", self.path(number), body)

    async def patch_reference(self, body: dict[str, Any], *, namespace: int = 0) -> None:
        """Patches the first ConfigMap of a namespace."""
        path = f"/api/v1/namespaces/{self.namespaces[namespace]}/configmaps/shared-0"
        await self._api.call("PATCH", path, body)

    def path(self, number: int) -> str:
        """The path of one pod."""
        return f"/api/v1/namespaces/{self._namespace(number)}/pods/pod-{number}"

    def _pods(self, namespace: str) -> URL:
        # Cached: parsing a URL takes as long as sending a request.
        if namespace not in self._urls:
            path = self._api.url(f"/api/v1/namespaces/{namespace}/pods")
            self._urls[namespace] = URL(path, encoded=True)
        return self._urls[namespace]

    async def _all(self, make: Callable[[int], Any], count: int) -> None:
        """Creates ``count`` objects, as fast as the connections allow."""
        numbers = iter(range(count))

        async def worker() -> None:
            for number in numbers:
                await make(number)

        async with asyncio.TaskGroup() as group:
            for _ in range(CONNECTIONS):
                group.create_task(worker())

    # -- measurement -----------------------------------------------------------------------

    async def run(self) -> float:
        """Creates all pods at once; seconds until all are Running. Raises PodsLost."""
        begin = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._all(self.create, self.shape.pods))
            await self._until(
                lambda: len(self.running_at) == self.shape.pods,
                lambda: f"{len(self.running_at)} of {self.shape.pods} pods are Running",
            )
        return time.perf_counter() - begin

    async def delete(self) -> float:
        """Deletes all pods at once; seconds until none exists. Raises PodsLost."""
        begin = time.perf_counter()
        await self._all(self._delete, len(self.namespaces))
        await self._until(lambda: not self.phases, lambda: f"{len(self.phases)} pods still exist")
        return time.perf_counter() - begin

    async def _delete(self, number: int) -> None:
        path = f"/api/v1/namespaces/{self.namespaces[number]}/pods"
        while True:
            try:
                await self._api.call("DELETE", path)
            except ApiFailed as failed:
                # A server ends every request after a minute: too short for 10,000 pods.
                if failed.status != _TIMED_OUT:
                    raise
            else:
                return

    async def clear(self) -> None:
        """Deletes the namespaces without waiting."""
        for namespace in self.namespaces:
            await self._api.call("DELETE", f"/api/v1/namespaces/{namespace}")

    async def forget(self) -> None:
        """Deletes the namespaces of a failed run; ignores errors."""
        with suppress(ApiFailed, OSError, aiohttp.ClientError):
            await self.clear()

    async def _until(self, true: Callable[[], bool], found: Callable[[], str]) -> None:
        try:
            async with asyncio.timeout(PATIENCE):
                while not true():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise PodsLost(f"after {PATIENCE:.0f} s {found()}") from None

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Watches the pods that are created in the block."""
        since = await self._api.version("/api/v1/pods", {"labelSelector": self._label})
        async with asyncio.TaskGroup() as group:
            task = group.create_task(self._watch(since))
            try:
                yield
            finally:
                task.cancel()

    async def _watch(self, since: str) -> None:
        query = {"labelSelector": self._label}
        async for event in self._api.watch("/api/v1/pods", query, since=since):
            self._saw(event)

    def _saw(self, event: dict[str, Any]) -> None:
        meta = event["object"]["metadata"]
        name = f"{meta['namespace']}/{meta['name']}"
        if event["type"] == "DELETED":
            self.phases.pop(name, None)
        else:
            self.phases[name] = phase = event["object"]["status"].get("phase", "")
            if phase == "Running":
                self.running_at.setdefault(name, time.perf_counter())
        self._changed.set()
