"""Memory is released after a burst, and an idle bridge collects nothing."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator

import pytest

from bridge.base import memory_savings


@pytest.fixture
def collections(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """One entry for each full collection."""
    full: list[int] = []

    def record(phase: str, info: dict[str, int]) -> None:
        if phase == "start" and info["generation"] == 2:
            full.append(1)

    monkeypatch.setattr(memory_savings, "CHECK_INTERVAL", 0.01)
    gc.collect()
    gc.disable()
    gc.callbacks.append(record)
    yield full
    gc.callbacks.remove(record)
    gc.enable()


async def test_full_collection_runs_once_after_most_objects_are_freed(
    collections: list[int],
) -> None:
    kept = [{"pod": [number]} for number in range(1_000_000)]
    task = asyncio.create_task(memory_savings.release_memory())
    try:
        await asyncio.sleep(0.1)
        assert not collections
        kept.clear()
        await asyncio.sleep(0.3)
        assert len(collections) == 1
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_idle_process_collects_nothing(collections: list[int]) -> None:
    task = asyncio.create_task(memory_savings.release_memory())
    await asyncio.sleep(0.1)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert not collections
