"""Values of a function are cached by the identity of its argument."""

from __future__ import annotations

from sync.base.identity_cache import IdentityCache


def test_one_call_for_each_object() -> None:
    calls: list[dict[str, int]] = []

    def count(obj: dict[str, int]) -> int:
        calls.append(obj)
        return len(calls)

    cache = IdentityCache(count, maxsize=8)
    first, equal = {"a": 1}, {"a": 1}
    assert [cache(first), cache(first), cache(equal), cache(first)] == [1, 1, 2, 1]
    assert calls == [first, equal]


def test_the_oldest_object_leaves_and_its_address_can_be_reused() -> None:
    cache = IdentityCache(lambda obj: obj["n"], maxsize=2)
    for n in range(1000):
        assert cache({"n": n}) == n
    assert len(cache) == 2
