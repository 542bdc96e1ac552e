"""Queries of a report."""

from __future__ import annotations

from bridge.checks.findings import Finding, Report, Severity


def of(report: Report, check: str) -> list[Finding]:
    """The findings of one check."""
    return [it for it in report.findings if it.id == check]


def one(report: Report, check: str) -> Finding:
    """The only one."""
    [found] = of(report, check)
    return found


def worse(report: Report, than: Severity = Severity.INFO) -> set[str]:
    """The ids of what is worse."""
    order = list(Severity)
    return {it.id for it in report.findings if order.index(it.severity) > order.index(than)}
