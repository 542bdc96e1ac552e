"""The provisioners of the test clusters, in one cluster and without a bridge.

Volumes are real directories of the node: data outlives pods.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from e2e.clusters.cluster import Cluster, Provisioner
from e2e.clusters.provisioners import DRIVERS
from e2e.kubectl import Json, create_namespace, get, get_events, get_one, wait_for
from e2e.storage_classes import IMMEDIATE, hostpath, local_path
from e2e.workload_manifests import shell, volume_claim


@dataclass(frozen=True)
class Storage:
    """A cluster with a namespace for the test."""

    cluster: Cluster
    namespace: str

    def apply(self, manifest: str) -> None:
        """Applies YAML in the namespace."""
        self.cluster.kubectl("apply", "-n", self.namespace, "-f", "-", input=manifest)

    def claim(self, name: str) -> Json:
        """One claim."""
        return get_one(self.cluster, "persistentvolumeclaim", name, namespace=self.namespace)

    def run(self, name: str, claim: str, script: str) -> str:
        """Runs a script with the claim at ``/data`` to its end; returns its output."""
        container = shell("main", script, volumeMounts=[{"name": "data", "mountPath": "/data"}])
        volume = {"name": "data", "persistentVolumeClaim": {"claimName": claim}}
        spec = {"restartPolicy": "Never", "containers": [container], "volumes": [volume]}
        manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
        self.apply(json.dumps(manifest))

        def phase() -> str:
            found = get_one(self.cluster, "pod", name, namespace=self.namespace)["status"]["phase"]
            return str(found) if found in {"Succeeded", "Failed"} else ""

        assert wait_for(phase, f"pod {name} ends") == "Succeeded"
        output = self.cluster.kubectl("-n", self.namespace, "logs", name).stdout
        self.cluster.kubectl("-n", self.namespace, "delete", "pod", name, "--now")
        return output

    def wait_until_bound(self, name: str) -> Json:
        """Waits until the claim is Bound; returns its volume."""
        wait_for(lambda: self.claim(name)["status"]["phase"] == "Bound", f"claim {name} is Bound")
        return get_one(self.cluster, "persistentvolume", self.claim(name)["spec"]["volumeName"])

    def wait_for_event(self, claim: str, reason: str, text: str) -> None:
        """Waits for an Event of the claim whose message contains the text."""

        def found() -> list[Json]:
            return [
                it
                for it in get_events(self.cluster, claim, namespace=self.namespace)
                if it["reason"] == reason and text in it["message"]
            ]

        wait_for(found, f"claim {claim} has an Event {reason} with {text!r}")


@pytest.fixture
def storage(remote: Cluster, provisioners: None) -> Iterator[Storage]:
    """The remote cluster, with a new namespace."""
    namespace = f"storage-{uuid.uuid4().hex[:6]}"
    create_namespace(remote, namespace)
    yield Storage(remote, namespace)
    remote.kubectl("delete", "namespace", namespace, "--wait=false")


def keeps_data(storage: Storage, claim: str) -> None:
    """Writes in one pod and reads in the next."""
    storage.run("writer", claim, "echo kept >/data/file")
    assert storage.run("reader", claim, "cat /data/file") == "kept\n"


def deleting_removes_volume(storage: Storage, claim: str) -> None:
    """Deletes the claim and waits until its volume is deleted, too."""
    volume = storage.claim(claim)["spec"]["volumeName"]
    storage.cluster.kubectl("-n", storage.namespace, "delete", "pvc", claim, "--wait=false")

    def volumes() -> set[str]:
        return {it["metadata"]["name"] for it in get(storage.cluster, "persistentvolumes")}

    wait_for(lambda: volume not in volumes(), "the volume is deleted")


def test_local_path_volume_outlives_pods_and_ends_with_its_claim(storage: Storage) -> None:
    with local_path(storage.cluster, default=True):
        storage.apply(volume_claim("data", None))
        keeps_data(storage, "data")
        volume = storage.wait_until_bound("data")
        assert volume["spec"]["storageClassName"] == "local-path"
        deleting_removes_volume(storage, "data")


def test_hostpath_volume_of_immediate_class_is_bound_without_a_pod_and_expands(
    storage: Storage,
) -> None:
    parameters = {"roundUpTo": "1Gi", "expandDelay": "1s"}
    with hostpath(storage.cluster, binding=IMMEDIATE, parameters=parameters) as name:
        storage.apply(volume_claim("data", name, "1500Mi", "ReadWriteMany"))
        assert storage.wait_until_bound("data")["spec"]["capacity"] == {"storage": "2Gi"}
        assert storage.claim("data")["status"]["capacity"] == {"storage": "2Gi"}
        keeps_data(storage, "data")
        storage.apply(volume_claim("data", name, "2500Mi", "ReadWriteMany"))
        wait_for(
            lambda: [it["type"] for it in storage.claim("data")["status"].get("conditions", ())],
            "the claim has the condition Resizing",
        )
        wait_for(
            lambda: storage.claim("data")["status"]["capacity"] == {"storage": "3Gi"},
            "the claim has the new capacity",
        )
        status = storage.claim("data")["status"]
        assert not status.get("conditions")
        assert not status.get("allocatedResourceStatuses")
        assert storage.wait_until_bound("data")["spec"]["capacity"] == {"storage": "3Gi"}
        # A clone has the data of its source, and a volume of its own.
        source = {"kind": "PersistentVolumeClaim", "name": "data"}
        storage.apply(volume_claim("clone", name, "3Gi", "ReadWriteMany", dataSource=source))
        assert storage.run("reader", "clone", "cat /data/file") == "kept\n"
        deleting_removes_volume(storage, "data")
        assert storage.run("reader", "clone", "cat /data/file") == "kept\n"


def test_hostpath_capacity_is_published_and_respected(storage: Storage) -> None:
    cluster = storage.cluster

    def published(name: str) -> set[str]:
        found = get(cluster, "csistoragecapacities", namespace="kube-system")
        return {str(it["capacity"]) for it in found if it["storageClassName"] == name}

    with hostpath(cluster, "small", parameters={"capacity": "3Gi"}) as name:
        wait_for(lambda: published(name) == {"3Gi"}, "the whole capacity is published")
        storage.apply(volume_claim("first", name, "2Gi"))
        keeps_data(storage, "first")
        wait_for(lambda: published(name) == {"1Gi"}, "the capacity left is published")
        storage.apply(volume_claim("second", name, "2Gi"))
        volume = {"name": "data", "persistentVolumeClaim": {"claimName": "second"}}
        spec = {"containers": [shell("main", "sleep 3600")], "volumes": [volume]}
        storage.apply(
            json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec})
        )
        unschedulable = ("jsonpath={.status.conditions[?(@.type=='PodScheduled')].message}",)
        shown = ("-n", storage.namespace, "get", "pod", "p", "-o", *unschedulable)
        wait_for(
            lambda: "enough free storage" in cluster.kubectl(*shown).stdout,
            "the scheduler reports that the node has too little storage",
        )
        deleting_removes_volume(storage, "first")
        storage.wait_until_bound("second")
    wait_for(lambda: not published(name), "the capacity is removed with its class")


def test_hostpath_failures_are_events_of_the_claim(storage: Storage) -> None:
    cluster = storage.cluster
    failing = {"provisionError": "the array is on fire"}
    with hostpath(cluster, "failing", binding=IMMEDIATE, parameters=failing) as name:
        storage.apply(volume_claim("data", name))
        storage.wait_for_event("data", "ProvisioningFailed", "the array is on fire")
        storage.apply(volume_claim("block", name, volumeMode="Block"))
        storage.wait_for_event("block", "ProvisioningFailed", "does not support block volume")
    # The provisioner retries: a corrected class serves the waiting claim.
    rigid = {"expandError": "no more disks"}
    with hostpath(cluster, "failing", binding=IMMEDIATE, parameters=rigid) as name:
        storage.wait_until_bound("data")
        assert storage.claim("block")["status"]["phase"] == "Pending"
        storage.apply(volume_claim("data", name, "2Gi"))
        storage.wait_for_event("data", "VolumeResizeFailed", "no more disks")
        status = storage.claim("data")["status"]
        assert status["capacity"] == {"storage": "1Gi"}
        assert [it["type"] for it in status["conditions"]] == ["ControllerResizeError"]


def test_stopped_provisioner_continues_with_waiting_claims(storage: Storage) -> None:
    cluster, component = storage.cluster, Provisioner.HOSTPATH
    with hostpath(cluster, "interrupted", binding=IMMEDIATE) as name:
        cluster.stop_component(component)
        storage.apply(volume_claim("data", name))
        cluster.start_component(component)
        volume = storage.wait_until_bound("data")
        assert (
            volume["metadata"]["annotations"]["pv.kubernetes.io/provisioned-by"]
            == DRIVERS[component]
        )
