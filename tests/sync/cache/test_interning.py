"""Equal parts are one object, and nothing else of an object changes."""

from __future__ import annotations

import copy
import itertools
import time
import tracemalloc
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sync.cache.interning import InternPool, intern_pod, no_interning, share_unchanged
from tests.objects import pod
from translators.object_accessors import Object

#: A field's type never changes between two states of an object: true is not compared with 1 here.
_LEAVES = st.none() | st.booleans() | st.integers(2, 5) | st.sampled_from(["", "a", "b"])
_PARTS = st.recursive(
    _LEAVES,
    lambda part: (
        st.lists(part, max_size=3) | st.dictionaries(st.sampled_from("abc"), part, max_size=3)
    ),
    max_leaves=12,
)
_OBJECTS = st.dictionaries(st.sampled_from("abc"), _PARTS, max_size=3)


def unshared(new: Any, old: Any, path: str = "") -> list[str]:
    """Where the two are equal and not the same object."""
    if new is old:
        return []
    if new == old and new is not None:
        return [path]
    if isinstance(new, dict) and isinstance(old, dict):
        return [it for k in new if k in old for it in unshared(new[k], old[k], f"{path}.{k}")]
    if isinstance(new, list) and isinstance(old, list):
        pairs = zip(new, old, strict=False)
        return [it for at, (n, o) in enumerate(pairs) for it in unshared(n, o, f"{path}[{at}]")]
    return []


@given(_OBJECTS, _OBJECTS, st.booleans())
def test_equal_parts_are_shared_with_the_previous_state(
    new: Object, old: Object, pooled: bool
) -> None:
    found = copy.deepcopy(new), copy.deepcopy(old)
    share_unchanged(new, old, InternPool() if pooled else no_interning)
    assert (new, old) == found
    assert [it for key in new for it in unshared(new[key], old.get(key), key)] == []


@given(st.lists(_OBJECTS, max_size=8), st.integers(1, 4))
def test_pool_keeps_values_and_stays_bounded(objects: list[Object], size: int) -> None:
    pool = InternPool(size)
    for obj in objects:
        before = orjson.dumps(obj)
        assert orjson.dumps(pool(obj)) == before
        assert len(pool) <= 2 * size


@given(st.lists(_OBJECTS, max_size=6))
def test_interned_parts_are_not_changed_later(objects: list[Object]) -> None:
    pool = InternPool()
    kept = [(pool(copy.deepcopy(obj)), orjson.dumps(obj)) for obj in itertools.chain(objects)]
    for obj, before in kept:
        assert orjson.dumps(obj) == before


def test_pods_of_one_template_share_parts() -> None:
    pool, pods = InternPool(), [pod("a", node="n"), pod("b", node="n"), pod("c", node="other")]
    for number, one in enumerate(pods):
        one["metadata"]["labels"] = {"app": "web"}
        one["status"] = {"podIP": f"10.0.0.{number}", "hostIPs": [{"ip": "10.0.0.9"}]}
        intern_pod(one, pool)
    a, b, c = pods
    assert a["spec"] is b["spec"]
    assert a["spec"] is not c["spec"]
    assert a["spec"]["containers"] is c["spec"]["containers"]
    assert a["metadata"]["labels"] is b["metadata"]["labels"]
    assert a["status"]["hostIPs"] is c["status"]["hostIPs"]
    assert (a["metadata"]["name"], c["status"]["podIP"]) == ("a", "10.0.0.2")


def test_different_parts_with_one_hash_stay_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sync.cache.interning.hash", lambda _: 7, raising=False)
    pool = InternPool()
    assert [pool({"a": ["1"]}), pool({"a": ["2"]})] == [{"a": ["1"]}, {"a": ["2"]}]


def test_reused_part_stays_in_the_pool() -> None:
    pool = InternPool(4)
    used = pool({"app": "web"})
    for number in range(20):
        pool({"uid": str(number)})
        assert pool({"app": "web"}) is used


def deep_pod(version: str) -> Object:
    """A pod of 2 MB with a field of 240 levels, which differs at the lowest."""
    part: Any = version
    for _ in range(240):
        part = {"items": [0] * 4000, "next": part}
    return {"metadata": {"name": "a", "resourceVersion": version}, "spec": {"unknown": part}}


@pytest.mark.real_time
def test_time_does_not_grow_with_the_levels_of_an_object() -> None:
    pool, first, second = InternPool(), deep_pod("1"), deep_pod("2")
    began = time.thread_time()
    intern_pod(first, pool)
    share_unchanged(second, first, pool)
    assert time.thread_time() - began < 0.5
    assert second == deep_pod("2")


def test_pool_keeps_little_of_objects_that_are_gone() -> None:
    pool = InternPool()
    tracemalloc.start()
    try:
        for number in range(120):
            intern_pod({"spec": {"unknown": [str(number), *[0] * 50_000]}}, pool)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 32 * 2**20
