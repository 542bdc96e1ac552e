"""A PVC that the remote cannot have: its Event names the next step, home's scheduler may select
another node, the pod waits, and nothing is left in either cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.fakeapi import Fault
from tests.sync.storage.storage_harness import Storage
from translators.object_accessors import Object
from translators.ownership_labels import LABEL_REMOTE
from translators.storage.identifiers import ANNOTATION_SELECTED_NODE

_SNAPSHOT = {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "s"}
_CLONE = {"kind": "PersistentVolumeClaim", "name": "other"}
_MOUNT = [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]


def _unknown_class(storage: Storage) -> None:
    storage.home_class(parameters={"remoteStorageClass": "tape"})


def _no_default_class(storage: Storage) -> None:
    storage.remote_class(default=False)


def _forbidden_mode(storage: Storage) -> None:
    storage.home_class(parameters={"accessModes": "ReadWriteOncePod"})


def _unknown_parameter(storage: Storage) -> None:
    storage.home_class(parameters={"speed": "high"})


def _another_remote(storage: Storage) -> None:
    expression = {"key": LABEL_REMOTE, "values": ["another"]}
    storage.home_class(allowedTopologies=[{"matchLabelExpressions": [expression]}])


def _quota(storage: Storage) -> None:
    storage.remote.fail(
        Fault("POST", "*/persistentvolumeclaims", code=403, message="exceeded quota: gold")
    )


def _unknown_mode(storage: Storage) -> None:
    storage.remote.fail(
        Fault("POST", "*/persistentvolumeclaims", code=422, message='Unsupported value: "RWOP"')
    )


def _nothing(_: Storage) -> None:
    """The PVC alone is the problem."""


@pytest.mark.parametrize(
    ("arrange", "spec", "cause", "next_step"),
    [
        (
            _unknown_class,
            {},
            "no StorageClass tape",
            "set its parameter remoteStorageClass to fast",
        ),
        (_no_default_class, {}, "no default StorageClass", "mark one of the remote's classes"),
        (_forbidden_mode, {}, "access mode ReadWriteOnce", "use ReadWriteOncePod"),
        (_unknown_parameter, {}, "unknown parameter speed", "use remoteStorageClass and access"),
        (_another_remote, {}, "exclude this remote", "use a StorageClass that permits it"),
        (_quota, {}, "exceeded quota: gold", "what the remote permits in namespace default-h"),
        (_unknown_mode, {}, "Unsupported value", "change the PersistentVolumeClaim"),
        (_nothing, {"selector": {"matchLabels": {"a": "b"}}}, "spec.selector", "remove it"),
        (_nothing, {"dataSource": _SNAPSHOT}, "VolumeSnapshot s", "in the same remote, or none"),
        (_nothing, {"dataSource": _CLONE}, "other does not exist", "in the same remote, or none"),
        (
            _nothing,
            {"dataSourceRef": {**_CLONE, "namespace": "theirs"}},
            "in another namespace",
            "use a PersistentVolumeClaim of this one",
        ),
    ],
)
async def test_rejected_claim_names_the_next_step_and_leaves_nothing(
    storage: Storage,
    arrange: Callable[[Storage], None],
    spec: dict[str, Any],
    cause: str,
    next_step: str,
) -> None:
    arrange(storage)
    await storage.harness.start()
    storage.claim(**spec)
    await storage.settle(waiting=True)
    event, *_ = await storage.harness.events_with_reason("ProvisioningFailed")
    assert event["type"] == "Warning"
    assert event["involvedObject"]["name"] == "data"
    assert cause in event["message"]
    assert next_step in event["message"]
    assert ANNOTATION_SELECTED_NODE not in storage.home_claim()["metadata"]["annotations"]
    assert storage.remote_claims() == []
    assert storage.volumes() == []


async def test_pod_with_rejected_claim_waits(storage: Storage) -> None:
    _unknown_class(storage)
    await storage.harness.start()
    storage.claim(node="")
    storage.harness.pod(volumes=_MOUNT)
    await storage.settle(waiting=True)
    await storage.harness.events_with_reason("ProvisioningFailed")
    assert storage.harness.status()["reason"] == "VolumePending"
    assert storage.harness.remote_pod() is None
    assert storage.remote_claims() == []


async def test_claim_that_a_provisioner_fails_names_the_next_step(storage: Storage) -> None:
    """As for a volume that is too large, or a mode that the remote's driver lacks."""
    await storage.harness.start()
    storage.claim(size="900Ti")
    await storage.harness.settle()
    (remote,) = storage.remote_claims()
    meta = remote["metadata"]
    event: Object = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "e", "namespace": meta["namespace"]},
        "involvedObject": {
            "kind": "PersistentVolumeClaim",
            **{key: meta[key] for key in ("namespace", "name", "uid")},
        },
        "type": "Warning",
        "reason": "ProvisioningFailed",
        "message": "no disk is that large",
    }
    for count in range(3):
        storage.remote.put({**event, "count": count})
        await asyncio.sleep(40)
    await storage.harness.settle()
    assert storage.remote_claims() == []
    assert storage.volumes() == []
    assert ANNOTATION_SELECTED_NODE not in storage.home_claim()["metadata"]["annotations"]
    events = await storage.harness.events_with_reason("ProvisioningFailed")
    assert any(
        "no disk is that large; request what the remote has" in it["message"] for it in events
    )
