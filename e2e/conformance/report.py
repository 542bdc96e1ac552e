"""The results of both nodes, and whether the virtual node conforms. Pure.

A failed test is repeated once, alone; its last outcome counts, and the report has both. The virtual
node conforms if it passes every test that the real node passes, except the exceptions. Without
results of the real node, it must pass every test that is not skipped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from e2e.conformance.junit_results import Outcome, Result

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Run:
    """The results on one node: of the first run, and of repeated tests."""

    first: Mapping[str, Result]
    again: Mapping[str, Result] = field(default_factory=dict)

    def outcome(self, name: str) -> Outcome:
        """The outcome that counts."""
        return (self.again.get(name) or self.first[name]).outcome

    def failed(self) -> list[str]:
        """The tests of the first run that neither passed nor were skipped."""
        failures = {Outcome.FAILED, Outcome.MISSING}
        return [name for name, result in self.first.items() if result.outcome in failures]


@dataclass(frozen=True, slots=True)
class Report:
    """Both runs of one selection; either may be absent."""

    tests: Sequence[str]
    real: Run | None
    virtual: Run | None
    exceptions: Mapping[str, str]

    def differences(self) -> list[str]:
        """The tests that the virtual node should have passed and did not, exceptions included."""
        if self.virtual is None:
            return []
        return [name for name in self.tests if self._differs(self.virtual, name)]

    def unexplained(self) -> list[str]:
        """Differences without an exception."""
        return [name for name in self.differences() if name not in self.exceptions]

    def stale(self) -> list[str]:
        """Exceptions for tests that the virtual node passes."""
        run = self.virtual
        passed = {name for name in self.tests if run and run.outcome(name) is Outcome.PASSED}
        return [name for name in self.exceptions if name in passed]

    def flaky(self) -> list[str]:
        """Tests that failed on the virtual node, and passed when repeated."""
        again = self.virtual.again if self.virtual else {}
        return [name for name, result in again.items() if result.outcome is Outcome.PASSED]

    def counts(self) -> dict[str, dict[str, int]]:
        """Node → outcome → number of tests."""
        return {node: self._counts(run) for node, run in self._runs().items()}

    def as_json(self, about: Json) -> Json:
        """The report as a document, after the properties of the run in `about`."""
        there = self._runs()
        return {
            **about,
            "conforms": not self.unexplained(),
            "counts": self.counts(),
            "unexplained": self.unexplained(),
            "excepted": [name for name in self.differences() if name in self.exceptions],
            "stale_exceptions": self.stale(),
            "flaky": self.flaky(),
            "tests": {
                name: {node: _of(run, name) for node, run in there.items()} for name in self.tests
            },
        }

    def _runs(self) -> dict[str, Run]:
        runs = {"real": self.real, "virtual": self.virtual}
        return {node: run for node, run in runs.items() if run is not None}

    def _differs(self, virtual: Run, name: str) -> bool:
        outcome = virtual.outcome(name)
        if self.real is not None:
            return outcome is not Outcome.PASSED and self.real.outcome(name) is Outcome.PASSED
        return outcome in {Outcome.FAILED, Outcome.MISSING}

    def _counts(self, run: Run) -> dict[str, int]:
        counts = Counter(run.outcome(name) for name in self.tests)
        return {outcome.value: counts[outcome] for outcome in Outcome}


def run_from_json(document: Json, node: str, tests: Iterable[str]) -> Run:
    """One node's run of these tests, from an earlier report.

    :raises ValueError: the report lacks a result of that node.
    """
    first, again = {}, {}
    for name in tests:
        entry = document.get("tests", {}).get(name, {}).get(node)
        if entry is None:
            raise ValueError(f"it has no result of the {node} node for {name!r}")
        first[name] = _result(entry)
        if "again" in entry:
            again[name] = _result(entry["again"])
    return Run(first, again)


def _of(run: Run, name: str) -> Json:
    entry = _entry(run.first[name])
    return entry | {"again": _entry(run.again[name])} if name in run.again else entry


def _entry(result: Result) -> Json:
    entry: Json = {"outcome": result.outcome.value, "seconds": result.seconds}
    return entry | {"message": result.message} if result.message else entry


def _result(entry: Json) -> Result:
    return Result(Outcome(entry["outcome"]), entry.get("message", ""), entry.get("seconds", 0.0))
