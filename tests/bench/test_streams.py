"""Reports of the stream benchmarks, and the options that select a benchmark."""

from __future__ import annotations

import json
import os

import pytest
from typer.testing import CliRunner

from e2e.bench import report_output, streams
from e2e.bench.__main__ import app
from e2e.bench.pods import process_usage
from e2e.bench.stream_measurements import MEASURES, Measure
from e2e.bench.streams import Settings, Taken, report


def taken(name: str, unit: str) -> Taken:
    """Three rounds: in each the bridge has three quarters of direct, or 10 more."""
    measure = Measure(name, "ms" if unit == "ms" else "MB/s", lambda way, size: 0.0)
    direct = [100.0, 40.0, 80.0]
    bridge = [one + 10 if unit == "ms" else one * 0.75 for one in direct]
    return Taken(measure, {"bridge": bridge, "direct": direct, "home": direct}, [0.5, 0.1, 0.3])


def test_ratios_and_differences_are_those_of_the_rounds() -> None:
    made = report(
        [taken("fast", "MB/s"), taken("soon", "ms")], Settings(rounds=3, size=7, idle=0), None
    )
    assert (made["rounds"], made["bytes"], made["idle"]) == (3, 7, None)
    fast, soon = made["measures"]["fast"], made["measures"]["soon"]
    assert fast["median"] == {"bridge": 60, "direct": 80, "home": 80}
    assert fast["ratio_to_direct"] == fast["ratio_to_home"] == 0.75
    assert fast["bridge_cpu_seconds"] == 0.3
    assert soon["added_to_direct"] == soon["added_to_home"] == 10
    assert "bridge_cpu_seconds" not in soon


def test_the_report_of_streams_is_like_any_other_and_has_its_targets() -> None:
    made = report(
        [taken("exec_output", "MB/s"), taken("exec_round_trip", "ms")],
        Settings(rounds=3, size=7, idle=0),
        None,
    )
    whole = report_output.with_targets(streams.as_report(made))
    assert whole["figures"]["bridge.exec_output"]["rounds"] == [75, 30, 60]
    assert whole["figures"]["ratio_to_direct.exec_output"]["median"] == 0.75
    assert [(one["figure"], one["met"]) for one in whole["targets"]] == [
        ("ratio_to_direct.exec_output", False),
        ("added_to_direct.exec_round_trip", True),
    ]
    assert json.loads(json.dumps(whole)) == whole


def test_each_measure_has_a_name_of_its_own() -> None:
    assert len({measure.name for measure in MEASURES}) == len(MEASURES)


def test_a_process_is_read() -> None:
    assert process_usage.cpu_seconds(os.getpid()) > 0
    assert process_usage.resident_bytes(os.getpid()) > 1_000_000


@pytest.mark.parametrize("option", ["--rounds=0", "--megabytes=0", "--idle=-1", "--nope"])
def test_nonsense_is_refused_before_anything_is_started(option: str) -> None:
    assert CliRunner().invoke(app, ["streams", option]).exit_code == 2
