"""Findings of checks, and a report of them: plain data, and a table for a person. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from bridge.checks.catalog import CHECKS, Check
from translators.object_accessors import Object

#: The cluster that a finding is about.
Scope = Literal["home", "remote", "both"]


class Severity(StrEnum):
    """How bad a finding is, in ascending order."""

    OK = "ok"
    INFO = "info"
    """Worth knowing, or not checked, with the reason."""
    WARNING = "warning"
    """Works, but may fail soon or for some pods."""
    ERROR = "error"
    """Does not work."""


_ORDER = list(Severity)


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of one check."""

    id: str
    severity: Severity
    side: Scope
    found: str
    hint: str = ""
    """What to do, in place of the catalog's hint."""
    node: str = ""
    """The virtual node that the finding is about; "" for a cluster."""
    skipped: str = ""
    """Why the check could not look; "" if it did."""

    @property
    def check(self) -> Check:
        """The check in the catalog."""
        return CHECKS[self.id]

    @property
    def advice(self) -> str:
        """What to do, "" for nothing."""
        if self.severity in (Severity.OK, Severity.INFO):
            return self.hint
        return self.hint or self.check.hint

    def as_data(self) -> Object:
        """The finding as JSON; field names are stable."""
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


def ok(check_id: str, side: Scope, found: str) -> Finding:
    """The check passes, without reservation."""
    return Finding(check_id, Severity.OK, side, found)


def info(check_id: str, side: Scope, found: str, hint: str = "") -> Finding:
    """Worth knowing."""
    return Finding(check_id, Severity.INFO, side, found, hint)


def not_checked(check_id: str, side: Scope, reason: str, hint: str = "") -> Finding:
    """The check could not look."""
    text = f"not checked: {reason}"
    return Finding(check_id, Severity.INFO, side, text, hint, skipped=reason)


def warning(check_id: str, side: Scope, found: str, hint: str = "") -> Finding:
    """Works, but may fail soon or for some pods."""
    return Finding(check_id, Severity.WARNING, side, found, hint)


def error(check_id: str, side: Scope, found: str, hint: str = "") -> Finding:
    """Does not work."""
    return Finding(check_id, Severity.ERROR, side, found, hint)


@dataclass(frozen=True, slots=True)
class Report:
    """All findings, by id; those about a cluster before those about a node."""

    kind: Literal["preflight", "health"]
    findings: Sequence[Finding]

    @property
    def failed(self) -> bool:
        """Whether any finding is an error."""
        return any(it.severity is Severity.ERROR for it in self.findings)

    @property
    def errors(self) -> list[str]:
        """The ids of errors, once each."""
        found = (it.id for it in self.findings if it.severity is Severity.ERROR)
        return list(dict.fromkeys(found))

    def as_data(self) -> Object:
        """The report as JSON; field names are stable."""
        counts = Counter(it.severity for it in self.findings)
        return {
            "kind": self.kind,
            "summary": {str(severity): counts[severity] for severity in Severity},
            "findings": [it.as_data() for it in self.findings],
        }

    def rows(self, *, skipped: bool = False) -> list[list[str]]:
        """Severity, id, scope and text of each finding, worst first; ``skipped`` includes checks
        that could not look."""
        findings = self.findings if skipped else self._looked()
        shown = sorted(findings, key=lambda it: -_ORDER.index(it.severity))
        return [[it.severity, it.id, _scope(it), it.found] for it in shown]

    def skipped(self) -> list[str]:
        """One line for each reason for which checks were skipped."""
        by_reason: dict[str, list[str]] = {}
        for it in self.findings:
            if it.skipped:
                by_reason.setdefault(it.skipped, []).append(it.id)
        return [
            f"Not checked, because {reason}: {', '.join(dict.fromkeys(ids))}"
            for reason, ids in by_reason.items()
        ]

    def advice(self) -> list[str]:
        """What to do, one line each, worst first."""
        found = [it for it in self.findings if it.advice]
        found.sort(key=lambda it: (-_ORDER.index(it.severity), it.id))
        return list(dict.fromkeys(f"{it.id}: {it.advice} ({it.check.docs})" for it in found))

    def summary(self) -> str:
        """The number of findings by severity, worst first, and of skipped checks, in one line."""
        counts = Counter(it.severity for it in self._looked())
        parts = [f"{counts[severity]} {severity}" for severity in reversed(_ORDER)]
        skipped = len(self.findings) - counts.total()
        return ", ".join([*parts, *([f"{skipped} not checked"] if skipped else [])])

    def _looked(self) -> list[Finding]:
        return [it for it in self.findings if not it.skipped]


def build_report(kind: Literal["preflight", "health"], findings: Iterable[Finding]) -> Report:
    """A report with the findings in order."""
    known = {check_id: place for place, check_id in enumerate(CHECKS)}
    return Report(kind, sorted(findings, key=lambda it: (it.node, known[it.id], it.side)))


def _scope(finding: Finding) -> str:
    return f"{finding.side}/{finding.node}" if finding.node else finding.side
