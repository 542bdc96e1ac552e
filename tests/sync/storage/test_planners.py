"""Properties of the plans for PVCs and PersistentVolumes: which data may be deleted."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from sync.storage import pvc_planner, volume_planner
from sync.storage.pvc_planner import DeleteUnfinished, GiveBack, PvcState
from sync.storage.volume_planner import Confirm, ConfirmedState, DeleteRemote, DeleteVolume
from translators.object_accessors import Object, uid_of
from translators.ownership_labels import LABEL_HOME, is_owned
from translators.storage.identifiers import (
    ANNOTATION_PROVISIONED_BY,
    ANNOTATION_PROVISIONER,
    ANNOTATION_SELECTED_NODE,
    ANNOTATION_UNFINISHED,
    DRIVER,
    FINALIZER,
    is_unfinished,
    remote_claim_uid,
)
from translators.translation_options import Policy
from translators.virtual_node_identity import Identity

IDENTITY = Identity(home_id="0123456789abcdef", home_name="berlin", node="burst")
POLICY = Policy(IDENTITY, "10.20.0.5", storage="provision", remote_id="r1")
_CLASS: Object = {
    "metadata": {"name": "burst"},
    "provisioner": DRIVER,
    "volumeBindingMode": "WaitForFirstConsumer",
}
_DELETED = {"deletionTimestamp": "2025-11-03T09:14:01Z"}


@st.composite
def _homes(draw: Any) -> Object | None:
    if draw(st.booleans()) and draw(st.booleans()):
        return None
    node = draw(st.sampled_from(["", "burst", "other"]))
    annotations = {ANNOTATION_SELECTED_NODE: node} if node else {}
    if draw(st.booleans()):
        annotations[ANNOTATION_PROVISIONER] = DRIVER
    phase = draw(st.sampled_from(["Pending", "Bound", "Lost"]))
    spec: Object = {
        "storageClassName": "burst",
        "resources": {"requests": {"storage": draw(st.sampled_from(["1Gi", "2Gi"]))}},
    }
    if phase != "Pending":
        spec["volumeName"] = "pvc-u"
    meta = {"name": "data", "namespace": "shop", "uid": "u", "annotations": annotations}
    deleted = _DELETED if draw(st.booleans()) else {}
    return {"metadata": {**meta, **deleted}, "spec": spec, "status": {"phase": phase}}


@st.composite
def _remotes(draw: Any) -> Object | None:
    if draw(st.booleans()) and draw(st.booleans()):
        return None
    annotations = {
        "cluster-bridge.io/home-namespace": "shop",
        "cluster-bridge.io/home-name": "data",
        "cluster-bridge.io/home-uid": draw(st.sampled_from(["u", "previous"])),
    }
    if draw(st.booleans()):
        annotations[ANNOTATION_UNFINISHED] = "true"
    phase = draw(st.sampled_from(["Pending", "Bound", "Lost"]))
    capacity = {"storage": draw(st.sampled_from(["1Gi", "2Gi"]))} if phase == "Bound" else {}
    meta: Object = {
        "name": "data-0123",
        "namespace": "shop-berlin",
        "uid": draw(st.sampled_from(["remote-1", "remote-2"])),
        "labels": {LABEL_HOME: draw(st.sampled_from([IDENTITY.home_id, "another"]))},
        "annotations": annotations,
    }
    deleted = _DELETED if draw(st.booleans()) else {}
    return {
        "metadata": {**meta, **deleted},
        "spec": {"resources": {"requests": {"storage": "1Gi"}}},
        "status": {"phase": phase, "capacity": capacity},
    }


@st.composite
def _volumes(draw: Any) -> Object:
    policy = draw(st.sampled_from(["Delete", "Retain"]))
    provisioner = draw(st.sampled_from([DRIVER, "example.com/other"]))
    meta: Object = {
        "name": "pvc-u",
        "annotations": {ANNOTATION_PROVISIONED_BY: provisioner},
        "finalizers": draw(st.sampled_from([[], [FINALIZER]])),
    }
    deleted = _DELETED if draw(st.booleans()) else {}
    return {
        "metadata": {**meta, **deleted},
        "spec": {
            "persistentVolumeReclaimPolicy": policy,
            "capacity": {"storage": "1Gi"},
            "claimRef": {"namespace": "shop", "name": "data", "uid": "u"},
            "csi": {
                "driver": DRIVER,
                "volumeHandle": "r1/shop-berlin/data-0123",
                "volumeAttributes": {"remoteUID": "remote-1"},
            },
        },
        "status": {"phase": draw(st.sampled_from(["Pending", "Available", "Bound", "Released"]))},
    }


@settings(max_examples=400)
@given(_homes(), st.none() | _volumes(), _remotes(), st.booleans())
def test_plan_of_a_claim_deletes_only_unfinished_claims(
    home: Object | None, volume: Object | None, remote: Object | None, has_pod: bool
) -> None:
    unfinished = [remote] if remote and is_unfinished(remote) and volume is None else []
    state = PvcState(
        home,
        volume=volume,
        remote=remote,
        unfinished=unfinished,
        home_class=_CLASS,
        has_pod=has_pod,
    )
    action = pvc_planner.plan_action(state, POLICY)
    if isinstance(action, DeleteUnfinished | GiveBack) and action.remote is not None:
        assert is_unfinished(action.remote)
        assert volume is None


@settings(max_examples=400)
@given(_volumes(), st.booleans(), _remotes(), st.none() | _remotes())
def test_plan_of_a_volume_deletes_data_only_by_order_of_home(
    volume: Object, claim_exists: bool, remote: Object | None, cached: Object | None
) -> None:
    for confirmed in (None, ConfirmedState(claim_exists, remote)):
        action = volume_planner.plan_action(volume, confirmed, IDENTITY, cached=cached)
        if not isinstance(action, DeleteRemote | DeleteVolume | Confirm):
            continue
        assert volume["spec"]["persistentVolumeReclaimPolicy"] == "Delete"
        assert volume["status"]["phase"] == "Released"
        if isinstance(action, DeleteRemote):
            assert confirmed is not None
            assert not claim_exists
            assert uid_of(action.remote) == remote_claim_uid(volume)
            assert is_owned(action.remote, IDENTITY)
        if isinstance(action, DeleteVolume):
            assert confirmed is not None
            assert not claim_exists
            is_data = remote is not None and uid_of(remote) == remote_claim_uid(volume)
            assert not (is_data and remote is not None and is_owned(remote, IDENTITY))
