"""The bridge provisions home's PVCs in the remote, and follows them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from sync.base.background_task import background_task
from sync.cache.store import Key
from sync.kube.api_resources import (
    EVENTS,
    NAMESPACES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    Object,
)
from sync.storage.provisioning_failures import MEMORY
from sync.storage.pvc_controller import PvcController
from tests.fakeapi import Fault
from tests.objects import pod
from tests.sync.engine_harness import NODE, REMOTE_NAMESPACE
from tests.sync.kept_writes import kept_bytes
from tests.sync.storage.storage_harness import REMOTE_ID, Storage
from translators.object_accessors import uid_of
from translators.ownership_labels import LABEL_HOME, LABEL_REMOTE
from translators.storage.identifiers import (
    ANNOTATION_PROVISIONED_BY,
    ANNOTATION_SELECTED_NODE,
    ANNOTATION_UNFINISHED,
    DRIVER,
    FINALIZER,
)

_CLAIM_VOLUME = [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]


async def _failure(storage: Storage) -> str:
    event, *_ = await storage.harness.events_with_reason("ProvisioningFailed")
    return str(event["message"])


async def test_claim_is_bound_to_volume_in_remote(storage: Storage) -> None:
    await storage.harness.start()
    home = await storage.bound()
    remote = storage.remote_claim(home)
    assert remote is not None
    assert remote["metadata"]["labels"][LABEL_HOME]
    assert ANNOTATION_UNFINISHED not in remote["metadata"]["annotations"]
    assert not any("volume" in key for key in remote["metadata"]["annotations"])
    assert "storageClassName" not in remote["spec"]
    volume = storage.volume()
    assert volume["metadata"]["name"] == f"pvc-{home['metadata']['uid']}"
    assert volume["metadata"]["finalizers"] == [FINALIZER]
    assert volume["metadata"]["annotations"][ANNOTATION_PROVISIONED_BY] == DRIVER
    (term,) = volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
    assert term["matchExpressions"] == [
        {"key": LABEL_REMOTE, "operator": "In", "values": [REMOTE_ID]}
    ]
    assert volume["spec"]["csi"]["volumeHandle"] == (
        f"{REMOTE_ID}/{REMOTE_NAMESPACE}/{remote['metadata']['name']}"
    )


async def test_volume_has_capacity_of_remote_volume(storage: Storage) -> None:
    await storage.harness.start()
    home = storage.claim(size="1Gi")
    await storage.harness.settle()
    assert not storage.volumes()
    storage.bind_remote(storage.remote_claims()[0], "4Gi")
    await storage.settle()
    assert storage.volume()["spec"]["capacity"] == {"storage": "4Gi"}
    assert storage.home_claim(home["metadata"]["name"])["status"]["capacity"]["storage"] == "4Gi"


async def test_claim_with_wait_for_first_consumer_is_bound_before_remote(storage: Storage) -> None:
    storage.remote_class(mode="WaitForFirstConsumer")
    await storage.harness.start()
    home = await storage.bound(size="1Gi")
    remote = storage.remote_claim(home)
    assert remote is not None
    assert "status" not in remote or remote["status"].get("phase") != "Bound"
    storage.bind_remote(remote, "2Gi")
    await storage.settle()
    assert storage.volume()["spec"]["capacity"] == {"storage": "2Gi"}
    assert storage.home_claim()["status"]["capacity"] == {"storage": "2Gi"}


@pytest.mark.parametrize("node", ["", "another"])
async def test_claim_of_another_node_is_ignored(storage: Storage, node: str) -> None:
    await storage.harness.start()
    storage.harness.clear_logs()
    storage.claim(node=node)
    await storage.settle()
    assert not storage.remote_claims()
    assert not storage.harness.writes()


async def test_claim_of_another_class_is_ignored(storage: Storage) -> None:
    storage.home_class("local", provisioner="example.com/local")
    await storage.harness.start()
    storage.harness.clear_logs()
    storage.claim(of_class="local")
    await storage.settle()
    assert not storage.harness.writes()


async def test_class_names_remote_class(storage: Storage) -> None:
    storage.remote_class("slow", default=False)
    storage.home_class("archive", parameters={"remoteStorageClass": "slow"})
    await storage.harness.start()
    await storage.bound(of_class="archive")
    assert storage.remote_claims()[0]["spec"]["storageClassName"] == "slow"


async def test_unknown_remote_class_gives_claim_back(storage: Storage) -> None:
    storage.home_class("archive", parameters={"remoteStorageClass": "tape"})
    await storage.harness.start()
    storage.claim(of_class="archive")
    await storage.settle()
    assert "the remote has no StorageClass tape" in await _failure(storage)
    annotations = storage.home_claim()["metadata"]["annotations"]
    assert ANNOTATION_SELECTED_NODE not in annotations
    assert not storage.remote_claims()


async def test_claim_is_provisioned_after_remote_gets_class(storage: Storage) -> None:
    storage.home_class("archive", parameters={"remoteStorageClass": "tape"})
    await storage.harness.start()
    storage.claim(of_class="archive")
    await storage.settle()
    storage.home.update(
        PERSISTENT_VOLUME_CLAIMS,
        "data",
        {"metadata": {"annotations": {ANNOTATION_SELECTED_NODE: NODE}}},
        "default",
    )
    await storage.settle()
    assert not storage.remote_claims()
    storage.remote_class("tape", default=False)
    await storage.settle()
    assert storage.home_claim()["status"]["phase"] == "Bound"


async def test_rejection_by_quota_gives_claim_back(storage: Storage) -> None:
    storage.remote.fail(
        Fault("POST", "*/persistentvolumeclaims", code=403, message="exceeded quota: gold")
    )
    await storage.harness.start()
    storage.claim()
    await storage.settle()
    assert "exceeded quota: gold" in await _failure(storage)
    assert ANNOTATION_SELECTED_NODE not in storage.home_claim()["metadata"]["annotations"]


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ({"selector": {"matchLabels": {"a": "b"}}}, "spec.selector"),
        ({"volumeAttributesClassName": "gold"}, "VolumeAttributesClass gold"),
        (
            {
                "dataSource": {
                    "apiGroup": "snapshot.storage.k8s.io",
                    "kind": "VolumeSnapshot",
                    "name": "s",
                }
            },
            "VolumeSnapshot s is not in this remote",
        ),
        ({"dataSource": {"kind": "PersistentVolumeClaim", "name": "other"}}, "cannot be used"),
    ],
)
async def test_unsupported_field_gives_claim_back(
    storage: Storage, spec: Object, problem: str
) -> None:
    await storage.harness.start()
    storage.claim(**spec)
    await storage.settle()
    assert problem in await _failure(storage)
    assert not storage.remote_claims()


async def test_clone_names_remote_claim_of_its_source(storage: Storage) -> None:
    await storage.harness.start()
    source = await storage.bound("source")
    clone = await storage.bound(
        "clone", dataSource={"kind": "PersistentVolumeClaim", "name": "source"}
    )
    remote, remote_source = storage.remote_claim(clone), storage.remote_claim(source)
    assert remote is not None
    assert remote_source is not None
    assert remote["spec"]["dataSource"]["name"] == remote_source["metadata"]["name"]


async def test_namespace_that_is_not_bound_gets_nothing_in_remote(storage: Storage) -> None:
    storage.home.fail(
        Fault(
            "PATCH",
            "*/persistentvolumeclaims/data",
            code=403,
            message='User "system:serviceaccount:cluster-bridge:cluster-bridge" cannot patch',
            times=None,
        )
    )
    await storage.harness.start()
    storage.claim()
    await storage.settle(waiting=True)
    assert "bridge rbac namespace default" in await _failure(storage)
    assert not storage.harness.remote.writes()


async def test_stale_cache_makes_no_empty_volume_for_a_bound_claim(storage: Storage) -> None:
    """A replica that takes over may see a PVC as it was before it was bound."""
    await storage.harness.start()
    home = await storage.bound()
    await storage.harness.stop()
    remote = storage.remote_claim(home)
    assert remote is not None
    storage.remote.remove(PERSISTENT_VOLUME_CLAIMS, remote["metadata"]["name"], REMOTE_NAMESPACE)
    stale = {
        **storage.home_claim(),
        "spec": {**home["spec"], "volumeName": ""},
        "status": {"phase": "Pending"},
    }
    await storage.harness.start()
    storage_informers = storage.harness.engine.find(PvcController).storage
    storage_informers.home_claims.store.put(stale)
    storage_informers.home_volumes.store.remove(Key("", storage.volume()["metadata"]["name"]))
    storage.harness.clear_logs()
    storage.harness.engine.find(PvcController).controller.queue.add(Key("default", "data"))
    await storage.settle(waiting=True)
    assert not storage.remote_claims()
    assert not storage.remote.writes()


async def test_one_name_in_two_namespaces_has_two_remote_claims(storage: Storage) -> None:
    await storage.harness.start()
    storage.claim(namespace="default")
    storage.claim(namespace="other")
    await storage.settle()
    names = {it["metadata"]["name"] for it in storage.remote_claims()}
    assert len(names) == 2
    assert len(storage.volumes()) == 2


async def test_claim_of_pod_bound_by_node_name_is_provisioned(storage: Storage) -> None:
    await storage.harness.start()
    storage.claim(node="")
    storage.harness.pod(volumes=_CLAIM_VOLUME)
    await storage.settle(waiting=True)
    assert storage.home_claim()["metadata"]["annotations"][ANNOTATION_SELECTED_NODE] == NODE
    remote = storage.harness.remote_pod()
    assert remote is not None
    claim = storage.remote_claims()[0]["metadata"]["name"]
    assert remote["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"] == claim


@pytest.mark.parametrize(("remotes", "is_served"), [([REMOTE_ID], True), ([], False)])
async def test_immediate_class_is_served_if_it_names_the_remote(
    storage: Storage, remotes: list[str], is_served: bool
) -> None:
    term = {"key": LABEL_REMOTE, "values": remotes}
    topologies = [{"matchLabelExpressions": [term]}] if remotes else []
    storage.home_class(volumeBindingMode="Immediate", allowedTopologies=topologies)
    await storage.harness.start()
    storage.claim(node="")
    await storage.settle()
    assert (storage.home_claim()["status"]["phase"] == "Bound") == is_served


async def test_empty_namespace_of_claim_is_deleted_and_one_with_data_is_not(
    storage: Storage,
) -> None:
    storage.harness.namespace_linger = 0.0
    await storage.harness.start()
    await storage.bound()
    storage.home.delete(PERSISTENT_VOLUME_CLAIMS, "data", "default")
    await storage.settle()
    await storage.remote.until(
        lambda: any(
            it.method == "PATCH" and it.path.endswith(f"/namespaces/{REMOTE_NAMESPACE}")
            for it in storage.remote.writes()
        )
    )
    storage.home_class(reclaimPolicy="Retain")
    await storage.bound()
    storage.home.delete(PERSISTENT_VOLUME_CLAIMS, "data", "default")
    await storage.settle()
    assert storage.remote.find(NAMESPACES, REMOTE_NAMESPACE)
    assert len(storage.remote_claims()) == 1


async def test_expansion_reaches_home(storage: Storage) -> None:
    await storage.harness.start()
    home = await storage.bound(size="1Gi")
    storage.home.update(
        PERSISTENT_VOLUME_CLAIMS,
        "data",
        {"spec": {"resources": {"requests": {"storage": "3Gi"}}}},
        "default",
    )
    await storage.harness.settle()
    remote = storage.remote_claim(home)
    assert remote is not None
    assert remote["spec"]["resources"]["requests"]["storage"] == "3Gi"
    resizing = {"type": "Resizing", "status": "True"}
    storage.remote.update(
        PERSISTENT_VOLUME_CLAIMS,
        remote["metadata"]["name"],
        {"status": {"conditions": [resizing], "allocatedResources": {"storage": "3Gi"}}},
        REMOTE_NAMESPACE,
    )
    await storage.harness.settle()
    assert storage.home_claim()["status"]["conditions"] == [resizing]
    assert storage.home_claim()["status"]["allocatedResources"] == {"storage": "3Gi"}
    storage.remote.update(
        PERSISTENT_VOLUME_CLAIMS,
        remote["metadata"]["name"],
        {"status": {"conditions": None}},
        REMOTE_NAMESPACE,
    )
    await storage.settle()
    assert storage.volume()["spec"]["capacity"] == {"storage": "3Gi"}
    assert storage.home_claim()["status"]["capacity"] == {"storage": "3Gi"}
    assert not storage.home_claim()["status"].get("conditions")


async def test_rejected_expansion_is_reported(storage: Storage) -> None:
    await storage.harness.start()
    await storage.bound(size="1Gi")
    storage.remote.fail(
        Fault("PATCH", "*/persistentvolumeclaims/*", code=403, message="cannot grow", times=None)
    )
    storage.home.update(
        PERSISTENT_VOLUME_CLAIMS,
        "data",
        {"spec": {"resources": {"requests": {"storage": "3Gi"}}}},
        "default",
    )
    await storage.harness.settle(waiting=True)
    (event,) = await storage.harness.events_with_reason("VolumeResizeFailed")
    assert "cannot grow" in event["message"]


def _reject(storage: Storage, message: str, which: Callable[[Object], bool]) -> None:
    """The remote rejects patches of PVCs with such a body."""
    storage.remote.fail(
        Fault(
            "PATCH",
            "*/persistentvolumeclaims/*",
            when=lambda entry: which(entry.body),
            code=403,
            message=message,
            times=None,
        )
    )


async def test_rejected_expansion_delays_no_other_change(storage: Storage) -> None:
    await storage.harness.start()
    home = await storage.bound(size="1Gi")
    remote = storage.remote_claim(home)
    assert remote is not None
    name = remote["metadata"]["name"]
    _reject(storage, "larger", lambda body: "spec" in body)
    change = {
        "metadata": {"labels": {"app": "db"}},
        "spec": {"resources": {"requests": {"storage": "3Gi"}}},
    }
    storage.home.update(PERSISTENT_VOLUME_CLAIMS, "data", change, "default")
    storage.remote.update(
        PERSISTENT_VOLUME_CLAIMS,
        name,
        {"status": {"capacity": {"storage": "2Gi"}}},
        REMOTE_NAMESPACE,
    )
    await storage.harness.settle(waiting=True)
    assert await storage.harness.events_with_reason("VolumeResizeFailed")
    found = storage.remote.get(PERSISTENT_VOLUME_CLAIMS, name, REMOTE_NAMESPACE)
    assert found["metadata"]["labels"]["app"] == "db"
    assert storage.home_claim()["status"]["capacity"] == {"storage": "2Gi"}


async def test_rejected_labels_delay_no_expansion(storage: Storage) -> None:
    await storage.harness.start()
    home = await storage.bound(size="1Gi")
    _reject(storage, "no labels", lambda body: "labels" in body.get("metadata", {}))
    _update_labels(storage, {"app": "db"})
    await storage.harness.settle(waiting=True)
    grow = {"spec": {"resources": {"requests": {"storage": "3Gi"}}}}
    storage.home.update(PERSISTENT_VOLUME_CLAIMS, "data", grow, "default")
    await storage.settle(waiting=True)
    assert await storage.harness.events_with_reason("UpdateRefused")
    remote = storage.remote_claim(home)
    assert remote is not None
    assert remote["spec"]["resources"]["requests"]["storage"] == "3Gi"


def _failure_event(remote: Object) -> Object:
    """An Event of the remote's provisioner."""
    meta = remote["metadata"]
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "e", "namespace": meta["namespace"]},
        "involvedObject": {
            "kind": "PersistentVolumeClaim",
            "namespace": meta["namespace"],
            "name": meta["name"],
            "uid": meta["uid"],
        },
        "type": "Warning",
        "reason": "ProvisioningFailed",
        "message": "no disk is free",
        "count": 1,
    }


