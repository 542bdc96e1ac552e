"""A Node without kubelet and containers: a thread of the test acts like a kubelet towards the API.

It renews the Node's Lease, reports each pod on the Node as Running and Ready, and removes pods that
are being deleted. After `die` it stops, and the cluster's controllers treat the Node as that of a
machine without power.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from e2e import api_reader
from e2e.clusters.cluster import Cluster
from e2e.clusters.errors import ClusterError
from e2e.kubectl import Json
from translators.timestamps import format_micro_time, format_time

#: Seconds between two reads of the pods, and between two renewals of the Lease (a kubelet's).
_LOOK_EVERY, _RENEW_EVERY = 0.5, 10.0
_CAPACITY = {"cpu": "8", "memory": "8Gi", "ephemeral-storage": "10Gi", "pods": "110"}


class SimulatedNode:
    """One Node of ``cluster``; `simulated_node` creates and removes it."""

    def __init__(
        self, cluster: Cluster, name: str, *, capacity: Mapping[str, str], labels: Mapping[str, str]
    ) -> None:
        self.cluster = cluster
        self.name = name
        self._capacity, self._labels = capacity, labels
        self.reported: set[str] = set()
        """The UIDs of all pods that it has reported as Running."""
        self._dead = threading.Event()
        self._thread = threading.Thread(target=self._live, name=name, daemon=True)

    def register(self) -> None:
        """Creates the Node as Ready and starts the thread."""
        labels = {
            "kubernetes.io/hostname": self.name,
            "kubernetes.io/os": "linux",
            **self._labels,
        }
        self._send("create", {"kind": "Node", "metadata": {"name": self.name, "labels": labels}})
        status: Json = {
            "capacity": self._capacity,
            "allocatable": self._capacity,
            "conditions": [_condition("Ready")],
            "nodeInfo": {"operatingSystem": "linux", "architecture": "amd64"},
        }
        self._patch_status("node", self.name, None, status)
        self._renew()
        self._thread.start()

    def die(self) -> None:
        """Stops all reports about the Node and its pods."""
        self._dead.set()
        self._thread.join()

    def pods(self) -> list[Json]:
        """The pods bound to the Node."""
        found = api_reader.list_objects(self.cluster, "pods", all_namespaces=True)
        return [pod for pod in found if pod["spec"].get("nodeName") == self.name]

    def _live(self) -> None:
        renewed = time.monotonic()
        while not self._dead.wait(_LOOK_EVERY):
            with contextlib.suppress(ClusterError):  # retried, as by a kubelet
                if time.monotonic() > renewed + _RENEW_EVERY:
                    self._renew()
                    renewed = time.monotonic()
                for pod in self.pods():
                    self._report(pod)

    def _report(self, pod: Json) -> None:
        meta = pod["metadata"]
        if meta.get("deletionTimestamp"):
            args = ("--grace-period=0", "--force", "--wait=false")
            self.cluster.kubectl("-n", meta["namespace"], "delete", "pod", meta["name"], *args)
        elif pod["status"].get("phase") == "Pending":
            self.reported.add(meta["uid"])
            self._patch_status("pod", meta["name"], meta["namespace"], _running(pod))

    def _renew(self) -> None:
        now = format_micro_time(datetime.now(UTC))
        lease = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self.name, "namespace": "kube-node-lease"},
            "spec": {"holderIdentity": self.name, "leaseDurationSeconds": 40, "renewTime": now},
        }
        self._send("apply", lease)

    def _send(self, verb: str, obj: Json) -> None:
        self.cluster.kubectl(verb, "-f", "-", input=json.dumps({"apiVersion": "v1", **obj}))

    def _patch_status(self, kind: str, name: str, namespace: str | None, status: Json) -> None:
        where = ("-n", namespace) if namespace else ()
        patch = json.dumps({"status": status})
        self.cluster.kubectl(*where, "patch", kind, name, "--subresource=status", "-p", patch)


@contextmanager
def simulated_node(
    cluster: Cluster, name: str, *, capacity: Mapping[str, str] = _CAPACITY, **labels: str
) -> Iterator[SimulatedNode]:
    """A running Node; deleted afterwards with the pods bound to it."""
    node = SimulatedNode(cluster, name, capacity=capacity, labels=labels)
    try:
        node.register()
        yield node
    finally:
        node.die()
        cluster.kubectl("delete", "node", name, "--ignore-not-found")
        for pod in node.pods():
            where = ("-n", pod["metadata"]["namespace"])
            args = ("--force", "--grace-period=0", "--ignore-not-found")
            cluster.kubectl(*where, "delete", "pod", pod["metadata"]["name"], *args)


def _condition(kind: str) -> Json:
    now = format_time(datetime.now(UTC))
    return {"type": kind, "status": "True", "lastHeartbeatTime": now, "lastTransitionTime": now}


def _running(pod: Json) -> Json:
    now = format_time(datetime.now(UTC))
    conditions = [
        {"type": kind, "status": "True", "lastTransitionTime": now}
        for kind in ("Initialized", "ContainersReady", "Ready")
    ]
    statuses: list[dict[str, Any]] = [
        {
            "name": container["name"],
            "image": container["image"],
            "imageID": "",
            "ready": True,
            "started": True,
            "restartCount": 0,
            "state": {"running": {"startedAt": now}},
        }
        for container in pod["spec"]["containers"]
    ]
    return {
        "phase": "Running",
        "startTime": now,
        "conditions": conditions,
        "containerStatuses": statuses,
    }
