"""Results of the upstream suite, from its JUnit file. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from xml.etree import ElementTree as ET

# Ginkgo prefixes the kind of each entry; "It" is a test, the rest is set-up and reports.
_TEST = "[It] "

# The first lines of a failure's message identify it; the rest is dumps of objects.
_MESSAGE = 600

_BLANKS = re.compile(r"\s+")


class Outcome(StrEnum):
    """The outcome of one test.

    `SKIPPED`: the test itself determined that this cluster does not support it. `MISSING`: it was
    selected, and the suite ended without a result.
    """

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of one test after `seconds`; `message` is the reason if it did not pass."""

    outcome: Outcome
    message: str = ""
    seconds: float = 0.0


Results = Mapping[str, Result]


def read_junit(text: str, names: Iterable[str]) -> dict[str, Result]:
    """The results of these tests, by name.

    :raises ValueError: the text is not XML.
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
        # Without a reason the test did not run: it was filtered out, or the run was interrupted.
        return Result(Outcome.SKIPPED, reason, seconds) if reason else Result(Outcome.MISSING)
    for kind in ("failure", "error"):
        if (problem := case.find(kind)) is not None:
            return Result(Outcome.FAILED, _message(problem), seconds)
    return Result(Outcome.PASSED, seconds=seconds)


def _message(element: ET.Element) -> str:
    text = element.get("message") or element.text or ""
    return _BLANKS.sub(" ", text).strip().removeprefix("skipped").removeprefix(" - ")[:_MESSAGE]
