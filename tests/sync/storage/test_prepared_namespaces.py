"""Volumes in prepared namespaces, where the credential may read only these."""

from __future__ import annotations

from dataclasses import replace

from sync.kube.api_resources import CSI_STORAGE_CAPACITIES, NAMESPACES, PERSISTENT_VOLUME_CLAIMS
from tests.fakeapi import Fault
from tests.sync.engine_harness import REMOTE_NAMESPACE
from tests.sync.storage.storage_harness import Storage
from translators.ownership_labels import ANNOTATION_ACCEPTS


async def test_volumes_live_in_prepared_namespaces(storage: Storage) -> None:
    for name in (REMOTE_NAMESPACE, "other-h"):
        meta = {"name": name, "annotations": {ANNOTATION_ACCEPTS: "*"}}
        storage.remote.put({"apiVersion": "v1", "kind": "Namespace", "metadata": meta})
        storage.remote.put(
            {
                "apiVersion": "v1",
                "kind": "ResourceQuota",
                "metadata": {"name": "q", "namespace": name},
                "spec": {"hard": {"requests.storage": "4Gi"}},
                "status": {},
            }
        )
    for resource in ("persistentvolumeclaims", "events"):
        storage.remote.fail(Fault("GET", f"/api/v1/{resource}", code=403, times=None))
    storage.harness.policy = replace(
        storage.harness.policy, remote_namespaces=(REMOTE_NAMESPACE, "other-h")
    )
    await storage.harness.start()
    (capacity,) = storage.home.objects(CSI_STORAGE_CAPACITIES)
    assert capacity["capacity"] == "4Gi"
    home = await storage.bound()
    assert storage.remote_claim(home)
    storage.claim("elsewhere", "third")
    await storage.settle(waiting=True)
    (event,) = await storage.harness.events_with_reason("ProvisioningFailed")
    assert event["involvedObject"]["name"] == "elsewhere"
    storage.home.delete(PERSISTENT_VOLUME_CLAIMS, "data", "default")
    await storage.settle(waiting=True)
    assert not storage.remote_claims()
    assert storage.remote.find(NAMESPACES, REMOTE_NAMESPACE)
