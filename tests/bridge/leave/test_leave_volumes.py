"""A virtual node does not leave while volumes of home have their data in its remote."""

from __future__ import annotations

from bridge.leave.leave_summary import volumes_error
from translators.object_accessors import Object


def _volume(name: str) -> Object:
    return {"metadata": {"name": name}, "spec": {"claimRef": {"namespace": "shop", "name": "db"}}}


def test_error_names_volumes_and_options() -> None:
    message = volumes_error("burst", [_volume(f"pvc-{number}") for number in range(30)])
    assert "pvc-0 (shop/db)" in message
    assert "10 more" in message
    assert "--keep-volumes" in message
