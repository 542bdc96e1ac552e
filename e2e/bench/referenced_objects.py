"""The cost of following many ConfigMaps of home, each by its name, in the ways that clients have.

Each way runs in a process of its own against home's API server, in turn:

- ``shared``: a watch for each object, over shared HTTP/2 connections (the bridge's);
- ``single``: the same over HTTP/1.1, a connection each;
- ``polled``: a GET for each object per minute, the TTL cache of kubelets
  (configMapAndSecretChangeDetectionStrategy: Cache);
- ``namespace``: one watch of the whole namespace, unreferenced objects included.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from e2e.bench.pods.process_usage import cpu_seconds, own_cpu_seconds, resident_bytes
from e2e.bench.report import Report, percentile
from e2e.clusters.cluster import API_SERVER, Cluster
from sync.cache.informer import Informer
from sync.kube.api_resources import CONFIG_MAPS, NAMESPACES
from sync.kube.client import KubeClient
from sync.kube.credentials import KubeconfigRef, load
from translators.object_accessors import Object

NAMESPACE = "referenced-objects"
WAYS = ("shared", "single", "polled", "namespace")
#: Seconds between two GETs of an object, as a kubelet's TTL cache.
POLL_SECONDS = 60.0
#: Seconds of idleness that are measured, updates that are timed, and bytes of an unreferenced one.
IDLE_SECONDS, UPDATES, LARGE = 60.0, 50, 1_000_000
#: Requests at once while objects are created, and seconds for any single step.
PARALLEL, PATIENCE = 32, 300.0


def run(
    home: Cluster, *, objects: int, unreferenced: int, rounds: int, say: Callable[[str], None]
) -> Report:
    """Measures all ways; ``unreferenced`` objects of a megabyte are in the same namespace."""
    report = Report("references", {"objects": objects, "unreferenced": unreferenced})
    found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    kubeconfig = str(home.kubeconfig)
    asyncio.run(_prepare(kubeconfig, objects, unreferenced))
    try:
        for _ in range(rounds):
            for way in WAYS:
                argv = [kubeconfig, way, str(objects), str(home.component_pid(API_SERVER))]
                command = [sys.executable, "-m", "e2e.bench.referenced_objects", *argv]
                answer = subprocess.run(command, check=True, capture_output=True, text=True)
                found[way].append(json.loads(answer.stdout))
                say(f"{way}: {answer.stdout.strip()}")
    finally:
        asyncio.run(_remove(kubeconfig))
    units = {"mb": "MB", "ms": "ms", "s": "s", "percent": "%"}
    for way, measured in found.items():
        for name in measured[0]:
            unit = units.get(name.rpartition("_")[2], "")
            report.add(f"{way}.{name}", unit, [one.get(name) for one in measured])
    return report


@contextlib.asynccontextmanager
async def _client(kubeconfig: str) -> AsyncIterator[KubeClient]:
    config = await load(KubeconfigRef(Path(kubeconfig)), side="home")
    async with KubeClient(config) as client:
        yield client


def _config_map(name: str, value: str) -> Object:
    meta = {"name": name}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"value": value}}


async def _prepare(kubeconfig: str, objects: int, unreferenced: int) -> None:
    made = [_config_map(f"object-{number}", "first") for number in range(objects)]
    made += [_config_map(f"large-{number}", "x" * LARGE) for number in range(unreferenced)]
    async with _client(kubeconfig) as client:
        await client.create(
            NAMESPACES,
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
        )
        turn = asyncio.Semaphore(PARALLEL)

        async def create(obj: Object) -> None:
            async with turn:
                await client.create(CONFIG_MAPS, obj, namespace=NAMESPACE)

        await asyncio.gather(*map(create, made))


async def _remove(kubeconfig: str) -> None:
    async with _client(kubeconfig) as client:
        namespace = await client.get(NAMESPACES, NAMESPACE)
        await client.delete(NAMESPACES, NAMESPACE, uid=namespace["metadata"]["uid"])
        async with asyncio.timeout(PATIENCE):
            while await client.find(NAMESPACES, NAMESPACE) is not None:  # noqa: ASYNC110
                await asyncio.sleep(1.0)


async def _measure(kubeconfig: str, way: str, objects: int, server: int) -> dict[str, float]:
    """The figures of one way, in this process."""
    async with _client(kubeconfig) as client, asyncio.TaskGroup() as group:
        # The first request loads what every client needs.
        await client.get(NAMESPACES, NAMESPACE)
        pid = os.getpid()
        memory, own, its = resident_bytes(pid), own_cpu_seconds(), cpu_seconds(server)
        begun = time.monotonic()
        values: dict[str, str] = {}
        changed = asyncio.Event()

        def follow(_: Object | None, new: Object | None) -> None:
            if new is not None and new["metadata"]["name"].startswith("object-"):
                values[new["metadata"]["name"]] = new["data"]["value"]
                changed.set()

        names = [f"object-{number}" for number in range(objects)]
        tasks = [group.create_task(it) for it in _following(client, way, names, follow)]
        async with asyncio.timeout(PATIENCE):
            while len(values) < objects:
                changed.clear()
                await changed.wait()
        figures = {
            "open_s": time.monotonic() - begun,
            "open_cpu_s": own_cpu_seconds() - own,
            "open_server_cpu_s": cpu_seconds(server) - its,
        }
        await asyncio.sleep(5.0)
        figures["resident_mb"] = (resident_bytes(pid) - memory) / 1e6
        figures["connections"] = _open_sockets()
        own, its = own_cpu_seconds(), cpu_seconds(server)
        await asyncio.sleep(IDLE_SECONDS)
        figures["idle_percent"] = (own_cpu_seconds() - own) / IDLE_SECONDS * 100
        figures["idle_server_percent"] = (cpu_seconds(server) - its) / IDLE_SECONDS * 100
        if way != "polled":  # an update is seen after half a minute there, by definition
            delays = [await _update(client, names, values, changed) for _ in range(UPDATES)]
            figures["update_p50_ms"] = percentile(delays, 50)
            figures["update_p99_ms"] = percentile(delays, 99)
        for task in tasks:
            task.cancel()
        return figures


def _open_sockets() -> int:
    count = 0
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            count += str(entry.readlink()).startswith("socket:")
    return count


def _following(
    client: KubeClient, way: str, names: list[str], follow: Callable[[Any, Any], None]
) -> list[Any]:
    if way == "polled":
        return [_poll(client, name, follow) for name in names]
    if way == "namespace":
        informers = [Informer(client, CONFIG_MAPS, namespace=NAMESPACE)]
    else:
        rng = random.Random()  # jitter, not a secret
        informers = [
            Informer(
                client,
                CONFIG_MAPS,
                namespace=NAMESPACE,
                fields=f"metadata.name={name}",
                shares_connection=way == "shared",
                rng=rng,
            )
            for name in names
        ]
    for informer in informers:
        informer.on_change(follow)
    return [informer.run() for informer in informers]


async def _poll(client: KubeClient, name: str, follow: Callable[[Any, Any], None]) -> None:
    follow(None, await client.get(CONFIG_MAPS, name, namespace=NAMESPACE))
    await asyncio.sleep(random.uniform(0, POLL_SECONDS))  # not a secret
    while True:
        follow(None, await client.get(CONFIG_MAPS, name, namespace=NAMESPACE))
        await asyncio.sleep(POLL_SECONDS)


async def _update(
    client: KubeClient, names: list[str], values: dict[str, str], changed: asyncio.Event
) -> float:
    """Milliseconds from the request of an update until the client has seen it."""
    name = random.choice(names)  # not a secret
    value = str(random.random())  # not a secret
    patch = {"data": {"value": value}}
    begun = time.monotonic()
    await client.patch(CONFIG_MAPS, name, patch, namespace=NAMESPACE)
    async with asyncio.timeout(PATIENCE):
        while values[name] != value:
            changed.clear()
            await changed.wait()
    return (time.monotonic() - begun) * 1000


if __name__ == "__main__":
    _kubeconfig, _way, _objects, _server = sys.argv[1:]
    print(json.dumps(asyncio.run(_measure(_kubeconfig, _way, int(_objects), int(_server)))))
