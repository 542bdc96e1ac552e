"""PersistentVolumeClaims follow pods: provisioned in the remote, mounted there, bound at home."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from e2e import bridge_process
from e2e.clusters.cluster import Cluster
from e2e.conftest import Bridged
from e2e.kubectl import Json, get, get_one, wait_for
from e2e.storage_classes import IMMEDIATE, hostpath, local_path
from e2e.workload_manifests import pod, shell, volume_claim

#: The taint of virtual nodes, and the label by which pods select them.
_TOLERATIONS = [{"key": "cluster-bridge.io/virtual-node", "operator": "Exists"}]
_DATA = [{"name": "data", "mountPath": "/data"}]


@dataclass(frozen=True)
class Storage:
    """A virtual node, and StorageClasses of home that lead to the remote."""

    bridged: Bridged

    @property
    def home(self) -> Cluster:
        """The cluster of the users."""
        return self.bridged.home

    @property
    def remote(self) -> Cluster:
        """The cluster with the data."""
        return self.bridged.remote

    @contextlib.contextmanager
    def home_class(self, name: str, *options: str) -> Iterator[str]:
        """A class of home, by the command; yields its name."""
        name = f"{name}-{self.bridged.node}"
        printed = bridge_process.run("storage-class", name, *options)
        assert printed.returncode == 0, printed.stderr
        self.home.kubectl("apply", "-f", "-", input=printed.stdout)
        try:
            yield name
        finally:
            self.home.kubectl("delete", "storageclass", name, "--wait=false")

    def claims(self) -> dict[str, Json]:
        """Home's claims of the test, by name."""
        found = get(self.home, "persistentvolumeclaims", namespace=self.bridged.namespace)
        return {it["metadata"]["name"]: it for it in found}

    def phases(self) -> dict[str, str]:
        """The phase of each claim."""
        return {name: it["status"]["phase"] for name, it in self.claims().items()}

    def volumes(self) -> list[Json]:
        """Home's volumes of the test."""
        return [
            it
            for it in get(self.home, "persistentvolumes")
            if (it["spec"].get("claimRef") or {}).get("namespace") == self.bridged.namespace
        ]

    def remote_claims(self) -> list[Json]:
        """The claims in the remote namespace of the test."""
        return get(self.remote, "persistentvolumeclaims", namespace=self.bridged.remote_namespace)

    def wait_until_bound(self, *names: str) -> None:
        """Waits until these claims are Bound at home."""

        def bound() -> bool:
            phases = self.phases()
            return all(phases.get(name) == "Bound" for name in names)

        wait_for(bound, f"{', '.join(names)} are Bound")

    def node_pod(self, name: str, claim: str, script: str = "sleep 3600", **fields: object) -> str:
        """A pod that home's scheduler places on the virtual node, with the claim at ``/data``."""
        return json.dumps(self.node_pod_object(name, claim, script, **fields))

    def node_pod_object(
        self, name: str, claim: str, script: str = "sleep 3600", **fields: object
    ) -> Json:
        """As `node_pod`, as an object."""
        spec = {
            "containers": [shell("main", script, volumeMounts=_DATA)],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}],
            **self.placement(),
            **fields,
        }
        return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}

    def placement(self) -> Json:
        """Fields of a pod by which home's scheduler chooses this virtual node."""
        return {
            "nodeSelector": {"kubernetes.io/hostname": self.bridged.node},
            "tolerations": _TOLERATIONS,
            "terminationGracePeriodSeconds": 1,
        }

    def wait_until_ready(self, *pods: str) -> None:
        """Waits until the pods are Ready."""
        names = [f"pod/{name}" for name in pods]
        wait_for(
            lambda: {it["metadata"]["name"] for it in self.bridged.home_pods()} >= set(pods),
            f"{', '.join(pods)} exist",
        )
        self.bridged.kubectl("wait", "--for=condition=Ready", *names, "--timeout=90s")

    def read(self, name: str, file: str = "/data/file") -> str:
        """A file of a pod."""
        return self.bridged.kubectl("exec", name, "--", "cat", file)

    def clear(self) -> None:
        """Deletes the test's workloads, claims and volumes at home, and waits for the remote."""
        namespace = self.bridged.namespace
        kinds = "statefulsets,deployments,pods,persistentvolumeclaims"
        self.home.kubectl("delete", kinds, "--all", "-n", namespace, "--wait=false")
        wait_for(lambda: not self.claims(), "the claims are deleted")

        def volumes_are_gone() -> bool:
            for it in self.volumes():
                if it["spec"]["persistentVolumeReclaimPolicy"] == "Retain":
                    name = it["metadata"]["name"]
                    self.home.kubectl("delete", "persistentvolume", name, "--wait=false")
            return not self.volumes()

        wait_for(volumes_are_gone, "the volumes are deleted")
        self.remote.kubectl(
            *("delete", "persistentvolumeclaims", "--all", "--wait=false"),
            *("-n", self.bridged.remote_namespace),
        )
        wait_for(lambda: not self.remote_claims(), "no claim is left in the remote")


