"""The parties of storage around an engine: home's scheduler and PersistentVolume controller, and
the remote's provisioner."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from sync.kube.api_resources import (
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    STORAGE_CLASSES,
    Object,
)
from tests.sync.engine_harness import NODE, REMOTE_NAMESPACE, EngineHarness
from translators.quantity import parse_quantity
from translators.storage.identifiers import (
    ANNOTATION_PROVISIONER,
    ANNOTATION_SELECTED_NODE,
    DRIVER,
    remote_claim_name,
)

REMOTE_ID = "remote-1"
#: The StorageClass of home that the tests use.
CLASS = "bridge"


class Storage:
    """Two clusters with a StorageClass each, and the controllers of storage, which act when a test
    calls `act`."""

    def __init__(self, harness: EngineHarness) -> None:
        self.harness = harness
        self.home = harness.home
        self.remote = harness.remote
        self.home.put(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "cluster-bridge"}}
        )
        harness.policy = replace(harness.policy, storage="provision", remote_id=REMOTE_ID)

    def home_class(self, name: str = CLASS, **fields: object) -> Object:
        """Creates a class of home that the bridge serves."""
        return self.home.put(
            _storage_class(name) | {"provisioner": DRIVER, "reclaimPolicy": "Delete"} | fields
        )

    def remote_class(
        self, name: str = "fast", *, mode: str = "Immediate", default: bool = True
    ) -> None:
        """Creates a class of the remote."""
        made = _storage_class(name) | {"provisioner": "example.com/disk", "volumeBindingMode": mode}
        if default:
            key = "storageclass.kubernetes.io/is-default-class"
            made["metadata"]["annotations"] = {key: "true"}
        self.remote.put(made)

    def claim(
        self,
        name: str = "data",
        namespace: str = "default",
        *,
        node: str = NODE,
        size: str = "1Gi",
        of_class: str = CLASS,
        **spec: object,
    ) -> Object:
        """Creates a home PVC for which the scheduler has selected ``node``, if one is given."""
        annotations = {ANNOTATION_PROVISIONER: DRIVER}
        if node:
            annotations[ANNOTATION_SELECTED_NODE] = node
        return self.home.put(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {"name": name, "namespace": namespace, "annotations": annotations},
                "spec": {
                    "storageClassName": of_class,
                    "accessModes": ["ReadWriteOnce"],
                    "volumeMode": "Filesystem",
                    "resources": {"requests": {"storage": size}},
                    **spec,
                },
                "status": {"phase": "Pending"},
            }
        )

    def home_claim(self, name: str = "data", namespace: str = "default") -> Object:
        """The home PVC."""
        return self.home.get(PERSISTENT_VOLUME_CLAIMS, name, namespace)

    def volumes(self) -> list[Object]:
        """Home's PersistentVolumes."""
        return self.home.objects(PERSISTENT_VOLUMES)

    def volume(self) -> Object:
        """Home's only PersistentVolume."""
        (found,) = self.volumes()
        return found

    def remote_claims(self) -> list[Object]:
        """The remote's PVCs."""
        return self.remote.objects(PERSISTENT_VOLUME_CLAIMS)

    def remote_claim(self, home: Object) -> Object | None:
        """The remote PVC for a home PVC."""
        namespace = f"{home['metadata']['namespace']}-h"
        return self.remote.find(PERSISTENT_VOLUME_CLAIMS, remote_claim_name(home), namespace)

    async def bound(self, name: str = "data", **claim: object) -> Object:
        """A home PVC that the bridge has provisioned. `EngineHarness.start` must have been
        called."""
        self.claim(name, **claim)  # type: ignore[arg-type]
        await self.settle()
        made = self.home_claim(name)
        assert made["status"]["phase"] == "Bound", made
        return made

    def act(self) -> bool:
        """Lets each controller act once; returns whether one of them changed anything."""
        steps: tuple[Callable[[], bool], ...] = (
            self._bind_home,
            self._release_home,
            self._provision_remote,
            self._expand_remote,
        )
        changed = [step() for step in steps]
        return any(changed)

    async def settle(self, *, waiting: bool = False) -> None:
        """Waits until the bridge and all controllers have nothing left to do."""
        await self.harness.settle(waiting=waiting)
        while self.act():
            await self.harness.settle(waiting=waiting)

    def _bind_home(self) -> bool:
        """The PersistentVolume controller binds each volume to the PVC that it is for."""
        changed = False
        for volume in self.volumes():
            reference = volume["spec"]["claimRef"]
            claim = self.home.find(
                PERSISTENT_VOLUME_CLAIMS, reference["name"], reference["namespace"]
            )
            is_for = claim is not None and claim["metadata"]["uid"] == reference.get("uid")
            if claim is None or not is_for or claim["status"].get("phase") == "Bound":
                continue
            name, capacity = volume["metadata"]["name"], volume["spec"]["capacity"]
            self.home.update(
                PERSISTENT_VOLUME_CLAIMS,
                claim["metadata"]["name"],
                {"spec": {"volumeName": name}, "status": {"phase": "Bound", "capacity": capacity}},
                claim["metadata"]["namespace"],
            )
            self.home.update(PERSISTENT_VOLUMES, name, {"status": {"phase": "Bound"}})
            changed = True
        return changed

    def _release_home(self) -> bool:
        """The PersistentVolume controller releases the volumes of deleted PVCs."""
        changed = False
        for volume in self.volumes():
            reference = volume["spec"]["claimRef"]
            claim = self.home.find(
                PERSISTENT_VOLUME_CLAIMS, reference["name"], reference["namespace"]
            )
            exists = claim is not None and claim["metadata"]["uid"] == reference.get("uid")
            if not exists and (volume.get("status") or {}).get("phase") != "Released":
                name = volume["metadata"]["name"]
                self.home.update(PERSISTENT_VOLUMES, name, {"status": {"phase": "Released"}})
                changed = True
        return changed

    def _provision_remote(self) -> bool:
        """The remote's provisioner binds PVCs of Immediate classes, and PVCs of pods."""
        changed = False
        for claim in self.remote_claims():
            if (claim.get("status") or {}).get("phase") == "Bound":
                continue
            if self._waits_for_pod(claim):
                continue
            self.bind_remote(claim, claim["spec"]["resources"]["requests"]["storage"])
            changed = True
        return changed

    def bind_remote(self, claim: Object, capacity: str) -> None:
        """The remote's provisioner binds a PVC to a volume of this capacity."""
        self.remote.update(
            PERSISTENT_VOLUME_CLAIMS,
            claim["metadata"]["name"],
            {
                "spec": {"volumeName": f"disk-{claim['metadata']['uid']}"},
                "status": {"phase": "Bound", "capacity": {"storage": capacity}},
            },
            claim["metadata"]["namespace"],
        )

    def _expand_remote(self) -> bool:
        """The remote's resizer grows bound volumes to the request."""
        changed = False
        for claim in self.remote_claims():
            status = claim.get("status") or {}
            wanted = claim["spec"]["resources"]["requests"]["storage"]
            if status.get("phase") == "Bound" and _is_less(status["capacity"]["storage"], wanted):
                self.bind_remote(claim, wanted)
                changed = True
        return changed

    def _waits_for_pod(self, claim: Object) -> bool:
        classes = self.remote.objects(STORAGE_CLASSES)
        name = claim["spec"].get("storageClassName")
        modes = {it["metadata"]["name"]: it["volumeBindingMode"] for it in classes}
        mode = modes.get(name) if name else next(iter(modes.values()), None)
        pods = [
            volume["persistentVolumeClaim"]["claimName"]
            for pod in self._remote_pods()
            for volume in pod["spec"].get("volumes") or ()
            if "persistentVolumeClaim" in volume
        ]
        return mode == "WaitForFirstConsumer" and claim["metadata"]["name"] not in pods

    def _remote_pods(self) -> list[Object]:
        pod = self.harness.remote_pod()
        return [pod] if pod is not None else []


def _is_less(quantity: str, other: str) -> bool:
    return parse_quantity(quantity) < parse_quantity(other)


def _storage_class(name: str) -> Object:
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": name},
        "volumeBindingMode": "WaitForFirstConsumer",
        "allowVolumeExpansion": True,
    }


__all__ = ["CLASS", "NODE", "REMOTE_ID", "REMOTE_NAMESPACE", "Storage"]
