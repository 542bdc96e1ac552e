"""Figures of the benchmark of claims."""

from __future__ import annotations

from e2e.bench import claims
from e2e.bench.claims import Run
from e2e.bench.performance_page import targets
from e2e.bench.report_output import with_targets


def _runs() -> list[Run]:
    direct = [Run("direct", seconds, 100.0, 2.0, servers_bound_ms=10.0) for seconds in (4.0, 5.0)]
    bridge = [
        Run(
            "bridge",
            seconds,
            200.0,
            3.0,
            cpu_bound_ms=5.0,
            writes_bound=4.0,
            servers_bound_ms=25.0,
            idle_writes=writes,
            requests={"home": {"patch persistentvolumes": 600, "create persistentvolumes": 200}},
        )
        for seconds, writes in ((8.0, 0), (15.0, 2))
    ]
    return direct + bridge


def test_bridge_is_compared_with_direct_claims_round_by_round() -> None:
    made = claims.report(200, 60.0, _runs())
    assert made.figures["bridge.bound_of_direct"].rounds == (2.0, 3.0)
    assert made.figures["bridge.gone_of_direct"].rounds == (1.5, 1.5)
    assert made.figures["bridge.servers_bound_of_direct"].median == 2.5
    assert "direct.cpu_bound_ms" not in made.figures
    assert made.details["requests_a_claim"]["home"] == {
        "patch persistentvolumes": 3.0,
        "create persistentvolumes": 1.0,
    }


def test_one_write_of_an_idle_bridge_misses_its_target() -> None:
    report = with_targets(claims.report(200, 60.0, _runs()).as_json())
    verdicts = {one["figure"]: one["met"] for one in report["targets"]}
    assert verdicts["bridge.idle_writes"] is False
    assert verdicts["bridge.bound_of_direct"] is True
    row = next(
        line
        for line in targets([report]).splitlines()
        if "writes but Lease" in line and "PVCs" in line
    )
    assert row.endswith("| missed | `python -m e2e.bench claims -n 200` |")
