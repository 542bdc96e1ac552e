"""The store of one kind: by key and by index."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from sync.cache.store import Key, Store, key_of
from tests.objects import config_map, node
from translators.object_accessors import Object, metadata


def by_app(obj: Object) -> Iterator[str]:
    """The values of the label ``app``, which can name several with dots between them."""
    yield from str((metadata(obj).get("labels") or {}).get("app", "")).split(".")


def test_key_of_an_object_and_its_text() -> None:
    assert str(key_of(config_map("a", "ns"))) == "ns/a"
    assert str(key_of(node("n"))) == "n"
    assert key_of(node("n")) == Key("", "n")


def test_put_and_remove_return_the_previous_object() -> None:
    store = Store()
    first, second = config_map("a"), config_map("a", data={"k": "v"})
    assert store.put(first) is None
    assert store.put(second) is first
    assert store.get(key_of(first)) is second
    assert store.remove(key_of(first)) is second
    assert store.remove(key_of(first)) is None
    assert store.get(key_of(first)) is None


def test_object_is_found_by_its_current_index_values() -> None:
    store = Store({"app": by_app})
    store.put(config_map("a", labels={"app": "x.y"}))
    store.put(config_map("b", labels={"app": "y"}))
    assert len(store.by_index("app", "y")) == 2
    store.put(config_map("a", labels={"app": "z"}))
    assert store.by_index("app", "x") == []
    assert [obj["metadata"]["name"] for obj in store.by_index("app", "y")] == ["b"]
    assert [obj["metadata"]["name"] for obj in store.by_index("app", "z")] == ["a"]


def test_has_and_count_by_index_value() -> None:
    store = Store({"app": by_app})
    store.put(config_map("a", labels={"app": "x.x.y"}))
    store.put(config_map("b", labels={"app": "x"}))
    assert [store.count("app", it) for it in "xyz"] == [2, 1, 0]
    assert [store.has("app", it) for it in "xyz"] == [True, True, False]
    store.remove(Key("default", "a"))
    store.remove(Key("default", "b"))
    assert [store.has("app", it) for it in "xyz"] == [False, False, False]


def test_indexer_runs_only_if_a_part_it_reads_changed() -> None:
    requested: list[str] = []

    def noted(obj: Object) -> Iterator[str]:
        requested.append(obj["metadata"]["name"])
        yield from by_app(obj)

    store = Store({"app": noted}, reads=["metadata.labels", "spec"])
    first = config_map("a", labels={"app": "x"})
    store.put(first)
    meta = {**first["metadata"], "resourceVersion": "2"}
    store.put({**first, "metadata": meta, "data": {"k": "v"}})
    assert requested == ["a"]
    store.put({**first, "metadata": {**meta, "labels": {"app": "y"}}})
    assert requested == ["a", "a"]
    assert (store.has("app", "x"), store.has("app", "y")) == (False, True)
    store.remove(Key("default", "a"))
    assert requested == ["a", "a"]
    assert not store.has("app", "y")


def test_store_may_change_during_iteration() -> None:
    store = Store()
    for name in "abc":
        store.put(config_map(name))
    for obj in store:
        store.remove(key_of(obj))
    assert len(store) == 0


def test_keys_are_a_copy() -> None:
    store = Store()
    store.put(config_map("a"))
    keys = store.keys()
    keys.clear()
    assert store.keys() == {Key("default", "a")}


def test_repr_shows_no_object() -> None:
    store = Store({"app": by_app})
    store.put(config_map("a", data={"k": "canary"}))
    assert repr(store) == "<Store of 1 indexed by ['app']>"


@given(
    st.lists(
        st.tuples(st.sampled_from("abcd"), st.sampled_from(["", "x", "x.y", "y.z"]), st.booleans())
    )
)
def test_indices_agree_with_the_objects_after_any_sequence(
    steps: list[tuple[str, str, bool]],
) -> None:
    store = Store({"app": by_app})
    for name, app, stays in steps:
        obj = config_map(name, labels={"app": app})
        if stays:
            store.put(obj)
        else:
            store.remove(key_of(obj))
    wanted: defaultdict[str, set[Key]] = defaultdict(set)
    for obj in store:
        for value in by_app(obj):
            wanted[value].add(key_of(obj))
    for value in ("", "x", "y", "z"):
        assert {key_of(obj) for obj in store.by_index("app", value)} == wanted[value]
        assert store.count("app", value) == len(wanted[value])
        assert store.has("app", value) == bool(wanted[value])
