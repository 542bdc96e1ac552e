"""PersistentVolumeClaims in a cluster: created at once, timed until they are Bound, and deleted
until their PersistentVolumes are, too. It does not depend on what provisions them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

import aiohttp

from e2e.bench.pods.benchmark_client import CONNECTIONS, ApiFailed, BenchmarkClient

#: Maximum seconds of a phase.
PATIENCE = 300.0
SIZE = "1Mi"

Json = dict[str, Any]


class ClaimsLost(Exception):
    """Claims did not become Bound, or were not deleted with their volumes: the run is invalid."""


class ClaimLoad:
    """The claims of one load in one cluster.

    ``node`` is written to each claim as home's scheduler does for the claim's first pod; without
    it, the class must have the binding mode Immediate.
    """

    def __init__(
        self, api: BenchmarkClient, name: str, storage_class: Json, *, claims: int, node: str = ""
    ) -> None:
        self._api, self.name, self.claims, self._node = api, name, claims, node
        self._class = {**storage_class, "metadata": {"name": name}}
        self.bound_seconds: dict[str, float] = {}
        """Claim → seconds from its creation request until it was seen Bound."""
        self._began: dict[str, float] = {}
        self._claims: set[str] = set()
        self._volumes: set[str] = set()
        self._changed = asyncio.Event()

    async def prepare(self) -> None:
        """Creates the StorageClass and the namespace."""
        await self._api.call("POST", "/apis/storage.k8s.io/v1/storageclasses", self._class)
        await self._api.call("POST", "/api/v1/namespaces", {"metadata": {"name": self.name}})

    def claim(self, number: int) -> Json:
        """The body of one claim."""
        meta: Json = {"name": f"claim-{number}", "labels": {"load": self.name}}
        if self._node:
            meta["annotations"] = {"volume.kubernetes.io/selected-node": self._node}
        spec = {
            "storageClassName": self.name,
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": SIZE}},
        }
        return {"metadata": meta, "spec": spec}

    async def run(self) -> float:
        """Creates all claims at once; seconds until all are Bound. Raises ClaimsLost."""
        begin = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._all(self._create))
            await self._until(
                lambda: len(self.bound_seconds) == self.claims,
                lambda: f"{len(self.bound_seconds)} of {self.claims} claims are Bound",
            )
        return time.perf_counter() - begin

    async def delete(self) -> float:
        """Deletes all claims at once; seconds until neither they nor their volumes exist. Raises
        ClaimsLost."""
        begin = time.perf_counter()
        await self._api.call("DELETE", self._path)
        await self._until(
            lambda: not (self._claims or self._volumes),
            lambda: f"{len(self._claims)} claims and {len(self._volumes)} volumes still exist",
        )
        return time.perf_counter() - begin

    async def forget(self) -> None:
        """Deletes namespace and class; ignores errors."""
        for path in (f"/api/v1/namespaces/{self.name}", f"{_CLASSES}/{self.name}"):
            with suppress(ApiFailed, OSError, aiohttp.ClientError):
                await self._api.call("DELETE", path)

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Watches the claims and volumes that are created in the block."""
        query = {"labelSelector": f"load={self.name}"}
        since = [
            await self._api.version(path, selected)
            for path, selected in ((self._path, query), (_VOLUMES, {}))
        ]
        async with asyncio.TaskGroup() as group:
            tasks: list[Coroutine[Any, Any, None]] = [
                self._watch(self._path, query, since[0], self._saw_claim),
                self._watch(_VOLUMES, {}, since[1], self._saw_volume),
            ]
            running = [group.create_task(task) for task in tasks]
            try:
                yield
            finally:
                for task in running:
                    task.cancel()

    async def _watch(
        self, path: str, query: dict[str, str], since: str, saw: Callable[[Json], None]
    ) -> None:
        async for event in self._api.watch(path, query, since=since):
            saw(event)
            self._changed.set()

    def _saw_claim(self, event: Json) -> None:
        name = event["object"]["metadata"]["name"]
        if event["type"] == "DELETED":
            self._claims.discard(name)
            return
        self._claims.add(name)
        if event["object"]["status"].get("phase") == "Bound" and name not in self.bound_seconds:
            self.bound_seconds[name] = time.perf_counter() - self._began[name]

    def _saw_volume(self, event: Json) -> None:
        volume = event["object"]
        if volume["spec"].get("storageClassName") != self.name:
            return
        if event["type"] == "DELETED":
            self._volumes.discard(volume["metadata"]["name"])
        else:
            self._volumes.add(volume["metadata"]["name"])

    @property
    def _path(self) -> str:
        return f"/api/v1/namespaces/{self.name}/persistentvolumeclaims"

    async def _create(self, number: int) -> None:
        body = self.claim(number)
        self._began[body["metadata"]["name"]] = time.perf_counter()
        await self._api.call("POST", self._path, body)

    async def _all(self, make: Callable[[int], Coroutine[Any, Any, None]]) -> None:
        numbers = iter(range(self.claims))

        async def worker() -> None:
            for number in numbers:
                await make(number)

        async with asyncio.TaskGroup() as group:
            for _ in range(CONNECTIONS):
                group.create_task(worker())

    async def _until(self, true: Callable[[], bool], found: Callable[[], str]) -> None:
        try:
            async with asyncio.timeout(PATIENCE):
                while not true():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise ClaimsLost(f"after {PATIENCE:.0f} s {found()}") from None


_CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
_VOLUMES = "/api/v1/persistentvolumes"