async def test_warning_of_remote_provisioner_is_repeated_at_home(storage: Storage) -> None:
    await storage.harness.start()
    storage.claim()
    await storage.harness.settle()
    (remote,) = storage.remote_claims()
    event = _failure_event(remote)
    storage.remote.put(event)
    storage.remote.put({**event, "count": 2})
    (found,) = await storage.harness.events_with_reason("ProvisioningFailed")
    assert found["message"] == "remote: no disk is free"
    assert found["involvedObject"]["name"] == "data"
    assert found["count"] == 1


async def test_long_message_of_remote_provisioner_is_cut_before_it_is_kept(
    storage: Storage,
) -> None:
    await storage.harness.start()
    storage.claim()
    await storage.harness.settle()
    (remote,) = storage.remote_claims()
    storage.remote.put({**_failure_event(remote), "message": "x" * 500_000})
    (found,) = await storage.harness.events_with_reason("ProvisioningFailed")
    assert found["message"].startswith("remote: xxx")
    watches = storage.harness.engine.find(PvcController).declare().watches
    informers = [watch.informer for watch in watches if watch.informer.resource == EVENTS]
    (kept,) = [event for informer in informers for event in informer.store]
    assert len(kept["message"]) == 1024


async def _fail(storage: Storage, *times: int, message: str = "no disk is free") -> None:
    """The remote's provisioner reports a failure at each of these seconds."""
    (remote,) = storage.remote_claims()
    before = 0
    for count, at in enumerate(times, start=1):
        await asyncio.sleep(at - before)
        before = at
        storage.remote.put({**_failure_event(remote), "message": message, "count": count})
        await storage.harness.settle()


