"""The benchmark runs, and has its figures; how large they are is no test's business."""

from __future__ import annotations

from pathlib import Path

from e2e.bench import streams
from e2e.bench.measures import MEASURES
from e2e.clusters.model import Cluster


def test_streams_in_short(home: Cluster, remote: Cluster, tmp_path: Path) -> None:
    """One round of little."""
    short = streams.Settings(rounds=1, size=2_000_000, idle=5)
    made = streams.run(home, remote, short, print, tmp_path / "bridge.log")
    assert list(made["measures"]) == [measure.name for measure in MEASURES]
    for name, measure in made["measures"].items():
        assert set(measure["rounds"]) == {"bridge", "direct", "home"}, name
        assert all(figure > 0 for figure in measure["median"].values()), name
        compared = "ratio_to_" if measure["unit"] == "MB/s" else "added_to_"
        assert {f"{compared}direct", f"{compared}home"} <= set(measure)
    assert made["idle"]["streams"] == 5
