"""The choice of the remote that holds a whole Workload."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests import kueue_objects as objects
from translators.fit.node_groups import NodeGroup
from translators.kueue import workload
from translators.kueue.remote_choice import Remote, choose, refusal
from translators.kueue.workload import PodSet
from translators.object_accessors import Object, name_of


def pod_sets(*sets: Object, **flavor_labels: str) -> tuple[PodSet, ...]:
    """The pod sets of a Workload with reserved quota."""
    found = objects.workload("train", *sets)
    found["status"] = objects.reserved(found)
    return workload.pod_sets(found, {objects.FLAVOR: objects.flavor(**flavor_labels)})


def remote(name: str, *groups: NodeGroup, **node: Any) -> Remote:
    """A remote with these free nodes."""
    return Remote(objects.virtual_node(name, **node), groups)


def test_only_remote_that_holds_all_pods_is_chosen() -> None:
    """Four pods of two cores: twelve cores in pieces of one and a half do not help."""
    wanted = pod_sets(objects.pod_set(4, "2"))
    small = remote("small", objects.nodes(2, 2), objects.nodes(8, 1))
    large = remote("large", objects.nodes(2, 4))
    choice = choose(wanted, [small, large])
    assert choice.node is large.node
    assert [(it.node, bool(it.reason)) for it in choice.verdicts] == [
        ("large", False),
        ("small", True),
    ]
    assert "no room for all 4 pods together" in choose(wanted, [small]).message


def test_all_pod_sets_count_together() -> None:
    sets = (objects.pod_set(1, "3", "leader"), objects.pod_set(2, "2", "workers"))
    assert refusal(pod_sets(*sets), remote("r", objects.nodes(1, 3), objects.nodes(1, 4))) == ""
    assert "all 3 pods together" in refusal(pod_sets(*sets), remote("r", objects.nodes(2, 3)))


def test_message_counts_promised_pods() -> None:
    wanted = pod_sets(objects.pod_set(2, "2"))
    beside = Remote(objects.virtual_node("r"), (objects.nodes(1, 2),), promised=2)
    assert "all 2 pods together, beside 2 promised pods" in refusal(wanted, beside)


def test_reasons_name_the_side_that_refuses() -> None:
    """Home's scheduler, the node's offer, the remote's nodes, and a bridge without a room."""
    one = pod_sets(objects.pod_set(1, "2"))
    room = objects.nodes(9, 9)
    lost = remote("lost", room, ready=False)
    assert "the node is not Ready" in refusal(one, lost)
    assert "requests '2'" not in refusal(one, lost)
    offers_little = remote("r", room, cpu="5")
    assert refusal(pod_sets(objects.pod_set(3, "2")), offers_little) == (
        "requests 6 of cpu; the node has 5 left of 5"
    )
    assert "no node of the remote takes a pod" in refusal(one, remote("r", objects.nodes(9, 1)))
    silent = refusal(one, Remote(objects.virtual_node("r"), None))
    assert silent.startswith("publishes no free room yet: wait up to 6 minutes")
    assert "nodeSelector[zone]" in refusal(
        pod_sets(objects.pod_set(1, "1"), zone="b"), remote("r", room)
    )
    assert choose(one, []).message == "home has no virtual node"


def test_requests_of_homes_other_pods_count_against_the_nodes_offer() -> None:
    full = Remote(objects.virtual_node("r", cpu="8"), (objects.nodes(9, 9),), 0, {"cpu": 7000})
    assert refusal(pod_sets(objects.pod_set(1, "2")), full) == (
        "requests 2 of cpu; the node has 1 left of 8"
    )


def test_cheapest_remote_is_chosen_then_the_one_with_less_free() -> None:
    wanted = pod_sets(objects.pod_set(1, "1"))
    remotes = [
        remote("large", objects.nodes(9, 9)),
        remote("small", objects.nodes(1, 2)),
        remote("broken-label", objects.nodes(1, 1), labels={"cluster-bridge.io/cost": "cheap"}),
    ]
    assert name_of(choose(wanted, remotes).node or {}) == "broken-label"
    paid = remote("paid", objects.nodes(1, 9), labels={"cluster-bridge.io/cost": "2.5"})
    free = remote("free", objects.nodes(9, 9), labels={"cluster-bridge.io/cost": "0"})
    assert name_of(choose(wanted, [*remotes, paid, free]).node or {}) == "free"


def test_pods_that_are_no_longer_needed_take_no_room() -> None:
    found = objects.workload("train", objects.pod_set(3, "4"))
    found["status"] = objects.reserved(found)
    found["status"]["reclaimablePods"] = [{"name": "main", "count": 2}]
    sets = workload.pod_sets(found, {})
    assert refusal(sets, remote("r", objects.nodes(1, 4))) == ""


@given(
    counts=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 8)), min_size=1, max_size=3),
    rooms=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 16)), min_size=1, max_size=3),
)
def test_chosen_remote_never_has_less_than_the_workload_requests(
    counts: list[tuple[int, int]], rooms: list[tuple[int, int]]
) -> None:
    wanted = pod_sets(
        *(objects.pod_set(n, str(cpu), f"set-{i}") for i, (n, cpu) in enumerate(counts))
    )
    candidates = [
        remote(f"r{i}", objects.nodes(n, cpu), cpu="1000") for i, (n, cpu) in enumerate(rooms)
    ]
    choice = choose(wanted, candidates)
    needed = sum(n * cpu for n, cpu in counts)
    for candidate, (n, cpu) in zip(candidates, rooms, strict=True):
        if candidate.node is choice.node:
            assert n * cpu >= needed
            assert cpu >= max(it for _, it in counts)
