"""Figures beside their targets, tables and pictures of them, and how a command ends."""

from __future__ import annotations

import json
from typing import Any

import pytest
import typer

from e2e.bench import performance_page, report_output, report_tables, suites, targets
from e2e.bench import relay_forward as carried
from e2e.bench import report as figures
from e2e.bench.pods.pod_load import PodsLost
from e2e.bench.report import Figure, Report
from e2e.bench.targets import RELAY, REMOTES, STREAMS, TARGETS, VOLUME, Target, judge, verdict


def report(value: float, *, pods: int = 1000, spread: float = 0.0) -> dict[str, Any]:
    """A burst with one figure that has a target: at most 2.5 ms."""
    made = Report("burst", {"pods": pods})
    made.add("bridge.cpu_burst_ms", "ms", [value - spread, value, value + spread])
    made.add("direct.pods_per_second", "pods/s", [100.0])
    return report_output.with_targets(made.as_json())


def test_a_figure_has_its_median_and_spread() -> None:
    made = Figure("ms", (3.0, 1.0, 2.123456)).as_json()
    assert (made["median"], made["min"], made["max"]) == (2.123, 1.0, 3.0)
    assert made["rounds"] == [3.0, 1.0, 2.123]


def test_a_figure_that_no_round_has_is_left_out() -> None:
    made = Report("burst", {})
    made.add("bridge.writes", "", [None, None])
    made.add("bridge.reads", "", [None, 2.0])
    assert list(made.figures) == ["bridge.reads"]
    assert made.figures["bridge.reads"].rounds == (2.0,)


def test_percentiles() -> None:
    assert figures.percentile([5.0], 99) == 5.0
    assert figures.percentile(range(1, 102), 50) == 51
    assert figures.percentile(range(1, 102), 99) == 100


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


def test_no_two_targets_are_about_the_same_figure() -> None:
    every = [
        (one.benchmark, one.figure, *one.shape.items())
        for one in (*TARGETS, *STREAMS, *RELAY, *VOLUME, *REMOTES)
    ]
    assert len(set(every)) == len(every)
    assert len({one.what for one in TARGETS}) == len(TARGETS)


def test_the_table_of_the_docs_has_a_row_for_every_target() -> None:
    _, begin, rest = performance_page.FILE.read_text().partition(performance_page.TARGETS_BEGIN)
    assert begin
    there = rest.partition(performance_page.END)[0].strip().splitlines()
    wanted = performance_page.targets([]).splitlines()
    # Name and target; the measurement adds the result.
    assert [row.split(" | ")[:2] for row in there] == [row.split(" | ")[:2] for row in wanted]
    rows = len(performance_page.FIRST)
    assert len(wanted) == rows + 2, "run python -m e2e.bench table --write REPORT..."


def test_the_relay_has_a_table_of_its_own() -> None:
    _, begin, rest = performance_page.FILE.read_text().partition(performance_page.RELAY_BEGIN)
    assert begin
    there = rest.partition(performance_page.END)[0].strip().splitlines()
    wanted = performance_page.targets([], RELAY).splitlines()
    assert [row.split(" | ")[:2] for row in there] == [row.split(" | ")[:2] for row in wanted]
    made = Report("relay", {"rounds": 3, "bytes": 1, "idle": 2000})
    made.add("relay.idle_kib", "KiB", [29.0])
    written = performance_page.renewed(performance_page.FILE.read_text(), [made.as_json()])
    row = "| memory of an idle connection, of 2,000 | at most 30 KiB | 29 KiB | met "
    assert f"{row}| `python -m e2e.bench relay --idle 2000` |" in written
    other = Report("relay-back", {"rounds": 3, "bytes": 1, "idle": 0})
    other.add("relay.connect_1", "/s", [70.0])
    both = performance_page.renewed(written, [other.as_json()])
    row = "| from the remote to home: connections a second, one client | at least 100 /s | 70 /s | "
    assert f"{row}missed | `python -m e2e.bench relay-back` |" in both
    assert "`python -m e2e.bench relay --idle 2000` |" in both, "each direction has its own rows"


def test_the_relay_is_compared_with_a_flat_network_round_by_round() -> None:
    found = carried.with_comparisons(
        {
            "flat.download": [100.0, 50.0],
            "relay.download": [50.0, 50.0],
            "flat.request_ms": [1.0, 2.0],
            "relay.request_ms": [2.0, 2.5],
            "flat.cpu_per_megabyte_ms": [0.0, 0.0],
            "relay.cpu_per_megabyte_ms": [4.0, 4.0],
        }
    )
    assert found["ratio_to_flat.download"] == [0.5, 1.0]
    assert found["added_to_flat.request_ms"] == [1.0, 0.5]
    assert not [name for name in found if name.endswith("flat.cpu_per_megabyte_ms")][1:]


def test_tables_are_replaced_only_between_their_marks() -> None:
    there = performance_page.FILE.read_text()
    streams = {**report(1.0), "benchmark": "streams"}
    made = performance_page.renewed(there, [report(2.25, spread=0.25), streams])
    assert "### streams" not in made  # they have a page of their own
    assert "at most 2.5 ms | 2.25 ms (2-2.5) | met | `python -m e2e.bench burst -n 1000` |" in made
    assert "### burst: pods 1000" in made
    assert "| cpu_burst_ms | 2.25 ms (2-2.5) |  |" in made
    assert made.partition("<!-- ")[0] == there.partition("<!-- ")[0]
    assert made.rpartition(performance_page.END)[2] == there.rpartition(performance_page.END)[2]
    assert made.count("### burst") == 1
    assert made.count("### ") == there.count("### "), "what was not measured again stays"
    assert performance_page.renewed(made, []) == made
    with pytest.raises(ValueError, match="no '<!-- targets, made by"):
        performance_page.renewed("# Performance", [])


def test_of_two_reports_that_of_the_right_size_counts_and_then_the_last() -> None:
    reports = [report(1.1), report(1.2), report(1.3, pods=300)]

    def row(*reports: dict[str, Any]) -> str:
        lines = performance_page.targets(reports).splitlines()
        return next(line for line in lines if "until Running |" in line)

    assert "| 1.2 ms" in row(*reports)
    assert row(*reports[2:]).endswith(
        "| 1.3 ms (1.3-1.3) | met (pods 300, not 1000) | `python -m e2e.bench burst -n 300` |"
    )


def test_a_table_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    report_tables.show(report(2.6))
    captured = capsys.readouterr().err
    assert "cpu_burst_ms" in captured
    assert "at most 2.5 ms" in captured
    assert "missed" in captured
    assert "\x1b" not in captured  # no terminal, no colours


# -- how a command ends ------------------------------------------------------------------


def test_one_report_is_printed_as_it_is_and_several_as_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with report_output.print_reports("burst") as add:
        add(report(2.0))
    assert json.loads(capsys.readouterr().out)["figures"]["bridge.cpu_burst_ms"]["median"] == 2.0
    with report_output.print_reports("short") as add:
        add(report(2.0))
        add(report(3.0))
    found = json.loads(capsys.readouterr().out)
    assert [part["benchmark"] for part in found["reports"]] == ["burst", "burst"]
    assert report_tables.parts(found) == found["reports"]


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


def test_what_was_measured_before_an_interruption_is_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def interrupted() -> None:
        with report_output.print_reports("full") as add:
            add(report(2.0))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert len(json.loads(capsys.readouterr().out)["reports"]) == 1


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
