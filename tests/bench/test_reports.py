"""Figures beside their targets, and how a command ends."""

from __future__ import annotations

import json
from typing import Any

import pytest
import typer

from e2e.bench import performance_page, report_output, suites, targets
from e2e.bench.pods.pod_load import PodsLost
from e2e.bench.report import Report
from e2e.bench.targets import Target, judge, verdict


def report(value: float, *, pods: int = 1000, spread: float = 0.0) -> dict[str, Any]:
    """A burst with one figure that has a target: at most 2.5 ms."""
    made = Report("burst", {"pods": pods})
    made.add("bridge.cpu_burst_ms", "ms", [value - spread, value, value + spread])
    made.add("direct.pods_per_second", "pods/s", [100.0])
    return report_output.with_targets(made.as_json())


def test_a_figure_that_no_round_has_is_left_out() -> None:
    made = Report("burst", {})
    made.add("bridge.writes", "", [None, None])
    made.add("bridge.reads", "", [None, 2.0])
    assert list(made.figures) == ["bridge.reads"]
    assert made.figures["bridge.reads"].rounds == (2.0,)


@pytest.mark.parametrize(("value", "met"), [(2.4, True), (2.5, True), (2.6, False)])
def test_report_states_whether_its_targets_are_met(value: float, met: bool) -> None:
    (line,) = report(value)["targets"]
    assert (line["wanted"], line["found"], line["met"]) == ("at most 2.5 ms", value, met)
    assert line["elsewhere"] == ""


def test_run_of_another_size_is_judged_with_a_note() -> None:
    (one,) = judge(report(2.0, pods=300))
    assert one.word == "met (pods 300, not 1000)"


def test_of_what_must_never_happen_every_round_counts() -> None:
    made = Report("idle", {"pods": 5000})
    made.add("bridge.writes", "", [0, 0, 1])
    found = {one.target.figure: one for one in judge(made.as_json())}
    assert not found["bridge.writes"].met


def test_at_least() -> None:
    made = Report("x", {})
    made.add("a.b", "x", [0.8, 0.9, 1.0])
    wanted = Target("x", "a.b", "", 0.9, "x", at_least=True)
    assert verdict(wanted, made.as_json()).met
    assert not verdict(Target("x", "a.b", "", 0.91, "x", at_least=True), made.as_json()).met
    assert verdict(wanted, made.as_json()).wanted == "at least 0.9x"


def test_the_table_of_the_docs_has_a_row_for_every_target() -> None:
    _, begin, rest = performance_page.FILE.read_text().partition(performance_page.TARGETS_BEGIN)
    assert begin
    there = rest.partition(performance_page.END)[0].strip().splitlines()
    wanted = performance_page.targets([]).splitlines()
    # Name and target; the measurement adds the result.
    assert [row.split(" | ")[:2] for row in there] == [row.split(" | ")[:2] for row in wanted]
    rows = len(performance_page.FIRST)
    assert len(wanted) == rows + 2, "run python -m e2e.bench table --write REPORT..."


# -- how a command ends ------------------------------------------------------------------


def test_run_that_lost_a_pod_fails_with_a_reason(capsys: pytest.CaptureFixture[str]) -> None:
    def lost() -> Report:
        raise ExceptionGroup(
            "tasks", [ExceptionGroup("more", [PodsLost("3 of 9 pods are Running")])]
        )

    made = report_output.measured_report("burst", lost)
    with pytest.raises(typer.Exit) as ended, report_output.print_reports("burst") as add:
        add(made)
    assert ended.value.exit_code == 1
    captured = capsys.readouterr()
    assert json.loads(captured.out)["failed"] == "3 of 9 pods are Running"
    assert "burst failed: 3 of 9 pods are Running" in captured.err


def test_an_error_of_the_benchmark_itself_is_none_of_the_runs() -> None:
    def broken() -> Report:
        raise KeyError("mistake")

    with pytest.raises(KeyError):
        report_output.measured_report("burst", broken)


def test_suites_have_targets_only_of_what_they_measure() -> None:
    """Every benchmark of a target is in the full suite; the short one has no others."""
    full = set(suites.SUITES["full"].pods)
    assert {one.benchmark for one in targets.TARGETS} <= full
    assert set(suites.SUITES["short"].pods) <= full
