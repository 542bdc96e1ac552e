"""The remote PVC of a home PVC, and the patches of an expansion."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from translators.object_accessors import Object
from translators.quantity import parse_quantity
from translators.storage import home_volume, remote_pvc
from translators.storage.identifiers import (
    DRIVER,
    VolumeHandle,
    claim_names,
    remote_claim_name,
    volume_handle,
)
from translators.storage.storage_class import ServedClass
from translators.translation_options import Policy
from translators.virtual_node_identity import Identity

IDENTITY = Identity(home_id="0123456789abcdef", home_name="berlin", node="burst")
POLICY = Policy(IDENTITY, "10.20.0.5", storage="provision", remote_id="fedcba9876543210")
SERVED = ServedClass("burst")
#: A PVC as home's API server stores it after the scheduler has chosen the node.
HOME: Object = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {
        "name": "data-db-0",
        "namespace": "shop",
        "uid": "0a1b2c3d-0000-4000-8000-000000000001",
        "resourceVersion": "812",
        "creationTimestamp": "2025-11-03T09:14:01Z",
        "labels": {"app": "db", "cluster-bridge.io/node": "other"},
        "annotations": {
            "backup.example.com/schedule": "daily",
            "k8s.v1.cni.cncf.io/networks": "storage",
            "kubectl.kubernetes.io/last-applied-configuration": "{}",
            "volume.beta.kubernetes.io/storage-provisioner": DRIVER,
            "volume.kubernetes.io/selected-node": "burst",
            "volume.kubernetes.io/storage-provisioner": DRIVER,
            "pv.kubernetes.io/bind-completed": "yes",
        },
        "finalizers": ["kubernetes.io/pvc-protection"],
        "ownerReferences": [{"kind": "StatefulSet", "name": "db", "uid": "u"}],
    },
    "spec": {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "10Gi"}},
        "storageClassName": "burst",
        "volumeMode": "Block",
    },
    "status": {"phase": "Pending"},
}


def test_remote_claim_has_what_the_remote_needs_and_nothing_of_home() -> None:
    assert remote_pvc.to_remote(HOME, SERVED, POLICY) == {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": "data-db-0-" + remote_claim_name(HOME).rpartition("-")[2],
            "namespace": "shop-berlin",
            "labels": {
                "app": "db",
                "cluster-bridge.io/home": "0123456789abcdef",
                "cluster-bridge.io/node": "burst",
            },
            "annotations": {
                "backup.example.com/schedule": "daily",
                "cluster-bridge.io/followed-metadata": (
                    '{"annotations":{"backup.example.com/schedule":"6f31304cdfd0a3a6"},'
                    '"labels":{"app":"7bdc25d1694ef984"}}'
                ),
                "cluster-bridge.io/home-namespace": "shop",
                "cluster-bridge.io/home-name": "data-db-0",
                "cluster-bridge.io/home-uid": "0a1b2c3d-0000-4000-8000-000000000001",
                "cluster-bridge.io/unfinished": "true",
            },
        },
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "volumeMode": "Block",
            "resources": {"requests": {"storage": "10Gi"}},
        },
    }


def test_class_and_source_of_the_remote_are_named() -> None:
    served = replace(SERVED, remote_class="fast")
    spec = remote_pvc.to_remote(HOME, served, POLICY, source="data-0123")["spec"]
    assert spec["storageClassName"] == "fast"
    assert spec["dataSource"] == {"kind": "PersistentVolumeClaim", "name": "data-0123"}


@given(st.text("abcdefghijklmnopqrstuvwxyz0123456789-.", min_size=1, max_size=253), st.uuids())
def test_names_are_short_and_differ_by_uid(name: str, uid: object) -> None:
    first = {"metadata": {"name": name, "uid": str(uid)}}
    second = {"metadata": {"name": name, "uid": f"{uid}x"}}
    assert len(remote_claim_name(first)) <= 63
    assert remote_claim_name(first) != remote_claim_name(second)
    assert remote_claim_name(first) == remote_claim_name(copy.deepcopy(first))


def test_volume_leads_to_the_remote_claim() -> None:
    remote = remote_pvc.to_remote(HOME, SERVED, POLICY)
    remote["metadata"]["uid"] = "remote-1"
    served = replace(SERVED, reclaim_policy="Retain", mount_options=("noatime",))
    volume = home_volume.home_volume(HOME, remote, served, POLICY.remote_id)
    assert volume_handle(volume) == VolumeHandle(
        POLICY.remote_id,
        IDENTITY.remote_namespace(HOME["metadata"]["namespace"]),
        remote["metadata"]["name"],
    )
    spec = volume["spec"]
    assert spec["capacity"] == {"storage": "10Gi"}
    assert (spec["volumeMode"], spec["mountOptions"]) == ("Block", ["noatime"])
    assert spec["persistentVolumeReclaimPolicy"] == "Retain"
    assert spec["claimRef"]["uid"] == HOME["metadata"]["uid"]


@pytest.mark.parametrize(
    ("handle", "driver"),
    [
        ("a/b/c", "ebs.csi.aws.com"),
        ("a/b", DRIVER),
        ("a/b/c/d", DRIVER),
        ("", DRIVER),
        (None, DRIVER),
    ],
)
def test_handles_of_others_are_no_handles(handle: str | None, driver: str) -> None:
    volume = {"spec": {"csi": {"driver": driver, "volumeHandle": handle}}}
    assert volume_handle(volume) is None


@pytest.mark.parametrize("amount", ["1e1002", "1" * 70], ids=["exponent", "digits"])
def test_request_that_cannot_be_read_is_unsupported_and_not_passed_on(amount: str) -> None:
    """API servers accept such amounts."""
    home = copy.deepcopy(HOME)
    assert remote_pvc.unsupported_field(home, SERVED) == ""
    home["spec"]["resources"]["requests"]["storage"] = amount
    assert "spec.resources.requests.storage" in remote_pvc.unsupported_field(home, SERVED)
    assert remote_pvc.request_patch(home, HOME) == {}


_SIZES = st.sampled_from(["1Gi", "2Gi", "1500Mi", "4Gi"])


@given(_SIZES, _SIZES, st.one_of(st.just(""), _SIZES))
def test_request_shrinks_only_while_the_larger_one_is_not_reached(
    home: str, remote: str, reached: str
) -> None:
    status = {"capacity": {"storage": reached}} if reached else {}
    patch = remote_pvc.request_patch(
        {"spec": {"resources": {"requests": {"storage": home}}}},
        {"spec": {"resources": {"requests": {"storage": remote}}}, "status": status},
    )
    wanted, current = parse_quantity(home), parse_quantity(remote)
    if wanted > current:
        assert patch
    elif patch:
        assert reached
        assert parse_quantity(reached) < wanted < current


def test_capacity_and_progress_are_copied_until_they_are_equal() -> None:
    home: Object = {
        "status": {
            "capacity": {"storage": "1Gi"},
            "conditions": [
                {"type": "ModifyingVolume", "status": "True"},
                {"type": "Resizing", "status": "True"},
            ],
            "allocatedResources": {"storage": "2Gi"},
            "allocatedResourceStatuses": {"storage": "ControllerResizeInProgress"},
        }
    }
    pending = {"type": "FileSystemResizePending", "status": "True", "other": 1}
    remote: Object = {
        "status": {
            "capacity": {"storage": "2Gi"},
            "conditions": [pending],
            "allocatedResources": {"storage": "2Gi"},
        }
    }
    assert home_volume.claim_capacity_patch(home, remote) == {
        "status": {"capacity": {"storage": "2Gi"}}
    }
    patch = home_volume.progress_patch(home, remote)["status"]
    assert patch["conditions"] == [
        {"type": "ModifyingVolume", "status": "True"},
        {"type": "FileSystemResizePending", "status": "True"},
    ]
    assert patch["allocatedResourceStatuses"] is None
    shown = {**home["status"], "conditions": patch["conditions"]}
    del shown["allocatedResourceStatuses"]
    assert home_volume.progress_patch({"status": shown}, remote) == {}


def test_hostile_remote_stores_little_at_home() -> None:
    remote: Object = {
        "status": {
            "conditions": [{"type": "Resizing", "message": "x" * 10_000}] * 500,
            "allocatedResources": {f"r{number}": "1" for number in range(500)},
        }
    }
    assert len(str(home_volume.progress_patch({"status": {}}, remote))) < 2000


def test_claims_of_a_pod_include_ephemeral_volumes() -> None:
    pod = {
        "metadata": {"name": "web", "namespace": "shop"},
        "spec": {
            "volumes": [
                {"name": "a", "persistentVolumeClaim": {"claimName": "files"}},
                {"name": "b", "ephemeral": {"volumeClaimTemplate": {}}},
                {"name": "c", "emptyDir": {}},
            ]
        },
    }
    assert claim_names(pod) == {"a": "files", "b": "web-b"}
