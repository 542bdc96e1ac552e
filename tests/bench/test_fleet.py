"""The benchmark of many remotes."""

from __future__ import annotations

import pytest

from e2e.bench import fleet


@pytest.mark.timeout(120)
def test_idle_fleet_and_one_fault_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(fleet, "ROUNDS", 2)
    monkeypatch.setattr(fleet, "FAULTS", ("refusing",))
    monkeypatch.setattr(fleet, "ATTACKS", ())
    monkeypatch.setattr(fleet, "BURST", 5)
    lines: list[str] = []
    report = fleet.measure(remotes=2, seconds=1, say=lines.append)
    assert report["many"]["memory_mb"] > report["one"]["memory_mb"] > 0
    assert report["isolation"]["refusing"]["with"]["pods"] == 2
    assert report["loss"].keys() == {"idle_seconds", "burst_seconds"}
    assert len(lines) == 4
