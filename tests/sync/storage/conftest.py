"""Fixtures of the tests of storage."""

from __future__ import annotations

import pytest

from tests.sync.engine_harness import EngineHarness
from tests.sync.storage.storage_harness import Storage


@pytest.fixture
def storage(harness: EngineHarness) -> Storage:
    """Two clusters with a class each; the engine is not started yet."""
    made = Storage(harness)
    made.home_class()
    made.remote_class()
    return made
