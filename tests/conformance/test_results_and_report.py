"""The result of each test of a run, and the comparison of two runs."""

from __future__ import annotations

import json

import pytest

from e2e.conformance.junit_results import Outcome, Result, read_junit
from e2e.conformance.report import Report, Run, run_from_json

PASSED = Result(Outcome.PASSED, seconds=1.0)
FAILED = Result(Outcome.FAILED, "timed out", 30.0)
SKIPPED = Result(Outcome.SKIPPED, "needs a cloud")
MISSING = Result(Outcome.MISSING)

JUNIT = """\
<?xml version="1.0" encoding="UTF-8"?>
<testsuites><testsuite name="Kubernetes e2e suite">
  <testcase name="[SynchronizedBeforeSuite]" status="passed" time="0.1"></testcase>
  <testcase name="[It] a &lt;b&gt;" status="passed" time="1.04"></testcase>
  <testcase name="[It] c" status="failed" time="30">
    <failure message="timed out&#xA;  waiting" type="failed">[FAILED] at pods.go</failure>
    <system-err>&gt; Enter [BeforeEach]</system-err>
  </testcase>
  <testcase name="[It] d" status="skipped" time="0.2">
    <skipped message="skipped - needs a cloud"></skipped>
  </testcase>
  <testcase name="[It] e" status="skipped" time="0"><skipped message="skipped"/></testcase>
  <testcase name="[It] not asked for" status="passed" time="1"></testcase>
</testsuite></testsuites>
"""


def test_each_test_has_an_outcome_and_the_reason_when_it_did_not_pass() -> None:
    assert read_junit(JUNIT, ["a <b>", "c", "d", "e", "f"]) == {
        "a <b>": PASSED,
        "c": Result(Outcome.FAILED, "timed out waiting", 30.0),
        "d": Result(Outcome.SKIPPED, "needs a cloud", 0.2),
        "e": MISSING,
        "f": MISSING,
    }


def test_what_is_not_xml_is_refused() -> None:
    with pytest.raises(ValueError, match="not a JUnit file"):
        read_junit("", ["a"])


@pytest.mark.parametrize(
    ("real", "virtual", "differs"),
    [
        (PASSED, PASSED, False),
        (PASSED, FAILED, True),
        (PASSED, SKIPPED, True),
        (PASSED, MISSING, True),
        (FAILED, FAILED, False),
        (FAILED, PASSED, False),
        (SKIPPED, FAILED, False),
        (SKIPPED, SKIPPED, False),
    ],
)
def test_what_the_real_node_passes_the_virtual_node_passes(
    real: Result, virtual: Result, differs: bool
) -> None:
    report = Report(["a"], Run({"a": real}), Run({"a": virtual}), {})
    assert report.differences() == (["a"] if differs else [])
    assert report.unexplained() == report.differences()


def test_without_the_real_node_all_that_fails_differs() -> None:
    results = {"a": PASSED, "b": FAILED, "c": SKIPPED, "d": MISSING}
    report = Report(list(results), None, Run(results), {})
    assert report.differences() == ["b", "d"]


def test_without_the_virtual_node_there_is_nothing_to_compare() -> None:
    assert Report(["a"], Run({"a": FAILED}), None, {"a": "why"}).as_json({})["conforms"]


def test_the_last_outcome_counts_and_both_are_reported() -> None:
    virtual = Run({"a": FAILED, "b": FAILED}, again={"a": PASSED, "b": FAILED})
    report = Report(["a", "b"], Run({"a": PASSED, "b": PASSED}), virtual, {})
    assert report.unexplained() == ["b"]
    assert report.flaky() == ["a"]
    entry = report.as_json({})["tests"]["a"]["virtual"]
    assert (entry["outcome"], entry["again"]["outcome"]) == ("failed", "passed")


def test_an_exception_excuses_a_difference_and_is_stale_when_the_test_passes() -> None:
    real, virtual = {"a": PASSED, "b": PASSED}, {"a": FAILED, "b": PASSED}
    exceptions = {"a": "why", "b": "why", "not run": "why"}
    report = Report(["a", "b"], Run(real), Run(virtual), exceptions)
    document = report.as_json({"kubernetes": "v1"})
    assert document["conforms"]
    assert document["kubernetes"] == "v1"
    assert document["excepted"] == ["a"]
    assert document["stale_exceptions"] == ["b"]
    assert document["counts"]["virtual"] == {"passed": 1, "failed": 1, "skipped": 0, "missing": 0}


def test_a_report_can_stand_for_a_run() -> None:
    run = Run({"a": FAILED, "b": SKIPPED}, again={"a": PASSED})
    document = json.loads(json.dumps(Report(["a", "b"], run, None, {}).as_json({})))
    assert run_from_json(document, "real", ["a", "b"]) == run
    with pytest.raises(ValueError, match="no result of the real node for 'c'"):
        run_from_json(document, "real", ["c"])


def test_what_failed_or_never_ended_is_run_again() -> None:
    assert Run({"a": PASSED, "b": FAILED, "c": SKIPPED, "d": MISSING}).failed() == ["b", "d"]
