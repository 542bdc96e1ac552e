"""The PersistentVolumeClaims of a pod that prevent scheduling, or that are unbound."""

from __future__ import annotations

from typing import Any

import pytest

from translators.explain.persistent_volume_claims import (
    PodStorage,
    unbound_claims,
    volume_binding_failures,
)
from translators.object_accessors import Object

_NODE: Object = {"metadata": {"name": "burst", "labels": {"tier": "burst"}}}
_POD: Object = {
    "spec": {
        "volumes": [
            {"name": "files", "persistentVolumeClaim": {"claimName": "data"}},
            {"name": "scratch", "emptyDir": {}},
        ]
    }
}


def _claim(phase: str = "Pending", **spec: Any) -> Object:
    return {"metadata": {"name": "data"}, "spec": spec, "status": {"phase": phase}}


def _class(mode: str, provisioner: str = "example.com/disks") -> Object:
    return {"volumeBindingMode": mode, "provisioner": provisioner}


def _volume(*values: str) -> Object:
    term = {"matchExpressions": [{"key": "tier", "operator": "In", "values": list(values)}]}
    return {"spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": [term]}}}}


def _storage(claim: Object | None, **more: Any) -> PodStorage:
    return PodStorage(claims={"data": claim}, **more)


_LATER = _class("WaitForFirstConsumer")
_STATIC = _class("WaitForFirstConsumer", "kubernetes.io/no-provisioner")
_DELETED = {**_claim("Bound"), "metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}


@pytest.mark.parametrize(
    ("storage", "why"),
    [
        (_storage(None), "is missing at home"),
        (_storage(_DELETED), "is being deleted"),
        (_storage(_claim("Lost")), "is Lost"),
        (_storage(_claim()), "is not bound at home"),
        (_storage({"metadata": {}}), "is not bound at home"),
        (_storage(_claim(storageClassName="a"), classes={"a": None}), "is not bound at home"),
        (
            _storage(_claim(storageClassName="a"), classes={"a": _class("Immediate")}),
            "is not bound at home",
        ),
        (_storage(_claim(storageClassName="a"), classes={"a": _STATIC}), "has no provisioner"),
        (_storage(_claim("Bound", volumeName="v"), volumes={"v": None}), "does not exist"),
        (_storage(_claim("Bound", volumeName="v"), volumes={"v": _volume("home")}), "other nodes"),
    ],
)
def test_unusable_claim_prevents_scheduling(storage: PodStorage, why: str) -> None:
    [found] = volume_binding_failures(_POD, _NODE, storage)
    assert found.field == "spec.volumes[files]"
    assert found.message.startswith("PersistentVolumeClaim data ")
    assert why in found.message


@pytest.mark.parametrize(
    ("storage", "waits"),
    [
        (PodStorage(), ""),
        (_storage(_claim("Bound", volumeName="v")), ""),
        (_storage(_claim("Bound", volumeName="v"), volumes={"v": {"spec": {}}}), ""),
        (_storage(_claim("Bound", volumeName="v"), volumes={"v": _volume("burst")}), ""),
        (_storage(_claim(storageClassName="a"), classes={"a": _LATER}), "provisioner"),
        (_storage(_claim(storageClassName="a")), "is not bound at home"),
    ],
    ids=["unreadable", "bound", "bound anywhere", "bound here", "provisioned later", "no class"],
)
def test_claim_that_can_still_be_bound_does_not_prevent_scheduling(
    storage: PodStorage, waits: str
) -> None:
    assert list(volume_binding_failures(_POD, _NODE, storage)) == []
    assert bool(list(unbound_claims(_POD, storage))) is bool(waits)
    assert waits in "".join(unbound_claims(_POD, storage))


def test_pod_without_claims_has_no_failures() -> None:
    assert list(volume_binding_failures({"spec": {}}, _NODE, _storage(None))) == []
