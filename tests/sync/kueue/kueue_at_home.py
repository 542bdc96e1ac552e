"""A fake home with Kueue: the test plays Kueue, the bridges that publish rooms, and users."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from sync.kube.api_resources import (
    KUEUE_ADMISSION_CHECKS,
    KUEUE_RESOURCE_FLAVORS,
    KUEUE_WORKLOADS,
    NODES,
    PODS,
    Object,
)
from sync.kube.client import KubeClient
from sync.kueue.fits_controller import FitsController
from tests import kueue_objects as objects
from tests.fakeapi import FakeApi
from tests.sync.informer_harness import caught_up
from translators.fit.node_groups import NodeGroup, to_json

NOW = "2031-01-01T00:00:00Z"


class KueueAtHome:
    """Home's API server with Kueue's resources and one flavor of virtual nodes."""

    def __init__(self, api: FakeApi) -> None:
        self.api = api
        for resource in (KUEUE_ADMISSION_CHECKS, KUEUE_RESOURCE_FLAVORS, KUEUE_WORKLOADS):
            api.register(resource)
        api.put(objects.admission_check())
        api.put(objects.flavor())

    # -- users and bridges -------------------------------------------------------------------

    def join(self, name: str, *groups: NodeGroup, **node: Any) -> None:
        """A virtual node whose bridge publishes the free room of its remote."""
        self.register(name, **node)
        self.publish(name, *groups)

    def register(self, name: str, **node: Any) -> None:
        """A virtual node, from which home's controllers have removed the taint of new nodes."""
        created = objects.virtual_node(name, **node)
        self.api.put(created)
        self.api.update(NODES, name, {"spec": created["spec"]})

    def publish(self, name: str, *groups: NodeGroup, knows: str = "") -> None:
        """The bridge publishes another room, which accounts for the pod ``knows``."""
        pod = self.api.get(PODS, knows, "default") if knows else None
        version = int(pod["metadata"]["resourceVersion"]) if pod else 0
        self.api.put(objects.room(name, to_json(groups), version))

    def report_ready(self, name: str, *, ready: bool) -> None:
        """Home shows the node as Ready, or its remote as lost."""
        status = objects.virtual_node(name, ready=ready)["status"]
        self.api.update(NODES, name, {"status": status})

    def pod(self, of: str, name: str, *, node: str = "", phase: str = "Pending") -> None:
        """A pod that Kueue has started for a Workload."""
        self.api.put(objects.pod_of(of, name, node=node, phase=phase))

    # -- Kueue -------------------------------------------------------------------------------

    def submit(self, name: str, *pod_sets: Object, **spec: Any) -> None:
        """A Workload, for which Kueue reserves quota."""
        self.api.put(objects.workload(name, *pod_sets, **spec))
        self.reserve(name)

    def reserve(self, name: str) -> None:
        """Kueue reserves quota; the states of the checks stay."""
        found = self.workload(name)
        status = objects.reserved(found)
        entries = (found.get("status") or {}).get("admissionChecks")
        self._write(name, {**status, **({"admissionChecks": entries} if entries else {})})

    def evict(self, name: str, reason: str = "AdmissionCheck") -> None:
        """Kueue evicts the Workload: it releases the quota and resets the checks."""
        status = {
            "conditions": [
                objects.condition("QuotaReserved", "False", "Pending"),
                objects.condition("Evicted", "True", reason),
                objects.condition("Requeued", "True", "BackoffFinished"),
            ],
            "admission": None,
            "admissionChecks": [objects.check_state()],
        }
        self._write(name, status)

    def finish(self, name: str) -> None:
        """The Workload's job has ended."""
        conditions = [
            objects.condition("QuotaReserved", "True", "QuotaReserved"),
            objects.condition("Finished", "True", "Succeeded"),
        ]
        self._write(name, {"conditions": conditions})

    def _write(self, name: str, status: Object) -> None:
        self.api.update(KUEUE_WORKLOADS, name, {"status": status}, "default")

    # -- results -----------------------------------------------------------------------------

    def workload(self, name: str) -> Object:
        """A Workload as stored."""
        return self.api.get(KUEUE_WORKLOADS, name, "default")

    def entry(self, name: str) -> Object:
        """The entry of the check in a Workload's status."""
        found: Object = self.workload(name)["status"]["admissionChecks"][0]
        return found

    def node(self, name: str) -> str:
        """The node that was chosen for a Workload; "" before."""
        updates: Sequence[Object] = self.entry(name).get("podSetUpdates") or ({},)
        return str((updates[0].get("nodeSelector") or {}).get("kubernetes.io/hostname", ""))

    async def until_state(self, name: str, state: str) -> Object:
        """Waits for a state of the check."""
        await self.api.until(lambda: self.entry(name)["state"] == state)
        return self.entry(name)

    async def until_refused(self, name: str) -> str:
        """Waits until the Workload stays pending with a reason; returns the reason."""
        await self.api.until(
            lambda: self.entry(name)["state"] == "Pending" and self.entry(name)["message"]
        )
        return str(self.entry(name)["message"])


@asynccontextmanager
async def deciding(home: KubeClient) -> AsyncIterator[FitsController]:
    """A running controller."""
    controller = FitsController(home, now=lambda: NOW)
    task = asyncio.create_task(controller.run())
    try:
        yield controller
    finally:
        task.cancel()
        (result,) = await asyncio.gather(task, return_exceptions=True)
        assert isinstance(result, asyncio.CancelledError), repr(result)


async def settle(controller: FitsController, api: FakeApi) -> None:
    """Waits until the caches have every change, and no key is queued for now."""
    queue = controller.controller.queue
    revision = -1
    while revision != api.store.history.revision:
        revision = api.store.history.revision
        await caught_up(api, *controller.view.informers)
        await api.until(lambda: not len(queue) and not queue.working)
