"""Selects findings of a report."""

from __future__ import annotations

from bridge.checks.findings import Finding, Report, Severity


def findings_of(report: Report, check: str) -> list[Finding]:
    """The findings of one check."""
    return [it for it in report.findings if it.id == check]


def finding_of(report: Report, check: str) -> Finding:
    """The only finding of one check."""
    [found] = findings_of(report, check)
    return found


def worse_than(report: Report, than: Severity = Severity.INFO) -> set[str]:
    """The ids of the findings that are worse than this severity."""
    order = list(Severity)
    return {it.id for it in report.findings if order.index(it.severity) > order.index(than)}
