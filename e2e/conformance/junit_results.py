"""What a run of the suite says of each test, read from the JUnit file that it writes. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from xml.etree import ElementTree as ET

# Ginkgo names what kind of node a report is of; "It" is a test, the rest is set-up and reports.
_TEST = "[It] "

# Of a failure's message the first lines say what it is; the rest is dumps of objects.
_MESSAGE = 600

_BLANKS = re.compile(r"\s+")


class Outcome(StrEnum):
    """How one test ended.

    `SKIPPED`: the test itself found that this cluster cannot have it. `MISSING`: it was selected,
    and the suite ended without a word of it.
    """

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Result:
    """One test's end, after `seconds`; `message` says why it did not pass."""

    outcome: Outcome
    message: str = ""
    seconds: float = 0.0


Results = Mapping[str, Result]


def read_junit(text: str, names: Iterable[str]) -> dict[str, Result]:
    """The results of these tests, by name.

    :raises ValueError: it is not XML.
    """
    try:
        root = ET.fromstring(text)
    except ET.ParseError as error:
        raise ValueError(f"not a JUnit file: {error}") from error
    found = {
        case.get("name", "").removeprefix(_TEST): _result(case)
        for case in root.iter("testcase")
        if case.get("name", "").startswith(_TEST)
    }
    return {name: found.get(name, Result(Outcome.MISSING)) for name in names}


def _result(case: ET.Element) -> Result:
    seconds = round(float(case.get("time") or 0), 1)
    if (skipped := case.find("skipped")) is not None:
        reason = _message(skipped)
        # Without a reason it is one that was not run: filtered out, or the run was interrupted.
        return Result(Outcome.SKIPPED, reason, seconds) if reason else Result(Outcome.MISSING)
    for kind in ("failure", "error"):
        if (problem := case.find(kind)) is not None:
            return Result(Outcome.FAILED, _message(problem), seconds)
    return Result(Outcome.PASSED, seconds=seconds)


def _message(element: ET.Element) -> str:
    said = element.get("message") or element.text or ""
    return _BLANKS.sub(" ", said).strip().removeprefix("skipped").removeprefix(" - ")[:_MESSAGE]
