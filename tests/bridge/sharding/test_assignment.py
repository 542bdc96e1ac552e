"""The assignment of remotes to replicas."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from bridge.sharding.assignment import assign

REMOTES = st.sets(st.text("abcdefgh-", min_size=1, max_size=6), min_size=1, max_size=60)
REPLICAS = st.sets(st.text("0123456789", min_size=1, max_size=6), min_size=1, max_size=8)


def offers(replicas: set[str], remotes: set[str]) -> dict[str, frozenset[str]]:
    return {it: frozenset(remotes) for it in replicas}


def moved(before: Mapping[str, str], after: Mapping[str, str]) -> set[str]:
    return {key for key in before if after[key] != before[key]}


@given(REMOTES, REPLICAS)
def test_every_remote_has_one_replica_and_no_replica_exceeds_its_share(
    remotes: set[str], replicas: set[str]
) -> None:
    assigned = assign(offers(replicas, remotes))
    assert assigned.keys() == remotes
    load = Counter(assigned.values())
    assert max(load.values()) <= -(-len(remotes) // len(replicas))


@given(REMOTES, REPLICAS)
def test_the_order_of_the_members_does_not_matter(remotes: set[str], replicas: set[str]) -> None:
    known = offers(replicas, remotes)
    assert assign(known) == assign(dict(reversed(known.items())))


@given(REMOTES, REPLICAS, st.text("xyz", min_size=1, max_size=3))
def test_a_replica_that_comes_or_goes_moves_little_more_than_its_share(
    remotes: set[str], replicas: set[str], new: str
) -> None:
    before = assign(offers(replicas, remotes))
    after = assign(offers({*replicas, new}, remotes))
    share = Counter(after.values())[new]
    others = moved(before, after) - {key for key, it in after.items() if it == new}
    # A remote goes from one old replica to another only where a share became full or free.
    assert len(others) <= 2 * share + len(replicas)
    if len(replicas) == 1:
        assert not others


@given(REMOTES, REPLICAS, st.data())
def test_a_remote_that_a_replica_cannot_serve_moves_alone(
    remotes: set[str], replicas: set[str], data: st.DataObject
) -> None:
    before = assign(offers(replicas, remotes))
    key = data.draw(st.sampled_from(sorted(remotes)))
    after = assign(offers(replicas, remotes), {before[key]: frozenset({key})})
    assert moved(before, after) == ({key} if len(replicas) > 1 else set())


def test_a_remote_that_nobody_can_serve_stays_with_its_replica() -> None:
    known = offers({"1", "2", "3"}, {"a", "b", "c"})
    nobody = {it: frozenset({"a"}) for it in known}
    assert assign(known, nobody) == assign(known)


def test_a_remote_goes_to_a_replica_that_has_it_in_its_configuration() -> None:
    known = {"1": frozenset({"a"}), "2": frozenset({"a", "b", "c"})}
    assigned = assign(known)
    assert assigned["b"] == assigned["c"] == "2"
