"""A pod mounts the remote PVC of its home PVC, and waits while there is none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sync.kube.api_resources import PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, Object
from sync.storage.pvc_lookup import PvcLookup
from tests.conftest import ClientFor
from tests.sync.engine_harness import REMOTE_NAMESPACE
from tests.sync.single_controller import controller_context
from tests.sync.storage.storage_harness import Storage
from translators.storage.identifiers import ANNOTATION_REMOTE_PVC
from translators.storage.pvc_resolution import REASON_UNREACHABLE, REASON_WAITING, Unresolved

_VOLUMES = [{"name": "v", "persistentVolumeClaim": {"claimName": "data", "readOnly": True}}]


def _bind_elsewhere(storage: Storage, **source: object) -> None:
    """Binds the home PVC to a volume of another driver."""
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": "local-1"},
        "spec": {"claimRef": {"namespace": "default", "name": "data", "uid": "u"}, **source},
    }
    storage.home.put(volume)
    bound = {"spec": {"volumeName": "local-1"}, "status": {"phase": "Bound"}}
    storage.home.update(PERSISTENT_VOLUME_CLAIMS, "data", bound, "default")


def _mounts(storage: Storage) -> list[Object]:
    remote = storage.harness.remote_pod()
    assert remote is not None
    volumes: list[Object] = remote["spec"]["volumes"]
    return [it for it in volumes if it["name"] == "v"]


async def test_pod_mounts_remote_claim_of_its_claim(storage: Storage) -> None:
    await storage.harness.start()
    home = await storage.bound()
    storage.harness.pod(volumes=_VOLUMES)
    await storage.settle()
    remote = storage.remote_claim(home)
    assert remote is not None
    mount = {"claimName": remote["metadata"]["name"], "readOnly": True}
    assert _mounts(storage) == [{"name": "v", "persistentVolumeClaim": mount}]


async def test_refresh_reads_what_the_caches_lack(storage: Storage, client_for: ClientFor) -> None:
    """Home binds a pod right after its claim, and the caches may show the pod first."""
    await storage.harness.start()
    await storage.bound()
    pod = storage.harness.pod(volumes=_VOLUMES)
    home, remote = (
        await client_for(storage.home, "home"),
        await client_for(storage.remote, "remote"),
    )
    context = controller_context(home, remote, storage.harness.policy)
    assert context.storage is not None
    lookup = PvcLookup(context, context.storage)
    context.storage.home_volumes.observe_write(storage.volume())
    assert _reason(lookup.claims_of(pod)) == REASON_WAITING
    await lookup.refresh(pod)
    assert _reason(lookup.claims_of(pod)) == REASON_UNREACHABLE, "only the remote's is unknown"


def _reason(claims: dict[str, str] | Unresolved) -> str:
    return claims.reason if isinstance(claims, Unresolved) else ""


async def test_ephemeral_volume_mounts_claim_that_home_created(storage: Storage) -> None:
    await storage.harness.start()
    template = {"spec": {"resources": {"requests": {"storage": "1Gi"}}}}
    ephemeral = {"name": "v", "ephemeral": {"volumeClaimTemplate": template}}
    pod = storage.harness.pod(volumes=[ephemeral])
    storage.claim("a-v", node="")
    owner = {
        "apiVersion": "v1",
        "kind": "Pod",
        "name": "a",
        "uid": pod["metadata"]["uid"],
        "controller": True,
    }
    metadata = {"metadata": {"ownerReferences": [owner]}}
    storage.home.update(PERSISTENT_VOLUME_CLAIMS, "a-v", metadata, "default")
    await storage.settle(waiting=True)
    (remote,) = storage.remote_claims()
    assert _mounts(storage) == [
        {"name": "v", "persistentVolumeClaim": {"claimName": remote["metadata"]["name"]}}
    ]


async def test_ephemeral_volume_does_not_mount_claim_of_another(storage: Storage) -> None:
    await storage.harness.start()
    await storage.bound("a-v")
    template = {"spec": {"resources": {"requests": {"storage": "1Gi"}}}}
    storage.harness.pod(volumes=[{"name": "v", "ephemeral": {"volumeClaimTemplate": template}}])
    await storage.settle(waiting=True)
    assert storage.harness.remote_pod() is None
    assert "was not created for this pod" in storage.harness.status()["message"]


async def test_pod_with_missing_claim_waits(storage: Storage) -> None:
    await storage.harness.start()
    storage.harness.pod(volumes=_VOLUMES)
    await storage.settle(waiting=True)
    assert storage.harness.remote_pod() is None
    assert storage.harness.status()["reason"] == "VolumePending"
    storage.claim(node="")
    await storage.settle(waiting=True)
    assert storage.harness.remote_pod() is not None


async def test_pod_never_mounts_claim_of_same_name_in_remote(storage: Storage) -> None:
    storage.remote.put(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "data", "namespace": REMOTE_NAMESPACE},
            "spec": {"resources": {"requests": {"storage": "1Gi"}}},
        }
    )
    storage.claim(of_class="local")
    _bind_elsewhere(storage, hostPath={"path": "/x"})
    await storage.harness.start()
    storage.harness.pod(volumes=_VOLUMES)
    await storage.settle(waiting=True)
    assert storage.harness.remote_pod() is None
    assert storage.harness.status()["reason"] == "VolumeNotInRemote"


async def test_annotation_names_existing_remote_claim(storage: Storage) -> None:
    storage.claim(of_class="local")
    _bind_elsewhere(storage, csi={"driver": "ebs.example.com", "volumeHandle": "vol-1"})
    annotations = {"metadata": {"annotations": {ANNOTATION_REMOTE_PVC: "shared"}}}
    storage.home.update(PERSISTENT_VOLUME_CLAIMS, "data", annotations, "default")
    await storage.harness.start()
    storage.harness.pod(volumes=_VOLUMES)
    await storage.settle()
    assert _mounts(storage)[0]["persistentVolumeClaim"]["claimName"] == "shared"


async def test_another_virtual_node_of_the_remote_mounts_the_volume(storage: Storage) -> None:
    await storage.harness.start()
    home = await storage.bound()
    await storage.harness.stop()
    storage.harness.identity = replace(storage.harness.identity, node="second")
    await storage.harness.start()
    storage.harness.pod(volumes=_VOLUMES, nodeName="second")
    await storage.settle()
    remote = storage.remote_claim(home)
    assert remote is not None
    assert _mounts(storage)[0]["persistentVolumeClaim"]["claimName"] == remote["metadata"]["name"]
    assert len(storage.remote_claims()) == 1


async def test_pod_waits_for_lost_remote_claim(storage: Storage) -> None:
    await storage.harness.start()
    home = await storage.bound()
    remote = storage.remote_claim(home)
    assert remote is not None
    storage.remote.remove(PERSISTENT_VOLUME_CLAIMS, remote["metadata"]["name"], REMOTE_NAMESPACE)
    storage.harness.pod(volumes=_VOLUMES)
    await storage.settle(waiting=True)
    assert storage.harness.remote_pod() is None
    assert "does not exist; restore it" in storage.harness.status()["message"]
    assert not storage.remote_claims(), "an empty volume would hide the loss"


async def test_retained_volume_is_mounted_by_its_new_claim(storage: Storage) -> None:
    storage.home_class(reclaimPolicy="Retain")
    await storage.harness.start()
    await storage.bound()
    storage.home.delete(PERSISTENT_VOLUME_CLAIMS, "data", "default")
    await storage.settle()
    (remote,) = storage.remote_claims()
    volume = storage.volume()
    again = storage.claim(volumeName=volume["metadata"]["name"])
    reference = {"namespace": "default", "name": "data", "uid": again["metadata"]["uid"]}
    storage.home.update(
        PERSISTENT_VOLUMES,
        volume["metadata"]["name"],
        {"spec": {"claimRef": reference}, "status": {"phase": "Available"}},
    )
    storage.harness.pod(volumes=_VOLUMES)
    await storage.settle(waiting=True)
    assert len(storage.remote_claims()) == 1
    assert _mounts(storage)[0]["persistentVolumeClaim"]["claimName"] == remote["metadata"]["name"]


async def test_claim_with_a_forged_status_is_not_mounted(storage: Storage) -> None:
    """A user who may write the status of PVCs names the PersistentVolume of another PVC."""
    await storage.harness.start()
    home = await storage.bound("other")
    storage.claim("data", volumeName=home["spec"]["volumeName"])
    bound = {"status": {"phase": "Bound"}}
    storage.home.update(PERSISTENT_VOLUME_CLAIMS, "data", bound, "default")
    storage.harness.pod(volumes=_VOLUMES)
    await storage.harness.settle(waiting=True)
    assert storage.harness.remote_pod() is None
    assert storage.harness.status()["reason"] == REASON_WAITING


@pytest.mark.parametrize("is_deleting", [True, False])
async def test_pod_does_not_start_with_claim_that_is_being_deleted(
    storage: Storage, is_deleting: bool
) -> None:
    await storage.harness.start()
    await storage.bound()
    protection = {"metadata": {"finalizers": ["kubernetes.io/pvc-protection"]}}
    storage.home.update(PERSISTENT_VOLUME_CLAIMS, "data", protection, "default")
    if is_deleting:
        storage.home.delete(PERSISTENT_VOLUME_CLAIMS, "data", "default")
    storage.harness.pod(volumes=_VOLUMES)
    await storage.settle(waiting=True)
    assert (storage.harness.remote_pod() is None) == is_deleting


async def test_without_provisioning_pod_mounts_claim_of_same_name(storage: Storage) -> None:
    storage.harness.policy = replace(storage.harness.policy, storage="none")
    await storage.harness.start()
    storage.claim()
    storage.harness.pod(volumes=_VOLUMES)
    await storage.settle()
    assert not storage.remote_claims()
    assert _mounts(storage) == _VOLUMES
