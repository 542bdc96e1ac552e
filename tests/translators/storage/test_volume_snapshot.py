"""The remote VolumeSnapshot from which a home PVC is restored."""

from __future__ import annotations

from typing import Any

import pytest

from translators.object_accessors import Object, RemoteNamespace
from translators.storage import volume_snapshot
from translators.storage.identifiers import DRIVER, parse_handle
from translators.storage.pvc_resolution import Unresolved
from translators.translation_options import Policy
from translators.virtual_node_identity import Identity

IDENTITY = Identity(home_id="0123456789abcdef", home_name="berlin", node="burst")
POLICY = Policy(IDENTITY, "10.20.0.5", storage="provision", snapshots=True, remote_id="r1")
READY: Object = {"readyToUse": True, "boundVolumeSnapshotContentName": "snapcontent-u"}


def _snapshot(**changes: Any) -> Object:
    meta = {"name": "friday", "namespace": "shop", "uid": "u"}
    return {"metadata": meta, "status": READY, **changes}


def _content(handle: str = "r1/shop-berlin/friday-0123", **spec: Any) -> Object:
    reference = {"namespace": "shop", "name": "friday", "uid": "u"}
    return {
        "spec": {
            "driver": DRIVER,
            "source": {"volumeHandle": "r1/shop-berlin/data-0123"},
            "volumeSnapshotRef": reference,
            **spec,
        },
        "status": {"snapshotHandle": handle},
    }


def _resolve(snapshot: Object | None, content: Object | None) -> str | Unresolved:
    namespace = RemoteNamespace("shop-berlin")
    return volume_snapshot.resolve_source("friday", snapshot, content, POLICY, namespace=namespace)


def test_ready_snapshot_is_the_source() -> None:
    assert _resolve(_snapshot(), _content()) == "friday-0123"


@pytest.mark.parametrize(
    ("snapshot", "content", "problem"),
    [
        (None, None, "does not exist"),
        (_snapshot(status={"readyToUse": False}), _content(), "not ready"),
        (_snapshot(), None, "not ready"),
        (_snapshot(), _content("r2/shop-berlin/friday-0123"), "not in this remote"),
        (_snapshot(), _content("disk-snapshot-17"), "not in this remote"),
        (_snapshot(), _content(driver="disk.example.com"), "not in this remote"),
        (
            _snapshot(),
            _content(volumeSnapshotRef={"namespace": "shop", "name": "friday", "uid": "other"}),
            "not in this remote",
        ),
        (_snapshot(), _content("r1/other/friday-0123"), "namespace other"),
    ],
)
def test_unusable_snapshot_has_a_reason(
    snapshot: Object | None, content: Object | None, problem: str
) -> None:
    found = _resolve(snapshot, content)
    assert isinstance(found, Unresolved)
    assert problem in found.message


def test_existing_snapshot_of_an_administrator_has_its_own_handle() -> None:
    content = _content(source={"snapshotHandle": "r1/shop-berlin/archive"})
    handle = volume_snapshot.snapshot_handle(content)
    assert handle is not None
    assert handle.name == "archive"
    assert volume_snapshot.source_handle(content) is None


@pytest.mark.parametrize(
    ("reported", "shown"),
    [
        (
            {"creationTime": "2025-11-03T09:14:01Z", "restoreSize": "1Gi"},
            {"creationTime": 1762161241000000000, "restoreSize": 1 << 30},
        ),
        ({"creationTime": "1969-12-31T23:59:59Z", "restoreSize": "-1"}, {}),
        ({"creationTime": "2262-04-12T00:00:00Z", "restoreSize": "9223372036854775808"}, {}),
        ({"creationTime": "9999-12-31T23:59:59Z", "restoreSize": "1e30"}, {}),
    ],
)
def test_status_shows_numbers_that_the_content_can_hold(reported: Object, shown: Object) -> None:
    handle = parse_handle("r1/shop-berlin/friday-0123")
    assert handle is not None
    patch = volume_snapshot.status_patch(_content(), {"status": {**READY, **reported}}, handle)
    assert patch["status"] == {"readyToUse": True, **shown}
