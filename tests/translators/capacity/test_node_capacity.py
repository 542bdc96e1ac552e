"""The capacity of the virtual node: counted nodes, and the offered amounts."""

from __future__ import annotations

from fractions import Fraction
from math import floor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from translators.capacity import pod_requests
from translators.capacity.node_capacity import (
    NO_LIMITS,
    NodeCapacity,
    OfferLimits,
    free_resources,
    is_counted,
    largest_pod,
    offered_capacity,
)
from translators.capacity.pod_requests import Amounts
from translators.object_accessors import Object

#: More than any node of these tests has.
_ROOM = {"cpu": "64", "memory": "64Gi"}


def _left(cpu: int, gibibytes: int, *, pods: int = 9) -> Amounts:
    return {"cpu": cpu, "memory": gibibytes * 2**30, "pods": pods}


def _node(
    *,
    ready: str | None = "True",
    taints: list[Object] | None = None,
    cordoned: bool = False,
    labels: dict[str, str] | None = None,
) -> Object:
    spec: Object = {"unschedulable": True} if cordoned else {}
    if taints:
        spec["taints"] = taints
    conditions = [{"type": "MemoryPressure", "status": "False"}]
    if ready is not None:
        conditions.append({"type": "Ready", "status": ready})
    return {
        "metadata": {"name": "worker", "labels": labels or {}},
        "spec": spec,
        "status": {"conditions": conditions},
    }


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        (_node(), True),
        (_node(taints=[{"key": "a", "effect": "PreferNoSchedule"}]), True),
        (_node(taints=[{"key": "a", "effect": "NoSchedule"}]), False),
        (_node(taints=[{"key": "a", "effect": "NoExecute"}]), False),
        (_node(cordoned=True), False),
        (_node(ready="Unknown"), False),
        (_node(ready=None), False),
        (_node(labels={"cluster-bridge.io/virtual-node": "true"}), False),
        ({"metadata": {"name": "new"}}, False),
    ],
    ids=[
        "a ready node counts",
        "one that is only not preferred counts",
        "a tainted node does not",
        "nor one that evicts",
        "nor a cordoned one",
        "nor one whose health is unknown",
        "nor one without health",
        "nor one that is virtual itself",
        "nor one without status",
    ],
)
def test_schedulable_ready_nodes_are_counted(node: Object, expected: bool) -> None:
    assert is_counted(node) is expected


_NAMES = st.sampled_from(["cpu", "memory", "pods", "nvidia.com/gpu", "hugepages-2Mi"])
_amounts = st.dictionaries(_NAMES, st.integers(0, 2**40))
_limits = st.builds(
    OfferLimits,
    reserve=_amounts,
    share=st.fractions(min_value=0, max_value=1).filter(bool),
    caps=_amounts,
)


@given(_amounts, _amounts, _limits, _amounts)
def test_offered_amounts_are_within_all_limits(
    has: Amounts, left: Amounts, limits: OfferLimits, quota: Amounts
) -> None:
    found = offered_capacity(has=has, free=left, nodes=1, limits=limits, quota=quota)
    allocatable = pod_requests.parse_resource_list(found.allocatable)

    assert allocatable.keys() == left.keys()
    for name, amount in allocatable.items():
        less = max(0, left[name] - limits.reserve.get(name, 0))
        most: list[Fraction] = [
            less * limits.share,
            *(Fraction(it[name]) for it in (limits.caps, quota) if name in it),
        ]
        assert amount == floor(min(most)) >= 0
    assert pod_requests.parse_resource_list(found.capacity) == has, (
        "the remote's capacity, independent of the offer"
    )


@given(_amounts, st.lists(_amounts, max_size=2))
def test_free_resources_are_never_negative(has: Amounts, used: list[Amounts]) -> None:
    left = free_resources(has, *used)

    assert left.keys() == has.keys()
    assert all(0 <= left[name] <= has[name] for name in has)
    assert all(left[name] + sum(it.get(name, 0) for it in used) >= has[name] for name in has)


def test_reserve_share_and_caps_are_applied_in_order() -> None:
    """Ten CPUs of which three are used: less one reserved, half of the rest, and the caps last."""
    found = offered_capacity(
        has={"cpu": 10_000, "memory": 2**35},
        free={"cpu": 7_000, "memory": 2**35},
        nodes=2,
        limits=OfferLimits({"cpu": 1_000}, Fraction(1, 2), {"memory": 2**30, "pods": 5}),
        quota={"cpu": 2_500, "pods": 3},
    )
    assert found == NodeCapacity(
        {"cpu": "10", "memory": "32Gi"}, {"cpu": "2500m", "memory": "1Gi"}, nodes=2
    )


def test_elastic_resources_are_offered_before_their_nodes_exist() -> None:
    limits = OfferLimits(
        share=Fraction(1, 2), elastic={"cpu": 8_000, "example.com/gpu": 4}, caps={"pods": 50}
    )
    found = offered_capacity(
        has={"cpu": 20_000, "memory": 2**35},
        free={"cpu": 20_000, "memory": 2**35},
        nodes=2,
        limits=limits,
        quota={"example.com/gpu": 3},
    )
    assert found == NodeCapacity(
        {"cpu": "20", "example.com/gpu": "4", "memory": "32Gi", "pods": "110"},
        {"cpu": "10", "example.com/gpu": "3", "memory": "16Gi", "pods": "50"},
        nodes=2,
    )
    none = offered_capacity(has={}, free={}, nodes=0, limits=limits, quota={})
    assert none.allocatable == {"cpu": "8", "example.com/gpu": "4", "pods": "50"}


def test_no_counted_node_offers_nothing() -> None:
    assert offered_capacity(
        has={}, free={}, nodes=0, limits=NO_LIMITS, quota={"cpu": 1}
    ) == NodeCapacity({}, {}, nodes=0)


@pytest.mark.parametrize(
    ("nodes", "offer", "message"),
    [
        ([], {}, "cpu=0,memory=0"),
        ([_left(1570, 5)], _ROOM, "cpu=1500m,memory=5Gi"),
        ([_left(1000, 9), _left(2000, 1), _left(2000, 3)], _ROOM, "cpu=2,memory=3Gi"),
        ([_left(9000, 9, pods=0), _left(100, 1)], _ROOM, "cpu=100m,memory=1Gi"),
        ([_left(9000, 9)], {"cpu": "4", "memory": "1Gi"}, "cpu=4,memory=1Gi"),
        ([_left(99, 0)], _ROOM, "cpu=0,memory=0"),
    ],
    ids=[
        "no node",
        "one, rounded down",
        "the most CPU, then the most memory",
        "a node that is full of pods takes none",
        "no more than the virtual node has",
        "next to nothing",
    ],
)
def test_largest_pod_is_that_of_the_node_with_most_cpu(
    nodes: list[Amounts], offer: dict[str, str], message: str
) -> None:
    assert largest_pod(nodes, offer) == message
