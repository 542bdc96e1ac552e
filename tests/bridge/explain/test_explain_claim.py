"""`bridge explain pvc/NAME` with two fake clusters, and the PVCs of an explained pod."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bridge.base.command_error import PreflightError
from bridge.explain.claim_lookup import look_up_claim
from bridge.explain.claim_report import build_claim_report, render_claim_report
from bridge.node import join_record
from sync.kube.api_resources import (
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    STORAGE_CLASSES,
    Object,
)
from tests import objects
from tests.bridge.explain.test_explain import THERE, Looked, looked
from tests.fakeapi.faults import Fault
from tests.sync.engine_harness import NODE
from translators.ownership_labels import ANNOTATION_HOME_UID, owner_labels, remote_metadata
from translators.storage.identifiers import (
    ANNOTATION_PROVISIONER,
    ANNOTATION_SELECTED_NODE,
    ANNOTATION_UNFINISHED,
    DRIVER,
    remote_claim_name,
)

__all__ = ["looked"]

pytestmark = pytest.mark.usefixtures("soon")


@pytest.fixture
def storage(looked: Looked) -> Looked:
    """A virtual node that provisions volumes, and a StorageClass on each side."""
    options = json.dumps({"storage": "provision"})
    annotations = {join_record.ANNOTATION_OPTIONS: options}
    looked.two.home.update(NODES, NODE, {"metadata": {"annotations": annotations}})
    wait = {"volumeBindingMode": "WaitForFirstConsumer"}
    looked.two.home.put(STORAGE_CLASSES.manifest({"name": "burst"}, provisioner=DRIVER, **wait))
    default = {"storageclass.kubernetes.io/is-default-class": "true"}
    meta: Object = {"name": "fast", "annotations": default}
    looked.two.remote.put(STORAGE_CLASSES.manifest(meta, provisioner="example.com/disk"))
    return looked


def _claim(looked: Looked, **annotations: str) -> Object:
    meta = {"name": "data", "namespace": "default", "annotations": annotations}
    spec = {"storageClassName": "burst", "resources": {"requests": {"storage": "2Gi"}}}
    status = {"phase": "Pending"}
    return looked.two.home.put(PERSISTENT_VOLUME_CLAIMS.manifest(meta, spec=spec, status=status))


def _remote_claim(looked: Looked, home: Object, phase: str = "Bound") -> Object:
    meta = remote_metadata(home, looked.identity())
    meta |= {"name": remote_claim_name(home), "namespace": THERE}
    meta["labels"] = owner_labels(looked.identity())
    meta["annotations"][ANNOTATION_UNFINISHED] = "true"
    assert meta["annotations"][ANNOTATION_HOME_UID] == home["metadata"]["uid"]
    spec = {"storageClassName": "fast", "resources": {"requests": {"storage": "2Gi"}}}
    status = {"phase": phase, "capacity": {"storage": "3Gi"} if phase == "Bound" else {}}
    return looked.two.remote.put(PERSISTENT_VOLUME_CLAIMS.manifest(meta, spec=spec, status=status))


def _bind(looked: Looked, home: Object, remote: Object) -> None:
    (node,) = looked.two.home.objects(NODES)
    remote_id = node["metadata"]["labels"]["cluster-bridge.io/remote"]
    name = remote["metadata"]["name"]
    csi = {
        "driver": DRIVER,
        "volumeHandle": f"{remote_id}/{THERE}/{name}",
        "volumeAttributes": {"remoteUID": remote["metadata"]["uid"]},
    }
    volume = f"pvc-{home['metadata']['uid']}"
    claim = {"namespace": "default", "name": "data", "uid": home["metadata"]["uid"]}
    spec = {"claimRef": claim, "csi": csi}
    looked.two.home.put(PERSISTENT_VOLUMES.manifest({"name": volume}, spec=spec))
    changes: Object = {
        "spec": {"volumeName": volume},
        "status": {"phase": "Bound", "capacity": {"storage": "3Gi"}},
    }
    looked.two.home.update(PERSISTENT_VOLUME_CLAIMS, "data", changes, "default")
    finished = {"metadata": {"annotations": {ANNOTATION_UNFINISHED: None}}}
    looked.two.remote.update(PERSISTENT_VOLUME_CLAIMS, name, finished, THERE)


async def _report(looked: Looked, **changes: Any) -> Object:
    looked.two.home.clear_log()
    looked.two.remote.clear_log()
    settings = type(looked.settings)(looked.settings.home, None, "default", "data", **changes)
    report = build_claim_report(await look_up_claim(settings))
    assert looked.two.writes() == []
    return report


async def test_claim_without_pod_waits_for_one(storage: Looked) -> None:
    _claim(storage)
    report = await _report(storage)
    assert (report["state"], report["waitsFor"]) == ("Unscheduled", "a pod")
    assert report["remote"]["exists"] is False
    pod = objects.pod("web")
    pod["spec"]["volumes"] = [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]
    storage.two.home.put(pod)
    report = await _report(storage)
    assert (report["waitsFor"], report["pods"]) == ("home's scheduler", ["web"])


async def test_claim_waits_for_the_provisioner_of_the_remote(storage: Looked) -> None:
    home = _claim(storage, **{ANNOTATION_PROVISIONER: DRIVER, ANNOTATION_SELECTED_NODE: NODE})
    remote = _remote_claim(storage, home, "Pending")
    failed = objects.event(remote, "ProvisioningFailed", message="no disk is free")
    failed["involvedObject"]["kind"] = "PersistentVolumeClaim"
    storage.two.remote.put(failed)
    report = await _report(storage)
    assert (report["state"], report["waitsFor"]) == ("Provisioning", "the remote's provisioner")
    assert report["lastFailure"] == "no disk is free"
    text = render_claim_report(report)
    assert "it waits for the remote's provisioner" in text
    assert "no disk is free" in text


async def test_bound_claim_names_the_place_of_its_data(storage: Looked) -> None:
    home = _claim(storage)
    remote = _remote_claim(storage, home)
    _bind(storage, home, remote)
    report = await _report(storage)
    name = remote["metadata"]["name"]
    assert report["state"] == "Bound"
    assert report["summary"].endswith(f"in the claim {THERE}/{name}")
    found = report["remote"]
    assert (found["phase"], found["storageClass"], found["capacity"]) == ("Bound", "fast", "3Gi")
    assert found["finished"] is True
    assert f"{THERE}/{name}" in render_claim_report(report)
    storage.two.remote.remove(PERSISTENT_VOLUME_CLAIMS, name, THERE)
    report = await _report(storage)
    assert (report["state"], report["remote"]["phase"]) == ("Missing", "missing")


async def test_pod_shows_what_its_claim_becomes_and_its_state(storage: Looked) -> None:
    storage.namespace()
    home = _claim(storage)
    remote = _remote_claim(storage, home)
    _bind(storage, home, remote)
    pod = objects.pod("web")
    pod["spec"]["volumes"] = [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]
    storage.two.home.put(pod)
    name = remote["metadata"]["name"]

    async def becomes() -> str:
        references = (await storage.answer())["references"]
        (text,) = [it["becomes"] for it in references if it["kind"] == "PersistentVolumeClaim"]
        return str(text)

    assert await becomes() == f"the claim {THERE}/{name} with its data: Bound, 3Gi, fast"
    storage.two.remote.remove(PERSISTENT_VOLUME_CLAIMS, name, THERE)
    assert await becomes() == f"the claim {THERE}/{name}, which is missing in the remote"


async def test_unmanaged_claim_of_the_remote_is_no_counterpart(storage: Looked) -> None:
    home = _claim(storage, **{ANNOTATION_PROVISIONER: DRIVER, ANNOTATION_SELECTED_NODE: NODE})
    meta = {"name": remote_claim_name(home), "namespace": THERE}
    storage.two.remote.put(PERSISTENT_VOLUME_CLAIMS.manifest(meta, spec={}))
    report = await _report(storage)
    assert report["remote"]["exists"] is False


async def test_missing_claim_and_unknown_node_are_errors(storage: Looked) -> None:
    with pytest.raises(PreflightError, match="default/data not found"):
        await _report(storage)
    _claim(storage)
    with pytest.raises(PreflightError, match=f"use one of: {NODE}"):
        await _report(storage, node="other")


async def test_home_without_virtual_node_is_reported(storage: Looked) -> None:
    storage.two.home.remove(NODES, NODE)
    _claim(storage)
    assert (await _report(storage))["state"] == "NoNode"


async def test_unreadable_remote_is_reported_and_not_a_missing_claim(storage: Looked) -> None:
    home = _claim(storage)
    _bind(storage, home, _remote_claim(storage, home))
    storage.two.remote.fail(
        Fault("GET", "*/persistentvolumeclaims/*", code=403, message="no", times=None)
    )
    report = await _report(storage)
    assert (report["state"], report["remote"]["phase"]) == ("Bound", "unknown")
    assert any("PersistentVolumeClaim" in it for it in report["notLookedAt"])
