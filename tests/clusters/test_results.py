"""Results of runs side by side."""

from __future__ import annotations

from e2e import junit_comparison

NATIVE = """<testsuites><testsuite>
<testcase classname="e2e.test_node" name="test_a" time="1.5" />
<testcase classname="e2e.test_node" name="test_b" time="2.0"><failure message="no" /></testcase>
<testcase classname="e2e.test_run" name="test_c[x]" time="0.4" />
<testcase classname="e2e.test_run" name="test_c[x]" time="0.8"><error message="end" /></testcase>
</testsuite></testsuites>"""
KIND = """<testsuite><testcase classname="e2e.test_node" name="test_a" time="3" /></testsuite>"""


def test_runs_stand_side_by_side_by_the_files_of_tests() -> None:
    runs = {"native": junit_comparison.read(NATIVE), "kind": junit_comparison.read(KIND)}
    assert junit_comparison.table(runs).splitlines() == [
        "| tests | native | kind |",
        "| --- | --- | --- |",
        "| `test_node` | 1/2, 4 s | 1/1, 3 s |",
        "| `test_run` | 0/1, 1 s | - |",
        "| **all** | 1/3, 5 s | 1/1, 3 s |",
    ]


def test_of_a_run_in_parts_the_later_result_of_a_test_counts() -> None:
    again = NATIVE.replace("<failure", "<system-out").replace("</failure", "</system-out")
    whole = junit_comparison.joined(
        [junit_comparison.read(NATIVE), junit_comparison.read(KIND), junit_comparison.read(again)]
    )
    assert junit_comparison.table({"native": whole}).splitlines()[2:] == [
        "| `test_node` | 2/2, 4 s |",
        "| `test_run` | 0/1, 1 s |",
        "| **all** | 2/3, 5 s |",
    ]


def test_what_did_not_pass_is_named() -> None:
    assert junit_comparison.not_passed({"native": junit_comparison.read(NATIVE)}) == [
        "- native: `test_node::test_b`: failure",
        "- native: `test_run::test_c[x]`: error",
    ]
    assert junit_comparison.not_passed({"kind": junit_comparison.read(KIND)}) == []
