"""A fake home with a placer; tests play home's scheduler, bridges and users."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from sync.engine.engine import utc_now
from sync.kube.api_resources import (
    EVENTS,
    NAMESPACES,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PLACEMENT_POLICIES,
    PODS,
)
from sync.kube.client import KubeClient
from sync.placement.placer import Placer
from tests import objects
from tests.fakeapi import FakeApi
from tests.fakeapi.client_config import client_config_for
from tests.fakeapi.resource_registry import Kind
from translators.fit import published_room
from translators.fit.node_groups import NodeGroup
from translators.object_accessors import Object
from translators.offload_admission_patch import LABEL_OFFLOAD
from translators.ownership_labels import LABEL_VIRTUAL
from translators.placement import placed_pod
from translators.placement.decision import HOME
from translators.timestamps import format_time, parse_time

TIERS: list[Object] = [
    {"name": "home", "home": True},
    {"name": "cheap", "remotes": {"matchLabels": {"class": "cheap"}}},
    {"name": "expensive", "remotes": {"matchLabels": {"class": "expensive"}}},
]


class Home:
    """A fake home with helpers."""

    def __init__(self, api: FakeApi) -> None:
        self.api = api
        self.placer: Placer
        self.now = utc_now()
        api.api.clock = lambda: self.now
        api.store.registry.add(Kind(PLACEMENT_POLICIES, generation=True, builtin=False))
        api.put(NAMESPACES.manifest({"name": published_room.NAMESPACE}))

    def policy(self, **spec: Any) -> None:
        """The policy of namespace ``default``."""
        spec = {"namespaces": ["default"], "tiers": TIERS, **spec}
        self.api.put(PLACEMENT_POLICIES.manifest({"name": "p"}, spec=spec))

    def conditions(self, name: str = "p") -> dict[str, tuple[str, str]]:
        """Status and reason of the policy's conditions."""
        status = self.api.get(PLACEMENT_POLICIES, name).get("status") or {}
        return {it["type"]: (it["status"], it["reason"]) for it in status.get("conditions") or ()}

    def node(
        self,
        name: str,
        cpu: str,
        *,
        minutes: int = 10,
        annotations: Mapping[str, str] | None = None,
        **labels: str,
    ) -> None:
        """A node with 100 pods of room that has been ready for so long."""
        since = format_time(parse_time(self.now) - timedelta(minutes=minutes))
        for _ in range(2):  # A creation ignores the status.
            self.api.put(
                objects.node(name)
                | {
                    "metadata": {
                        "name": name,
                        "labels": labels,
                        "annotations": {**(annotations or {})},
                    },
                    "status": {
                        "allocatable": {"cpu": cpu, "pods": "100"},
                        "conditions": [
                            {"type": "Ready", "status": "True", "lastTransitionTime": since}
                        ],
                    },
                }
            )

    def joining(self, name: str, cls: str = "cheap") -> None:
        """A virtual node whose bridge is about to publish the remote's room."""
        self._virtual_node(name, cls, 0, {published_room.ANNOTATION_PUBLISHES: "auto"})

    def remote(
        self, name: str, *cpus: int, cls: str = "cheap", version: int = 0, minutes: int = 10
    ) -> None:
        """A virtual node whose remote has one real node with each of these free millicores."""
        self._virtual_node(name, cls, minutes, {})
        self.room(name, *cpus, version=version)

    def _virtual_node(
        self, name: str, cls: str, minutes: int, annotations: Mapping[str, str]
    ) -> None:
        labels = {LABEL_VIRTUAL: "true", "class": cls, "kubernetes.io/hostname": name}
        self.node(name, "1000", minutes=minutes, annotations=annotations, **labels)

    def room(self, name: str, *cpus: int, version: int = 0) -> None:
        """Publishes the remote's room."""
        groups = [NodeGroup(free={"cpu": it}, pods=100) for it in cpus]
        node = self.api.get(NODES, name)
        self.api.put(published_room.room_config_map(node, groups, version))

    def offload(self, mode: str, namespace: str = "default") -> None:
        """As `bridge offload` labels the namespace."""
        labels = {LABEL_OFFLOAD: mode}
        self.api.put(NAMESPACES.manifest({"name": namespace, "labels": labels}))

    def lose(self, name: str) -> None:
        """The bridge does not reach the remote."""
        ready = {"type": "Ready", "status": "False", "reason": "RemoteUnreachable"}
        self.api.update(NODES, name, {"status": {"conditions": [ready]}})

    def volume(self, name: str, *, node: str) -> None:
        """A bound claim whose volume is on this node."""
        term = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
        terms = {"nodeSelectorTerms": [{"matchExpressions": [term]}]}
        volume = {"nodeAffinity": {"required": terms}}
        self.api.put(PERSISTENT_VOLUMES.manifest({"name": f"pv-{name}"}, spec=volume))
        claim = {"name": name, "namespace": "default"}
        bound = {"volumeName": f"pv-{name}"}
        self.api.put(PERSISTENT_VOLUME_CLAIMS.manifest(claim, spec=bound))
        status = {"status": {"phase": "Bound"}}
        self.api.update(PERSISTENT_VOLUME_CLAIMS, name, status, "default")

    def run(self, name: str) -> None:
        """The pod is bound to its place, and has been ready for ten minutes."""
        choice = self.choice(name)
        since = format_time(parse_time(self.now) - timedelta(minutes=10))
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": since}
        node = "worker" if choice == HOME else choice
        change = {
            "spec": {"nodeName": node},
            "status": {"phase": "Running", "conditions": [ready]},
        }
        self.api.update(PODS, name, change, "default")

    def pod(
        self, name: str, cpu: str = "1", *, owner: str = "", kind: str = "Job", **spec: Any
    ) -> None:
        """A new pod, as admission changes it."""
        pod = objects.pod(name)
        pod["spec"]["containers"][0]["resources"] = {"requests": {"cpu": cpu}}
        pod["spec"].update(spec)
        if owner:
            reference = {"kind": kind, "name": owner, "uid": owner, "controller": True}
            pod["metadata"]["ownerReferences"] = [reference]
        self.api.put(placed_pod.gated(pod))

    def ends(self, name: str) -> bool:
        """Whether the pod is being deleted."""
        return "deletionTimestamp" in self.api.get(PODS, name, "default")["metadata"]

    def choice(self, name: str) -> str | None:
        """Where the pod was placed."""
        record = placed_pod.read_record(self.api.get(PODS, name, "default"))
        return record[1] if record else None

    async def placed(self, **choices: str) -> None:
        """Waits until the pods are placed there."""
        await self.api.until(lambda: {it: self.choice(it) for it in choices} == choices)

    async def event(self, reason: str, namespace: str = "default") -> str:
        """The message of the namespace's first Event with this reason."""

        def found() -> list[str]:
            events = self.api.objects(EVENTS)
            own = [it for it in events if it["metadata"]["namespace"] == namespace]
            return [it["message"] for it in own if it["reason"] == reason]

        await self.api.until(found)
        return found()[0]


@asynccontextmanager
async def running_placer(api: FakeApi) -> AsyncIterator[Home]:
    """A home with a running placer."""
    home = Home(api)
    async with KubeClient(client_config_for(api, "home")) as client:
        placer = home.placer = Placer(client, now=lambda: home.now, identity="placer")

        async def run() -> None:
            async with asyncio.TaskGroup() as group:
                group.create_task(placer.watch())
                group.create_task(placer.work())

        task = asyncio.create_task(run())
        await placer.synced()
        yield home
        assert not task.done()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
