"""A cache that namespaces share."""

from __future__ import annotations

import pytest

from sync.base.namespace_fair_cache import FairCache


@pytest.mark.parametrize(("memory", "entries"), [(2**29, 1792), (2**30, 5888), (2**32, 10_000)])
def test_entries_follow_from_the_memory(
    memory: int, entries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sync.base.memory_limit.memory_limit", lambda: memory)
    cache: FairCache[int, None] = FairCache()
    for number in range(entries + 1):
        cache.put("a", number, None)
    assert len(cache) == entries


def test_namespace_that_fills_the_cache_evicts_its_own_entries() -> None:
    cache: FairCache[str, int] = FairCache(10)
    for number in range(3):
        cache.put("victim", f"v{number}", number)
    for number in range(1000):
        cache.put("flood", f"f{number}", number)
    assert [cache.get(f"v{number}") for number in range(3)] == [0, 1, 2]
    assert len(cache) == 10
    assert cache.get("f999") == 999
    assert "f0" not in cache, "the oldest goes first"


def test_entry_is_replaced_and_removed() -> None:
    cache: FairCache[str, int] = FairCache(2)
    cache.put("a", "key", 1)
    cache.put("a", "key", 2)
    assert (cache.get("key"), len(cache)) == (2, 1)
    assert cache.pop("key") == 2
    assert (cache.pop("key"), cache.get("key"), len(cache)) == (None, None, 0)


def test_namespaces_share_the_cache() -> None:
    cache: FairCache[int, None] = FairCache(100)
    for number in range(500):
        cache.put(f"n{number}", number, None)
    assert len(cache) == 100
