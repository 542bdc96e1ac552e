"""The pair of revisions: its figures, and the frozen least bridge."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from e2e.bench.pods import revision_pair
from e2e.bench.pods.burst import Run
from e2e.bench.pods.pod_load import Shape
from e2e.bench.pods.revision_pair import LEAST_SOURCES, LeastBridgeChanged

_FOLDER = Path(revision_pair.__file__).parent


def _run(target: str, seconds: float, cpu: float) -> Run:
    return Run(target, seconds, 1.0, cpu_burst_ms=cpu, cpu_delete_ms=cpu / 2, peak_mb=50.0)


def test_least_bridge_is_the_frozen_one() -> None:
    revision_pair.check_least_bridge()


def test_changed_least_bridge_is_an_error(tmp_path: Path) -> None:
    for name in LEAST_SOURCES:
        shutil.copy(_FOLDER / name, tmp_path / name)
    revision_pair.check_least_bridge(tmp_path)
    with (tmp_path / LEAST_SOURCES[0]).open("a") as source:
        source.write("\n")
    with pytest.raises(LeastBridgeChanged, match=LEAST_SOURCES[0]):
        revision_pair.check_least_bridge(tmp_path)


def test_ratios_are_taken_within_each_round() -> None:
    runs = [
        *(_run("least", 1.0, 1.0), _run("before", 2.0, 4.0), _run("bridge", 1.0, 2.0)),
        *(_run("least", 2.0, 2.0), _run("before", 2.0, 4.0), _run("bridge", 4.0, 8.0)),
    ]
    report = revision_pair.report(Shape(pods=100), runs, revision="abc")
    found = report.figures
    assert report.parameters["revision"] == "abc"
    assert found["bridge.pods_per_second"].rounds == (100.0, 25.0)
    assert found["bridge.pods_per_second_of_before"].rounds == (2.0, 0.5)
    assert found["bridge.cpu_burst_ms_of_before"].rounds == (0.5, 2.0)
    assert found["before.cpu_delete_ms_of_least"].rounds == (4.0, 2.0)
    assert found["bridge.peak_mb_of_least"].median == 1.0
