"""Capacity: the exact sum of the nodes that can take our pods, and of no other."""

from __future__ import annotations

import copy
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from translators.capacity import Capacity, counts, of_nodes
from translators.quantity import parse
from translators.types import Object

_amounts = st.sampled_from(["0", "4", "3920m", "110", "32863524Ki", "16Gi", "1e3"])
_resources = st.dictionaries(
    st.sampled_from(["cpu", "memory", "pods", "nvidia.com/gpu", "hugepages-2Mi"]), _amounts
)


def _node(
    *,
    ready: str | None = "True",
    taints: list[Object] | None = None,
    cordoned: bool = False,
    resources: dict[str, str] | None = None,
) -> Object:
    spec: Object = {"unschedulable": True} if cordoned else {}
    if taints:
        spec["taints"] = taints
    conditions = [{"type": "MemoryPressure", "status": "False"}]
    if ready is not None:
        conditions.append({"type": "Ready", "status": ready})
    return {
        "metadata": {"name": "worker"},
        "spec": spec,
        "status": {
            "conditions": conditions,
            "capacity": resources or {},
            "allocatable": resources or {},
        },
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
        "nor one without status",
    ],
)
def test_which_nodes_count(node: Object, expected: bool) -> None:
    assert counts(node) is expected


@given(st.lists(st.builds(lambda found: _node(resources=found), _resources), max_size=4))
def test_the_sum_is_exact_never_negative_and_of_any_order(nodes: list[Object]) -> None:
    before = copy.deepcopy(nodes)
    found = of_nodes(nodes)

    for name, quantity in found.allocatable.items():
        amounts = [node["status"]["allocatable"].get(name, "0") for node in nodes]
        assert parse(quantity) == sum(map(parse, amounts), Fraction(0)) >= 0
    assert set(found.allocatable) == {
        name for node in nodes for name in node["status"]["allocatable"]
    }
    assert of_nodes(nodes[::-1]) == found
    assert nodes == before


def test_capacity_and_allocatable_are_summed_apart() -> None:
    node = _node(resources={"cpu": "4"})
    node["status"]["allocatable"] = {"cpu": "3920m"}
    unusable = _node(cordoned=True, resources={"cpu": "64"})

    assert of_nodes([node, unusable, node]) == Capacity({"cpu": "8"}, {"cpu": "7840m"}, nodes=2)


def test_no_node_offers_nothing() -> None:
    assert of_nodes([]) == Capacity({}, {}, nodes=0)
