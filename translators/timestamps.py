"""Timestamps of the Kubernetes API: RFC 3339 in UTC, as metav1.Time and metav1.MicroTime.

Pure: callers pass the time in.
"""

from __future__ import annotations

from datetime import UTC, datetime


def format_time(moment: datetime) -> str:
    """Formats a metav1.Time: ``2026-01-02T03:04:05Z``, fractions of a second cut off.

    ``moment`` has a time zone.
    """
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def format_micro_time(moment: datetime) -> str:
    """Formats a metav1.MicroTime, as Leases have it: ``2026-01-02T03:04:05.000006Z``."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def parse_time(text: str) -> datetime:
    """Parses either format, with any offset (default UTC), to UTC. Raises ValueError for anything
    else."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        return moment.replace(tzinfo=UTC)
    try:
        return moment.astimezone(UTC)
    except OverflowError:  # before the year 1, or after 9999
        raise ValueError("the time is outside of the calendar") from None
