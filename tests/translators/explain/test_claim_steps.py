"""The step of provisioning that a home PVC waits for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from translators.explain.claim_steps import ClaimObjects, claim_step
from translators.object_accessors import Object
from translators.ownership_labels import LABEL_HOME
from translators.storage.identifiers import (
    ANNOTATION_PROVISIONER,
    ANNOTATION_SELECTED_NODE,
    ANNOTATION_UNFINISHED,
    DRIVER,
)
from translators.translation_options import Policy
from translators.virtual_node_identity import Identity

IDENTITY = Identity(home_id="0123456789abcdef", home_name="berlin", node="burst")
POLICY = Policy(IDENTITY, "10.20.0.5", storage="provision", remote_id="r1")
_SELECTED = {ANNOTATION_PROVISIONER: DRIVER, ANNOTATION_SELECTED_NODE: "burst"}
_SERVED: Object = {
    "metadata": {"name": "burst"},
    "provisioner": DRIVER,
    "volumeBindingMode": "WaitForFirstConsumer",
}
_FAST: Object = {
    "metadata": {
        "name": "fast",
        "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
    },
    "volumeBindingMode": "Immediate",
}


def _home(annotations: dict[str, str] | None = None, **spec: Any) -> Object:
    meta = {"name": "data", "namespace": "shop", "uid": "u", "annotations": annotations or {}}
    requests = {"requests": {"storage": "2Gi"}}
    return {
        "metadata": meta,
        "spec": {"storageClassName": "burst", "resources": requests, **spec},
        "status": {"phase": "Bound" if "volumeName" in spec else "Pending"},
    }


def _bound(capacity: str = "2Gi") -> Object:
    home = _home(_SELECTED, volumeName="pvc-u")
    home["status"]["capacity"] = {"storage": capacity}
    return home


def _volume(handle: str = "r1/shop-berlin/data-0") -> Object:
    csi = {"driver": DRIVER, "volumeHandle": handle, "volumeAttributes": {"remoteUID": "remote-1"}}
    spec = {"csi": csi, "claimRef": {"namespace": "shop", "name": "data", "uid": "u"}}
    return {"metadata": {"name": "pvc-u"}, "spec": spec, "status": {"phase": "Bound"}}


def _remote(*, phase: str = "Bound", unfinished: bool = False, of_class: str = "fast") -> Object:
    annotations = {ANNOTATION_UNFINISHED: "true"} if unfinished else {}
    meta = {
        "name": "data-0",
        "uid": "remote-1",
        "labels": {LABEL_HOME: IDENTITY.home_id},
        "annotations": annotations,
    }
    return {"metadata": meta, "spec": {"storageClassName": of_class}, "status": {"phase": phase}}


def _objects(home: Object, **changes: Any) -> ClaimObjects:
    found = ClaimObjects(home, _SERVED, None, remote_classes=[_FAST], is_remote_known=True)
    return replace(found, **changes)


@pytest.mark.parametrize(
    ("objects", "state", "waits_for"),
    [
        (_objects(_home()), "Unscheduled", "a pod"),
        (_objects(_home(), has_pod=True), "Unscheduled", "home's scheduler"),
        (_objects(_home({ANNOTATION_SELECTED_NODE: "a"})), "Elsewhere", "node a"),
        (
            _objects(_home({ANNOTATION_SELECTED_NODE: "burst"})),
            "Provisioning",
            "home's PersistentVolume controller",
        ),
        (_objects(_home(_SELECTED)), "Provisioning", "the bridge"),
        (
            _objects(_home(_SELECTED), remote=_remote(phase="Pending", unfinished=True)),
            "Provisioning",
            "the remote's provisioner",
        ),
        (_objects(_home(_SELECTED), remote=_remote(unfinished=True)), "Provisioning", "the bridge"),
        (
            _objects(_home(_SELECTED), remote=_remote(), volume=_volume()),
            "Binding",
            "home's PersistentVolume controller",
        ),
        (_objects(_bound(), volume=_volume(), remote=_remote(unfinished=True)), "Finishing", "the"),
        (
            _objects(_bound(), volume=_volume(), remote=_remote(phase="Pending")),
            "Bound",
            "a pod in the remote",
        ),
        (
            _objects(_bound("1Gi"), volume=_volume(), remote=_remote()),
            "Expanding",
            "the remote's provisioner",
        ),
        (_objects(_bound(), volume=_volume(), remote=_remote()), "Bound", ""),
        (_objects(_bound(), volume=_volume(), is_remote_known=False), "Bound", ""),
        (_objects(_bound(), volume=_volume()), "Missing", "an administrator of the remote"),
        (_objects(_bound(), volume=_volume("r2/a/b")), "Elsewhere", ""),
        (_objects(_bound(), volume={"metadata": {"name": "disk"}, "spec": {}}), "Elsewhere", ""),
        (_objects(_home(), home_class={**_SERVED, "provisioner": "x"}), "NotProvisioned", "the"),
        (_objects(_home(), home_class=None), "NotProvisioned", "an administrator"),
        (_objects(_home(_SELECTED), remote_classes=[]), "Unsupported", "an administrator"),
        (
            _objects(_home(), home_class={**_SERVED, "volumeBindingMode": "Immediate"}),
            "Unsupported",
            "an administrator",
        ),
        (_objects(_home(selector={"matchLabels": {}, "x": 1})), "Unsupported", "its author"),
        (_objects(_home({"cluster-bridge.io/remote-pvc": "shared"})), "Existing", ""),
    ],
)
def test_step_of_each_state(objects: ClaimObjects, state: str, waits_for: str) -> None:
    found = claim_step(objects, POLICY)
    assert found.state == state, found
    assert found.waits_for.startswith(waits_for)
    assert bool(found.waits_for) == bool(waits_for), found


def test_node_without_provisioning_is_named() -> None:
    found = claim_step(_objects(_home()), replace(POLICY, storage="none"))
    assert (found.state, "--storage provision" in found.why) == ("NotProvisioned", True)


def test_deleted_claim_waits_for_home() -> None:
    home = _home()
    home["metadata"]["deletionTimestamp"] = "2025-11-03T09:14:01Z"
    assert claim_step(_objects(home), POLICY).state == "Deleting"
