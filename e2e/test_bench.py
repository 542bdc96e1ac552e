"""Benchmarks run and return their figures; no value is asserted."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.bench import streams
from e2e.bench.pods import (
    burst,
    idle_and_restart,
    latency,
    revision_pair,
)
from e2e.bench.pods.load_targets import connected
from e2e.bench.pods.pod_load import Shape
from e2e.bench.stream_measurements import MEASURES
from e2e.bench.targets import TARGETS
from e2e.clusters.cluster import Cluster
from e2e.revisions import RELEASE_BEFORE, source_tree

#: Seconds for seven bridges in sequence.
LIMIT = 600

pytestmark = pytest.mark.alone


def test_streams_in_short(home: Cluster, remote: Cluster, tmp_path: Path) -> None:
    """One small round."""
    short = streams.Settings(rounds=1, size=2_000_000, idle=5)
    made = streams.run(home, remote, short, print, tmp_path / "bridge.log")
    assert list(made["measures"]) == [measure.name for measure in MEASURES]
    for name, measure in made["measures"].items():
        assert set(measure["rounds"]) == {"bridge", "direct", "home"}, name
        assert all(figure > 0 for figure in measure["median"].values()), name
        compared = "ratio_to_" if measure["unit"] == "MB/s" else "added_to_"
        assert {f"{compared}direct", f"{compared}home"} <= set(measure)
    assert made["idle"]["streams"] == 5


@pytest.mark.timeout(LIMIT, func_only=True)
async def test_pods_in_short(simulated: dict[str, Cluster]) -> None:
    """One small round of all load targets; every target has its figure."""
    async with connected(simulated) as pair:
        reports = [
            await burst.measure(pair, Shape(20), rounds=1, say=print),
            await latency.measure(pair, pods=2, rounds=1, say=print),
        ]
    for report in reports:
        missing = {one.figure for one in TARGETS if one.benchmark == report.benchmark}
        # With two pods, the remote may report before it answers the request: a duration of zero has
        # no ratio.
        for name in missing - report.figures.keys():
            assert name.endswith("_of_least"), name
            least = name.replace("bridge.", "least.").replace("_of_least", "_ms")
            assert report.figures[least].median <= 0, name
        assert all(figure.rounds for figure in report.figures.values())
    writes = reports[0].figures
    assert writes["least.writes"].median >= 4
    assert writes["bridge.writes"].median >= 4


@pytest.mark.timeout(LIMIT, func_only=True)
async def test_pair_of_revisions_in_short(simulated: dict[str, Cluster]) -> None:
    """One small round of the release before and this tree; each ratio has its figure."""
    with source_tree(RELEASE_BEFORE) as tree:
        async with connected(simulated) as pair:
            report = await revision_pair.measure(
                pair, Shape(20), revision=RELEASE_BEFORE, tree=tree, rounds=1, say=print
            )
    for figure in ("pods_per_second", "cpu_burst_ms", "cpu_delete_ms", "peak_mb"):
        for target in ("least", "before", "bridge"):
            assert report.figures[f"{target}.{figure}"].median > 0
        assert report.figures[f"bridge.{figure}_of_before"].median > 0


async def test_rest_and_restart_in_short(
    simulated: dict[str, Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bridge of five pods that idles for a second, and is restarted."""
    monkeypatch.setattr(idle_and_restart, "SETTLE", 5.0)
    async with connected(simulated) as pair:
        idle = await idle_and_restart.idle(pair, Shape(5), rounds=1, seconds=1, say=print)
        restart = await idle_and_restart.restart(pair, Shape(5), rounds=1, say=print)
    assert {one.figure for one in TARGETS if one.benchmark == "idle"} <= idle.figures.keys()
    assert {one.figure for one in TARGETS if one.benchmark == "restart"} <= restart.figures.keys()
    assert restart.figures["bridge.pod_writes"].rounds == (0.0,)