@pytest.fixture
def storage(bridged: Bridged) -> Iterator[Storage]:
    """A virtual node; afterwards the test's volumes are deleted."""
    bridged.wait_until_schedulable()
    made = Storage(bridged)
    yield made
    made.clear()


def _stateful_set(storage: Storage, storage_class: str, replicas: int) -> str:
    """A StatefulSet whose pods append their start to a file."""
    script = "echo started >> /data/file; sleep 3600"
    labels = {"app": "db"}
    claim = {
        "metadata": {"name": "data"},
        "spec": {
            "storageClassName": storage_class,
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "16Mi"}},
        },
    }
    spec = {"containers": [shell("main", script, volumeMounts=_DATA)], **storage.placement()}
    return json.dumps(
        {
            "apiVersion": "apps/v1",
            "kind": "StatefulSet",
            "metadata": {"name": "db"},
            "spec": {
                "serviceName": "db",
                "replicas": replicas,
                "podManagementPolicy": "Parallel",
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": spec},
                "volumeClaimTemplates": [claim],
            },
        }
    )


def test_stateful_set_keeps_its_data(storage: Storage) -> None:
    """Each ordinal has a volume in the remote; the data outlives pods, scale to zero and the
    bridge, and is deleted with the claims."""
    bridged = storage.bridged
    with local_path(storage.remote, default=True), storage.home_class("db") as name:
        bridged.apply(_stateful_set(storage, name, 2))
        storage.wait_until_ready("db-0", "db-1")
        assert storage.phases() == {"data-db-0": "Bound", "data-db-1": "Bound"}
        assert len(storage.remote_claims()) == 2
        uids = {it["metadata"]["uid"] for it in storage.remote_claims()}

        bridged.kubectl("delete", "pod", "db-0", "--wait=true")
        storage.wait_until_ready("db-0")
        wait_for(lambda: storage.read("db-0").split() == ["started"] * 2, "data outlives the pod")

        bridged.kubectl("scale", "statefulset/db", "--replicas=0")
        wait_for(lambda: not bridged.home_pods(), "no pod is left")
        bridged.bridge.stop()
        bridged.bridge.start()
        bridged.kubectl("scale", "statefulset/db", "--replicas=2")
        storage.wait_until_ready("db-0", "db-1")
        wait_for(lambda: storage.read("db-0").split() == ["started"] * 3, "data outlives a restart")
        assert {it["metadata"]["uid"] for it in storage.remote_claims()} == uids

        storage.clear()
        assert not get(storage.remote, "persistentvolumeclaims", namespace=bridged.remote_namespace)


def test_capacity_of_remote_is_shown_and_grows(storage: Storage) -> None:
    """The true capacity appears at home, with either binding mode; an expansion follows."""
    bridged = storage.bridged
    rounding = {"roundUpTo": "4Mi"}
    with (
        hostpath(storage.remote, "now", binding=IMMEDIATE, parameters=rounding) as now,
        hostpath(storage.remote, "later", parameters=rounding) as later,
        storage.home_class("now", "--remote-class", now) as home_now,
        storage.home_class("later", "--remote-class", later) as home_later,
    ):
        for name, of_class in (("a", home_now), ("b", home_later)):
            bridged.apply(volume_claim(name, of_class, "10Mi"))
            bridged.apply(storage.node_pod(name, name))
        storage.wait_until_ready("a", "b")

        def capacities() -> list[str]:
            return [it["status"]["capacity"]["storage"] for it in storage.claims().values()]

        wait_for(lambda: capacities() == ["12Mi", "12Mi"], "the true capacity is shown")
        assert {it["spec"]["capacity"]["storage"] for it in storage.volumes()} == {"12Mi"}
        grow = {"spec": {"resources": {"requests": {"storage": "20Mi"}}}}
        for name in ("a", "b"):
            bridged.kubectl("patch", "pvc", name, "-p", json.dumps(grow))
        wait_for(lambda: capacities() == ["20Mi", "20Mi"], "the volumes have grown")


