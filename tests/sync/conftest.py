"""Fixtures of the engine's tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from sync.cache import watcher
from sync.runtime import workqueue
from tests.fakeapi import FakeApi
from tests.sync.engine_harness import EngineHarness
from tests.sync.informer_harness import ShortenedBackoff


@pytest.fixture
async def harness(
    home_api: FakeApi, remote_api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[EngineHarness]:
    """Two clusters and an engine that is not started yet; retries follow at once."""
    ShortenedBackoff(monkeypatch)
    monkeypatch.setattr(watcher, "SHORT_WATCH", 0.02)
    monkeypatch.setattr(workqueue, "RETRY_FIRST", 0.004)
    monkeypatch.setattr(workqueue, "RETRY_CAP", 0.05)
    async with EngineHarness(home_api, remote_api) as made:
        yield made