async def test_lasting_failure_of_remote_provisioner_gives_claim_back(storage: Storage) -> None:
    await storage.harness.start()
    storage.claim()
    await storage.harness.settle()
    await _fail(storage, 1, 3, 7, 15, 31, 63)
    assert not storage.remote_claims()
    assert ANNOTATION_SELECTED_NODE not in storage.home_claim()["metadata"]["annotations"]
    events = await storage.harness.events_with_reason("ProvisioningFailed")
    assert any("use another StorageClass" in event["message"] for event in events)


@pytest.mark.parametrize("times", [(2,), (2, 4, 8), (2, 600)])
async def test_failure_that_passed_does_not_interrupt_slow_provisioning(
    storage: Storage, times: tuple[int, ...]
) -> None:
    await storage.harness.start()
    storage.claim()
    await storage.harness.settle()
    (remote,) = storage.remote_claims()
    await _fail(storage, *times)
    await asyncio.sleep(2 * MEMORY)
    storage.remote.update(
        PERSISTENT_VOLUME_CLAIMS,
        remote["metadata"]["name"],
        {"metadata": {"labels": {"a": "b"}}},
        REMOTE_NAMESPACE,
    )
    await storage.settle()
    assert storage.home_claim()["status"]["phase"] == "Bound"
    assert storage.remote_claims()[0]["metadata"]["uid"] == remote["metadata"]["uid"]


