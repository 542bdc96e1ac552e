"""The benchmark of many remotes."""

from __future__ import annotations

import pytest

from e2e.bench import fleet
from e2e.bench.fleet_clusters import POD_LIMIT

pytestmark = pytest.mark.long


@pytest.mark.timeout(240)
def test_idle_fleet_and_faults_of_one_remote_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """During each fault, every pod of the other remote starts."""
    monkeypatch.setattr(fleet, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(fleet, "ROUNDS", 2)
    monkeypatch.setattr(fleet, "ATTACKS", ())
    monkeypatch.setattr(fleet, "BURST", 5)
    lines: list[str] = []
    report = fleet.measure(remotes=2, seconds=1, say=lines.append)
    assert report["many"]["memory_mb"] > report["one"]["memory_mb"] > 0
    for fault in ("slow", "dead", "refusing"):
        found = report["isolation"][fault]["with"]
        assert found["pods"] == 2
        assert found["max_ms"] < 1000 * POD_LIMIT, fault
    assert report["loss"].keys() == {"idle_seconds", "burst_seconds"}
    assert len(lines) == 6
