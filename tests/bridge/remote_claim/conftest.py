"""Frequent renewals of claim and election."""

from __future__ import annotations

import pytest

from bridge.election import election_lease, elector
from bridge.remote_claim import claim_keeper


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Renewals are frequent. Home's election does not expire within a test, so that a loaded
    machine, which stalls a bridge for a second, does not end its term."""
    monkeypatch.setattr(election_lease, "LEASE_SECONDS", 15)
    monkeypatch.setattr(election_lease, "RENEW_DEADLINE", 12.0)
    monkeypatch.setattr(election_lease, "RENEW_SECONDS", 0.03)
    monkeypatch.setattr(elector, "RETRY_SECONDS", 0.02)
    monkeypatch.setattr(claim_keeper, "RENEW_SECONDS", 0.1)
    monkeypatch.setattr(claim_keeper, "CLAIM_SECONDS", 1)
    monkeypatch.setattr(claim_keeper, "OBSERVE_SECONDS", 0.6)
    monkeypatch.setattr(claim_keeper, "RETRY_SECONDS", 0.05)
