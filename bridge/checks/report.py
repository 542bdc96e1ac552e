"""What a check found, and a report of many: plain data, and a table for people. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from bridge.checks.catalog import CHECKS, Check
from translators.objects import Object

#: Names that are listed before the rest is only counted.
MAX_NAMES = 5
#: Whose matter it is.
Scope = Literal["home", "remote", "both"]


class Severity(StrEnum):
    """How bad it is; in this order."""

    OK = "ok"
    INFO = "info"
    """Worth knowing, or not looked at, with the reason."""
    WARNING = "warning"
    """Works, and may not for long or not for all."""
    ERROR = "error"
    """Does not work."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One answer of one check."""

    id: str
    severity: Severity
    side: Scope
    found: str
    hint: str = ""
    """What to do; that of the table unless given. Of what is well there is none."""
    node: str = ""
    """The virtual node that it is about; "" where it is about a cluster."""

    @property
    def check(self) -> Check:
        """Its line of the table."""
        return CHECKS[self.id]

    @property
    def advice(self) -> str:
        """What to do, "" where nothing is to be done."""
        if self.severity in (Severity.OK, Severity.INFO):
            return self.hint
        return self.hint or self.check.hint

    def as_data(self) -> Object:
        """Every field, under names that stay."""
        return {
            "id": self.id,
            "title": self.check.title,
            "severity": str(self.severity),
            "side": self.side,
            "node": self.node,
            "found": self.found,
            "hint": self.advice,
            "docs": self.check.docs,
        }


def summarize_names(several: Iterable[str]) -> str:
    """The first `SHOWN` of these, and how many more there are."""
    found = list(several)
    more = f" and {len(found) - MAX_NAMES} more" if len(found) > MAX_NAMES else ""
    return ", ".join(found[:MAX_NAMES]) + more


def ok(of: str, side: Scope, found: str) -> Finding:
    """All is well."""
    return Finding(of, Severity.OK, side, found)


def info(of: str, side: Scope, found: str, hint: str = "") -> Finding:
    """Worth knowing."""
    return Finding(of, Severity.INFO, side, found, hint)


def warning(of: str, side: Scope, found: str, hint: str = "") -> Finding:
    """Works, and may not for long or not for all."""
    return Finding(of, Severity.WARNING, side, found, hint)


def error(of: str, side: Scope, found: str, hint: str = "") -> Finding:
    """Does not work."""
    return Finding(of, Severity.ERROR, side, found, hint)


@dataclass(frozen=True, slots=True)
class Report:
    """All findings, by id."""

    kind: Literal["preflight", "health"]
    findings: Sequence[Finding]

    @property
    def failed(self) -> bool:
        """Whether something does not work."""
        return any(it.severity is Severity.ERROR for it in self.findings)

    @property
    def errors(self) -> list[str]:
        """The ids of what does not work, once each."""
        found = (it.id for it in self.findings if it.severity is Severity.ERROR)
        return list(dict.fromkeys(found))

    def as_data(self) -> Object:
        """For programs."""
        return {
            "kind": self.kind,
            "summary": self._counts(),
            "findings": [it.as_data() for it in self.findings],
        }

    def _counts(self) -> dict[str, int]:
        found = Counter(it.severity for it in self.findings)
        return {str(severity): found[severity] for severity in Severity}

    def rows(self) -> list[list[str]]:
        """A line for each finding: severity, id, where, found."""
        return [[it.severity, it.id, _place(it), it.found] for it in self.findings]

    def advice(self) -> list[str]:
        """What to do, line by line, the worst first."""
        bad = [it for it in self.findings if it.advice]
        bad.sort(key=lambda it: (list(Severity).index(it.severity) * -1, it.id))
        return list(dict.fromkeys(f"{it.id}: {it.advice} ({it.check.docs})" for it in bad))

    def summary(self) -> str:
        """One line."""
        return ", ".join(f"{count} {severity}" for severity, count in self._counts().items())


def build_report(kind: Literal["preflight", "health"], findings: Iterable[Finding]) -> Report:
    """In the order of the table; what is about a cluster before what is about a node."""
    known = {each: place for place, each in enumerate(CHECKS)}
    return Report(kind, sorted(findings, key=lambda it: (it.node, known[it.id], it.side)))


def _place(finding: Finding) -> str:
    return f"{finding.side}/{finding.node}" if finding.node else finding.side