@pytest.mark.parametrize("code", ["DeadlineExceeded", "Aborted", "Unavailable", "Canceled"])
async def test_driver_that_continues_is_not_interrupted(storage: Storage, code: str) -> None:
    """external-provisioner reports such an error at each of its attempts, while the driver
    continues (its `isFinalError`)."""
    await storage.harness.start()
    storage.claim()
    await storage.harness.settle()
    before = storage.remote_claims()
    message = f"failed to provision volume: rpc error: code = {code} desc = still copying"
    await _fail(storage, *range(15, 600, 15), message=message)
    assert storage.remote_claims() == before


async def test_failing_clone_is_not_given_back(storage: Storage) -> None:
    """No other remote can have it, and another attempt would copy all data again."""
    await storage.harness.start()
    await storage.bound("source")
    storage.claim("data", dataSource={"kind": "PersistentVolumeClaim", "name": "source"})
    await storage.harness.settle()
    remote = storage.remote_claim(storage.home_claim())
    assert remote is not None
    for count in range(10):
        storage.remote.put({**_failure_event(remote), "count": count})
        await storage.harness.settle()
        await asyncio.sleep(15)
    assert storage.remote_claim(storage.home_claim()) is not None


async def test_smaller_volume_than_requested_gives_claim_back(storage: Storage) -> None:
    """The home cluster does not bind it: a defect of the remote's provisioner."""
    await storage.harness.start()
    storage.claim(size="2Gi")
    await storage.harness.settle()
    storage.bind_remote(storage.remote_claims()[0], "1Gi")
    await storage.harness.settle()
    assert "1Gi, which is less than the requested 2Gi" in await _failure(storage)
    assert not storage.remote_claims()
    assert not storage.volumes()