def test_pod_bound_by_node_name_and_ephemeral_volume(storage: Storage) -> None:
    """A pod without a scheduler gets its volume; a generic ephemeral volume has one PVC, which is
    deleted with the pod."""
    bridged = storage.bridged
    with local_path(storage.remote, default=True), storage.home_class("some") as name:
        bridged.apply(volume_claim("fixed", name, "8Mi"))
        fixed = [{"name": "data", "persistentVolumeClaim": {"claimName": "fixed"}}]
        main = shell("main", "echo fixed > /data/file; sleep 3600", volumeMounts=_DATA)
        bridged.apply(pod(bridged.node, "fixed", containers=[main], volumes=fixed))
        storage.wait_until_ready("fixed")
        wait_for(lambda: storage.read("fixed") == "fixed\n", "the pod writes")
        template = {
            "spec": {
                "storageClassName": name,
                "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "8Mi"}},
            }
        }
        scratch = [{"name": "data", "ephemeral": {"volumeClaimTemplate": template}}]
        bridged.apply(storage.node_pod("scratch", "", volumes=scratch))
        storage.wait_until_ready("scratch")
        assert storage.phases() == {"fixed": "Bound", "scratch-data": "Bound"}
        assert len(storage.remote_claims()) == 2
        bridged.kubectl("delete", "pod", "scratch", "--wait=true")
        wait_for(lambda: len(storage.remote_claims()) == 1, "the ephemeral volume is deleted")


def test_retained_data_stays_in_remote(storage: Storage) -> None:
    """With Retain the remote claim outlives home's claim and volume, and its namespace stays."""
    bridged = storage.bridged
    with (
        local_path(storage.remote, default=True),
        storage.home_class("kept", "--reclaim-policy", "Retain") as name,
    ):
        bridged.apply(volume_claim("kept", name, "8Mi"))
        bridged.apply(storage.node_pod("a", "kept", "echo data > /data/file; sleep 3600"))
        storage.wait_until_ready("a")
        bridged.kubectl("delete", "pod", "a", "--wait=true")
        bridged.kubectl("delete", "pvc", "kept", "--wait=true")
        (volume,) = storage.volumes()
        wait_for(
            lambda: (
                get_one(storage.home, "pv", volume["metadata"]["name"])["status"]["phase"]
                == "Released"
            ),
            "the volume is Released",
        )
        storage.home.kubectl("delete", "pv", volume["metadata"]["name"], "--wait=true")
        (claim,) = storage.remote_claims()
        assert claim["status"]["phase"] == "Bound"


def test_rejected_volume_is_reported_and_schedules_elsewhere(storage: Storage) -> None:
    """A quota of the remote is an Event with the remote's message, and the scheduler is free to
    choose another node."""
    bridged = storage.bridged
    with local_path(storage.remote, default=True), storage.home_class("some") as name:
        bridged.apply(storage.node_pod("first", "small"))
        bridged.apply(volume_claim("small", name, "8Mi"))
        storage.wait_until_ready("first")
        quota = ("create", "quota", "small", "--hard=requests.storage=10Mi")
        storage.remote.kubectl("-n", bridged.remote_namespace, *quota)
        bridged.apply(volume_claim("large", name, "64Mi"))
        bridged.apply(storage.node_pod("second", "large"))
        found = bridged.wait_for_events("ProvisioningFailed", "PersistentVolumeClaim", "large")
        assert "exceeded quota" in found["large"]
        assert len(storage.remote_claims()) == 1
        storage.remote.kubectl("-n", bridged.remote_namespace, "delete", "quota", "small")
        storage.wait_until_ready("second")


@pytest.mark.unbound
def test_unbound_namespace_gets_nothing_in_remote(storage: Storage) -> None:
    """Nothing is created in the remote for a namespace that is not bound to the bridge; the Event
    shows the command that binds it."""
    bridged = storage.bridged
    with local_path(storage.remote, default=True), storage.home_class("some") as name:
        bridged.apply(volume_claim("waits", name, "8Mi"))
        bridged.apply(storage.node_pod("waits", "waits"))
        found = bridged.wait_for_events("ProvisioningFailed", "PersistentVolumeClaim", "waits")
        assert f"bridge rbac namespace {bridged.namespace}" in found["waits"]
        namespaces = [it["metadata"]["name"] for it in get(storage.remote, "namespaces")]
        assert bridged.remote_namespace not in namespaces
