"""Whether the data of home's PersistentVolumes is in the remote."""

from __future__ import annotations

from typing import Any

import pytest

from translators.object_accessors import Object
from translators.ownership_labels import LABEL_HOME
from translators.storage.identifiers import DRIVER
from translators.storage.volume_state import VolumeSummary, missing_data
from translators.virtual_node_identity import Identity

IDENTITY = Identity(home_id="0123456789abcdef", home_name="berlin", node="burst")
_DELETED = {"deletionTimestamp": "2025-11-03T09:14:01Z"}


def _volume(*, phase: str = "Bound", handle: str = "r1/shop-berlin/data-0", **meta: Any) -> Object:
    return {
        "metadata": {"name": "pvc-u", **meta},
        "spec": {
            "capacity": {"storage": "2Gi"},
            "persistentVolumeReclaimPolicy": "Delete",
            "claimRef": {"namespace": "shop", "name": "data", "uid": "u"},
            "csi": {
                "driver": DRIVER,
                "volumeHandle": handle,
                "volumeAttributes": {"remoteUID": "remote-1"},
            },
        },
        "status": {"phase": phase},
    }


def _remote(uid: str = "remote-1", *, phase: str = "Bound", **meta: Any) -> Object:
    labels = {LABEL_HOME: IDENTITY.home_id}
    meta = {"name": "data-0", "namespace": "shop-berlin", "uid": uid, "labels": labels, **meta}
    return {"metadata": meta, "status": {"phase": phase}}


@pytest.mark.parametrize(
    ("volume", "remote", "problem"),
    [
        (_volume(), _remote(), ""),
        (_volume(), _remote(phase="Pending"), ""),
        (_volume(), None, "shop-berlin/data-0 does not exist"),
        (_volume(), _remote("remote-2"), "another one of the same name"),
        (_volume(), _remote(labels={}), "another one of the same name"),
        (_volume(), _remote(phase="Lost"), "has lost its PersistentVolume"),
        (_volume(), _remote(**_DELETED), "is being deleted"),
        (_volume(phase="Released"), None, ""),
        (_volume(**_DELETED), None, ""),
        (_volume(handle="?"), None, ""),
    ],
)
def test_missing_data_has_a_cause(volume: Object, remote: Object | None, problem: str) -> None:
    found = missing_data(volume, remote, IDENTITY)
    assert problem in found
    assert bool(found) == bool(problem)


def test_summary_counts_volumes_of_this_remote() -> None:
    summary = VolumeSummary("r1", IDENTITY)
    damaged = _volume()
    damaged["spec"]["capacity"] = {"storage": "much"}
    others: list[Object] = [_volume(handle="r2/a/b"), {"spec": {"hostPath": {}}}]
    for volume in (_volume(), damaged, *others):
        summary.add(volume, lambda _: None)
    assert (summary.total, int(summary.capacity)) == (2, 2 * 2**30)
    assert [it.claim for it in summary.missing] == ["shop/data", "shop/data"]