async def test_unfinished_claim_of_deleted_home_claim_is_deleted(storage: Storage) -> None:
    await storage.harness.start()
    storage.claim()
    await storage.harness.settle()
    assert len(storage.remote_claims()) == 1
    storage.home.delete(PERSISTENT_VOLUME_CLAIMS, "data", "default")
    await storage.harness.settle()
    assert not storage.remote_claims()


async def test_copy_of_an_unfinished_claim_in_another_namespace_stays(storage: Storage) -> None:
    """As of a backup of the remote that is restored elsewhere."""
    await storage.harness.start()
    storage.claim()
    await storage.harness.settle()
    (remote,) = storage.remote_claims()
    kept = ("name", "labels", "annotations")
    meta = {key: remote["metadata"][key] for key in kept} | {"namespace": "elsewhere"}
    copied = {key: remote[key] for key in ("apiVersion", "kind", "spec")}
    restored = storage.remote.put({**copied, "metadata": meta})
    storage.home.delete(PERSISTENT_VOLUME_CLAIMS, "data", "default")
    await storage.settle()
    (left,) = storage.remote_claims()
    assert left["metadata"]["uid"] == restored["metadata"]["uid"]


@pytest.mark.parametrize("is_managed", [False, True])
async def test_unfinished_claim_that_a_pod_mounts_stays(
    storage: Storage, *, is_managed: bool
) -> None:
    await storage.harness.start()
    storage.claim()
    await storage.harness.settle()
    (remote,) = storage.remote_claims()
    claim = {"claimName": remote["metadata"]["name"]}
    user = pod("user", REMOTE_NAMESPACE)
    user["spec"]["volumes"] = [{"name": "v", "persistentVolumeClaim": claim}]
    if is_managed:
        user["metadata"]["labels"] = {LABEL_HOME: remote["metadata"]["labels"][LABEL_HOME]}
        user["metadata"]["annotations"] = {
            "cluster-bridge.io/home-namespace": "default",
            "cluster-bridge.io/home-name": "user",
            "cluster-bridge.io/home-uid": "user",
        }
    storage.remote.put(user)
    await storage.harness.settle()
    storage.home.delete(PERSISTENT_VOLUME_CLAIMS, "data", "default")
    await storage.settle()
    assert uid_of(storage.remote_claims()[0]) == uid_of(remote)


