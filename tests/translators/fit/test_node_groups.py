"""Groups of nodes: they never claim room that the nodes do not have."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from translators.fit import node_groups
from translators.fit.node_groups import NodeGroup, RoomError, from_json, group_nodes, to_json
from translators.object_accessors import Object


def node(name: str = "n", *, cpu: str = "4", ready: str = "True", **spec: object) -> Object:
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/arch": "amd64", "zone": "a"}},
        "spec": spec,
        "status": {
            "allocatable": {"cpu": cpu, "memory": "8Gi", "pods": "10"},
            "conditions": [{"type": "Ready", "status": ready}],
        },
    }


def pod(cpu: str, on: str = "", phase: str = "Running") -> Object:
    return {
        "spec": {
            "nodeName": on,
            "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}],
        },
        "status": {"phase": phase},
    }


def test_equal_nodes_are_one_group() -> None:
    groups = group_nodes([node("a"), node("b"), node("c")], [pod("1", "c")])
    assert [(it.free["cpu"], it.pods, it.count) for it in groups] == [(3000, 9, 1), (4000, 10, 2)]


def test_cordoned_and_unready_nodes_have_no_room() -> None:
    nodes = [node("a", unschedulable=True), node("b", ready="False")]
    assert group_nodes(nodes, []) == ()


def test_virtual_node_is_no_room() -> None:
    virtual = node("v")
    virtual["metadata"]["labels"]["cluster-bridge.io/virtual-node"] = "true"
    assert group_nodes([virtual], []) == ()


def test_ended_and_unbound_pods_use_nothing() -> None:
    [group] = group_nodes([node("a")], [pod("1", "a", "Succeeded"), pod("1")])
    assert group.free["cpu"] == 4000


def test_labels_are_limited_to_the_requested_keys() -> None:
    [group] = group_nodes([node("a")], [], label_keys=["kubernetes.io/arch"])
    assert group.labels == {"kubernetes.io/arch": "amd64"}


def test_taints_are_kept() -> None:
    taint = {"key": "gpu", "effect": "NoSchedule"}
    [group] = group_nodes([node("a", taints=[taint])], [])
    assert group.taints == (taint,)


groups_strategy = st.lists(
    st.builds(
        NodeGroup,
        labels=st.dictionaries(st.sampled_from(["arch", "ö"]), st.text(max_size=3), max_size=2),
        taints=st.just(()),
        free=st.dictionaries(
            st.sampled_from(["cpu", "memory", "gpu"]), st.integers(0, 2**40), max_size=3
        ),
        pods=st.integers(0, 200),
        count=st.integers(1, 5),
        elastic=st.booleans(),
    ),
    max_size=12,
)


@given(groups_strategy)
def test_json_without_bound_is_exact(groups: list[NodeGroup]) -> None:
    assert from_json(to_json(groups)) == node_groups.merge_equal(groups)


@given(groups_strategy, st.integers(2, 600))
def test_bounded_json_never_claims_more_room(groups: list[NodeGroup], limit: int) -> None:
    text = to_json(groups, limit)
    assert len(text.encode()) <= limit
    # Each published node is matched with a node of its own that has at least as much of everything.
    free = [it for it in groups for _ in range(it.count)]
    for published in sorted(from_json(text), key=lambda it: sum(it.amounts.values()), reverse=True):
        same = [
            it for it in free if (it.labels, it.elastic) == (published.labels, published.elastic)
        ]
        covering = [
            it
            for it in same
            if all(it.amounts.get(key, 0) >= value for key, value in published.amounts.items())
        ]
        assert len(covering) >= published.count
    assert sum(it.count for it in from_json(text)) <= len(free)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[1]",
        '[{"pods": 1}]',
        '[{"pods": -1, "count": 1}]',
        '[{"pods": true, "count": 1}]',
        '[{"pods": 1, "count": 1.5}]',
        '[{"pods": 1, "count": 1, "free": {"cpu": "4"}}]',
        '[{"pods": 1, "count": 1, "free": {"cpu": 1e400}}]',
        '[{"pods": 1, "count": 1, "labels": {"a": 1}}]',
        '[{"pods": 1, "count": 1, "taints": [{}]}]',
        '[{"pods": 1, "count": 1, "taints": {"key": "a"}}]',
        "[" * 100_000,
        json.dumps([{"pods": 1, "count": 1}] * 30_000),
        " " * 2_000_000,
    ],
)
def test_malformed_text_is_rejected(text: str) -> None:
    with pytest.raises(RoomError):
        from_json(text)
