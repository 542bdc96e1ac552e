"""Memory goes back when much has gone, and a bridge at rest looks for nothing."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator

import pytest

from bridge.base import memory


@pytest.fixture
def collections(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The whole collections that were made."""
    made: list[int] = []

    def noted(phase: str, info: dict[str, int]) -> None:
        if phase == "start" and info["generation"] == 2:
            made.append(1)

    monkeypatch.setattr(memory, "LOOK", 0.01)
    gc.collect()
    gc.disable()
    gc.callbacks.append(noted)
    yield made
    gc.callbacks.remove(noted)
    gc.enable()


async def test_all_is_collected_once_after_much_has_gone(collections: list[int]) -> None:
    kept = [{"pod": [number]} for number in range(1_000_000)]
    task = asyncio.create_task(memory.give_back())
    try:
        await asyncio.sleep(0.1)
        assert not collections
        kept.clear()
        await asyncio.sleep(0.3)
        assert len(collections) == 1
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_bridge_at_rest_collects_nothing(collections: list[int]) -> None:
    task = asyncio.create_task(memory.give_back())
    await asyncio.sleep(0.1)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert not collections