async def test_recreated_claim_gets_new_volume(storage: Storage) -> None:
    await storage.harness.start()
    first = await storage.bound()
    storage.home.delete(PERSISTENT_VOLUME_CLAIMS, "data", "default")
    await storage.settle()
    second = await storage.bound()
    assert storage.remote_claim(first) is None
    assert storage.remote_claim(second) is not None


def _update_labels(storage: Storage, labels: Object) -> None:
    meta = {"metadata": {"labels": labels}}
    storage.home.update(PERSISTENT_VOLUME_CLAIMS, "data", meta, "default")


async def test_labels_follow_bound_claim_and_labels_of_remote_stay(storage: Storage) -> None:
    await storage.harness.start()
    home = await storage.bound()
    remote = storage.remote_claim(home)
    assert remote is not None
    name = remote["metadata"]["name"]
    storage.remote.update(
        PERSISTENT_VOLUME_CLAIMS, name, {"metadata": {"labels": {"zone": "a"}}}, REMOTE_NAMESPACE
    )
    _update_labels(storage, {"app": "db", "zone": "b"})
    await storage.settle()
    found = storage.remote.get(PERSISTENT_VOLUME_CLAIMS, name, REMOTE_NAMESPACE)
    assert found["metadata"]["labels"]["app"] == "db"
    assert found["metadata"]["labels"]["zone"] == "a"
    _update_labels(storage, {"app": None, "zone": None})
    await storage.settle()
    found = storage.remote.get(PERSISTENT_VOLUME_CLAIMS, name, REMOTE_NAMESPACE)
    assert "app" not in found["metadata"]["labels"]
    assert found["metadata"]["labels"]["zone"] == "a"
    storage.harness.clear_logs()
    await storage.settle()
    assert not storage.harness.writes()


