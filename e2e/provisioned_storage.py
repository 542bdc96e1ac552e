"""StorageClasses of the home cluster that lead to the remote, and workloads that use them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass

from e2e.clusters.cluster import Cluster
from e2e.conftest import Bridged
from e2e.kubectl import Json, get, wait_for
from e2e.random_load import RandomLoad
from e2e.storage_classes import served_class
from e2e.workload_manifests import shell
from translators.storage.storage_capacity import NAMESPACE

#: Tolerates the taint of virtual nodes.
_TOLERATIONS = [{"key": "cluster-bridge.io/virtual-node", "operator": "Exists"}]
#: Where containers mount the volume ``data``.
DATA = [{"name": "data", "mountPath": "/data"}]


@dataclass(frozen=True)
class ProvisionedStorage:
    """A virtual node, and StorageClasses of the home cluster that lead to the remote."""

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
    def home_class(
        self, name: str, *, remote_class: str = "", retain: bool = False
    ) -> Iterator[str]:
        """A class in the home cluster that leads to the remote; yields its name."""
        name = f"{name}-{self.bridged.node}"
        with served_class(self.home, name, remote_class=remote_class, retain=retain):
            yield name

    def capacity(self, name: str) -> str:
        """The capacity that the bridge reports in the home cluster for this class; "" before."""
        found = get(self.home, "csistoragecapacities", namespace=NAMESPACE)
        return next((obj["capacity"] for obj in found if obj["storageClassName"] == name), "")

    def claims(self) -> dict[str, Json]:
        """The test's claims in the home cluster, by name."""
        found = get(self.home, "persistentvolumeclaims", namespace=self.bridged.namespace)
        return {it["metadata"]["name"]: it for it in found}

    def phases(self) -> dict[str, str]:
        """The phase of each claim."""
        return {name: it["status"]["phase"] for name, it in self.claims().items()}

    def volumes(self) -> list[Json]:
        """The test's volumes in the home cluster."""
        return [
            it
            for it in get(self.home, "persistentvolumes")
            if (it["spec"].get("claimRef") or {}).get("namespace") == self.bridged.namespace
        ]

    def remote_claims(self) -> list[Json]:
        """The claims in the remote namespace of the test."""
        return get(self.remote, "persistentvolumeclaims", namespace=self.bridged.remote_namespace)

    def remote_volumes(self) -> list[Json]:
        """The volumes of the claims in the remote namespace of the test."""
        return [
            it
            for it in get(self.remote, "persistentvolumes")
            if (it["spec"].get("claimRef") or {}).get("namespace") == self.bridged.remote_namespace
        ]

    def wait_until_bound(self, *names: str) -> None:
        """Waits until these claims are Bound in the home cluster."""

        def bound() -> bool:
            phases = self.phases()
            return all(phases.get(name) == "Bound" for name in names)

        wait_for(bound, f"{', '.join(names)} are Bound")

    def node_pod(self, name: str, claim: str, script: str = "sleep 3600", **fields: object) -> str:
        """A pod that the scheduler places on the virtual node, with the claim at ``/data``."""
        return json.dumps(self.node_pod_object(name, claim, script, **fields))

    def node_pod_object(
        self, name: str, claim: str, script: str = "sleep 3600", **fields: object
    ) -> Json:
        """As `node_pod`, as an object."""
        spec = {
            "containers": [shell("main", script, volumeMounts=DATA)],
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
        """Deletes the test's objects in the home cluster, and waits for the remote."""
        namespace = self.bridged.namespace
        kinds = "statefulsets,deployments,pods,persistentvolumeclaims"
        self.home.kubectl("delete", kinds, "--all", "-n", namespace, "--wait=false")
        wait_for(lambda: not self.claims(), "the claims are deleted")

        # A volume may go between the two requests, by the controllers or the bridge.
        delete = ("delete", "persistentvolume", "--ignore-not-found", "--wait=false")

        def volumes_are_gone() -> bool:
            for it in self.volumes():
                if it["spec"]["persistentVolumeReclaimPolicy"] == "Retain":
                    name = it["metadata"]["name"]
                    self.home.kubectl(*delete, name)
            return not self.volumes()

        wait_for(volumes_are_gone, "the volumes are deleted")
        self.remote.kubectl(
            *("delete", "persistentvolumeclaims", "--all", "--wait=false"),
            *("-n", self.bridged.remote_namespace),
        )
        wait_for(lambda: not self.remote_claims(), "no claim is left in the remote")


@contextlib.contextmanager
def load_volumes(storage: ProvisionedStorage, load: RandomLoad) -> Iterator[None]:
    """Adds volumes with both reclaim policies to a load; afterwards their classes are deleted."""
    with (
        storage.home_class("load") as deleting,
        storage.home_class("load-kept", retain=True) as retaining,
    ):
        load.use_volumes(deleting, retaining)
        yield
