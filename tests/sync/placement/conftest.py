"""The fixture of the placer's tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from sync.placement import failback, placer, unbound_pods
from tests.fakeapi import FakeApi
from tests.sync.placement.placed_home import Home, running_placer


@pytest.fixture
async def home(home_api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Home]:
    """A home with a running placer that does not wait."""
    monkeypatch.setattr(placer, "COLLECT_SECONDS", 0.01)
    monkeypatch.setattr(failback, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(unbound_pods, "LOOK_SECONDS", 0.02)
    async with running_placer(home_api) as found:
        yield found