async def test_claim_with_a_forged_status_changes_nothing(storage: Storage) -> None:
    """A user who may write the status of PVCs names the PersistentVolume of another namespace."""
    await storage.harness.start()
    home = await storage.bound(size="1Gi")
    before = storage.remote_claim(home)
    storage.claim("forged", "other", size="100Gi", volumeName=home["spec"]["volumeName"])
    storage.home.update(
        PERSISTENT_VOLUME_CLAIMS,
        "forged",
        {"metadata": {"labels": {"app": "forged"}}, "status": {"phase": "Bound"}},
        "other",
    )
    await storage.harness.settle()
    assert storage.remote_claim(home) == before
    assert storage.home_claim("forged", "other")["status"] == {"phase": "Bound"}


async def test_rejected_labels_are_reported(storage: Storage) -> None:
    await storage.harness.start()
    await storage.bound()
    storage.remote.fail(
        Fault("PATCH", "*/persistentvolumeclaims/*", code=403, message="no labels", times=None)
    )
    _update_labels(storage, {"app": "db"})
    await storage.harness.settle(waiting=True)
    (event,) = await storage.harness.events_with_reason("UpdateRefused")
    assert "no labels" in event["message"]
    assert "change them at home" in event["message"]


async def test_time_until_bound_and_pending_claims_are_measured(storage: Storage) -> None:
    await storage.harness.start()
    claims = storage.harness.engine.find(PvcController)
    storage.claim()
    await storage.harness.settle()
    assert claims.pending_claims() == 1
    assert sum(claims.executor.duration.counts) == 0
    await storage.settle()
    assert claims.pending_claims() == 0
    assert sum(claims.executor.duration.counts) == 1
    assert claims.executor.results == {"success": 1, "failure": 0}


async def test_settled_claim_is_not_written_again(storage: Storage) -> None:
    await storage.harness.start()
    await storage.bound()
    await storage.harness.restart()
    await storage.settle()
    assert not storage.harness.writes()


async def test_replaced_home_claim_with_stale_volume_name_is_reported(storage: Storage) -> None:
    home = storage.claim()
    storage.home.put(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": f"pvc-{home['metadata']['uid']}"},
            "spec": {
                "csi": {"driver": "example.com", "volumeHandle": "x"},
                "claimRef": {"name": "z", "namespace": "z"},
            },
        }
    )
    await storage.harness.start()
    await storage.settle()
    assert "leads elsewhere" in await _failure(storage)
    assert storage.home.get(PERSISTENT_VOLUMES, f"pvc-{home['metadata']['uid']}")
    assert storage.home_claim()["status"]["phase"] == "Pending"
    assert storage.home.objects(PODS) == []


async def test_remote_claim_names_the_home_claim_that_has_its_volume_now(storage: Storage) -> None:
    """As when a retained PersistentVolume was provisioned for another home PVC."""
    storage.home_class()
    storage.remote_class()
    await storage.harness.start()
    home = await storage.bound()
    moved = storage.remote_claim(home)
    assert moved is not None
    previous = {"cluster-bridge.io/home-name": "temporary", "cluster-bridge.io/home-uid": "other"}
    change: Object = {"metadata": {"annotations": previous}}
    name, namespace = moved["metadata"]["name"], moved["metadata"]["namespace"]
    storage.remote.update(PERSISTENT_VOLUME_CLAIMS, name, change, namespace)
    storage.home.update(
        PERSISTENT_VOLUMES,
        storage.volume()["metadata"]["name"],
        {"metadata": {"labels": {"a": "b"}}},
    )
    await storage.settle()
    found = storage.remote.get(PERSISTENT_VOLUME_CLAIMS, name, namespace)
    annotations = found["metadata"]["annotations"]
    assert annotations["cluster-bridge.io/home-name"] == "data"
    assert annotations["cluster-bridge.io/home-uid"] == home["metadata"]["uid"]


@pytest.mark.parametrize("what", ["labels", "mark"])
async def test_write_that_another_client_sets_back_is_repeated_at_growing_intervals(
    storage: Storage, what: str
) -> None:
    await storage.harness.start()
    home = await storage.bound()
    remote = storage.remote_claim(home)
    assert remote is not None
    before = remote["metadata"]["annotations"]
    name = remote["metadata"]["name"]
    path = f"*/persistentvolumeclaims/{name}"

    async def set_back() -> None:
        while True:
            await asyncio.sleep(0.1)
            found = storage.remote.get(PERSISTENT_VOLUME_CLAIMS, name, REMOTE_NAMESPACE)
            annotations = dict.fromkeys(found["metadata"]["annotations"]) | before
            if what == "mark":
                annotations[ANNOTATION_UNFINISHED] = "true"
            meta = {"labels": {"app": None}, "annotations": annotations}
            storage.remote.update(
                PERSISTENT_VOLUME_CLAIMS, name, {"metadata": meta}, REMOTE_NAMESPACE
            )

    if what == "labels":
        _update_labels(storage, {"app": "db"})
    async with background_task(set_back(), name="set-back"):
        await asyncio.sleep(60)
    assert 3 <= len(storage.remote.writes(path)) <= 10
    events = {event["reason"] for event in storage.home.objects(EVENTS)}
    assert "RemoteOverwrites" in events
    await asyncio.sleep(60)
    found = storage.remote.get(PERSISTENT_VOLUME_CLAIMS, name, REMOTE_NAMESPACE)
    assert ANNOTATION_UNFINISHED not in found["metadata"]["annotations"]
    assert (found["metadata"].get("labels") or {}).get("app") == (
        "db" if what == "labels" else None
    )


async def test_large_change_of_metadata_is_not_kept(storage: Storage) -> None:
    await storage.harness.start()
    home = await storage.bound()
    before = kept_bytes()
    text = {"text": "x" * 200_000}
    storage.home.update(
        PERSISTENT_VOLUME_CLAIMS, "data", {"metadata": {"annotations": text}}, "default"
    )
    await storage.settle()
    remote = storage.remote_claim(home)
    assert remote is not None
    assert remote["metadata"]["annotations"]["text"] == text["text"]
    assert kept_bytes() < before + 2000
