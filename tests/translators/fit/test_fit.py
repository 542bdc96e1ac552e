"""Whether pods fit nodes, compared with every possible assignment on small cases."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from translators.fit.fit import in_remote, misfits, pack, reserve
from translators.fit.node_groups import NodeGroup
from translators.object_accessors import Object


def pod(cpu: int, memory: int = 0, **spec: object) -> Object:
    requests = {"cpu": f"{cpu}m", "memory": str(memory)}
    return {"spec": {"containers": [{"name": "c", "resources": {"requests": requests}}], **spec}}


def group(cpu: int, memory: int = 0, *, pods: int = 3, count: int = 1, **labels: str) -> NodeGroup:
    return NodeGroup(
        labels=labels, free={"cpu": cpu, "memory": memory}, pods=pods, count=count, taints=()
    )


pods_strategy = st.builds(pod, st.integers(1, 5), st.integers(0, 3))
groups_strategy = st.lists(
    st.builds(group, st.integers(0, 8), st.integers(0, 4), pods=st.integers(0, 3)), max_size=3
)


def valid(pods: Sequence[Object], groups: Sequence[NodeGroup], nodes: Sequence[int]) -> bool:
    """Whether this assignment of pods to nodes (each a group of one) is possible."""
    for index, node in enumerate(groups):
        mine = [it["spec"]["containers"][0]["resources"]["requests"] for it in pods]
        mine = [it for it, at in zip(mine, nodes, strict=True) if at == index]
        if len(mine) > node.pods:
            return False
        if sum(int(it["cpu"][:-1]) for it in mine) > node.free["cpu"]:
            return False
        if sum(int(it["memory"]) for it in mine) > node.free["memory"]:
            return False
    return True


def possible(pods: Sequence[Object], groups: Sequence[NodeGroup]) -> bool:
    every = itertools.product(range(len(groups)), repeat=len(pods))
    return any(valid(pods, groups, nodes) for nodes in every)


@given(pods_strategy, groups_strategy)
def test_one_pod_fits_exactly_if_one_node_takes_it(one: Object, groups: list[NodeGroup]) -> None:
    assert (misfits(one, groups) == ()) == possible([one], groups)


@given(st.lists(pods_strategy, max_size=4), groups_strategy)
def test_a_packing_is_always_possible(pods: list[Object], groups: list[NodeGroup]) -> None:
    packed = pack(pods, groups)
    if packed is not None:
        assert valid(pods, groups, packed)


@given(pods_strategy, st.integers(0, 4), groups_strategy)
def test_equal_pods_are_packed_whenever_possible(
    one: Object, number: int, groups: list[NodeGroup]
) -> None:
    pods = [one] * number
    assert (pack(pods, groups) is not None) == possible(pods, groups)


@given(st.lists(pods_strategy, max_size=3), pods_strategy, groups_strategy)
def test_reserved_room_is_not_offered_again(
    pods: list[Object], one: Object, groups: list[NodeGroup]
) -> None:
    left = reserve(groups, pods)
    if pack(pods, groups) is not None and misfits(one, left) == ():
        assert possible([*pods, one], groups)


def test_sum_of_nodes_is_not_room_for_one_pod() -> None:
    groups = [group(2000, count=10)]
    assert misfits(pod(3000), groups) == ("requests cpu 3, 2 free (10 nodes)",)


def test_closest_node_comes_first() -> None:
    reasons = misfits(pod(3000), [group(1000), group(2500)])
    assert reasons[0] == "requests cpu 3, 2500m free (1 node)"


def test_no_node_is_a_reason() -> None:
    assert misfits(pod(1), []) == ("no schedulable node",)


def test_node_selector_and_taint_decide() -> None:
    tainted = NodeGroup(free={"cpu": 9}, pods=1, taints=({"key": "gpu", "effect": "NoSchedule"},))
    assert "taint gpu" in misfits(pod(1), [tainted])[0]
    assert misfits(pod(1, tolerations=[{"operator": "Exists"}]), [tainted]) == ()
    arm = pod(1, nodeSelector={"arch": "arm64"})
    assert "nodeSelector[arch]" in misfits(arm, [group(9, arch="amd64")])[0]
    assert misfits(arm, [group(9, arch="arm64")]) == ()


def test_existing_nodes_are_used_before_elastic_ones() -> None:
    elastic = NodeGroup(free={"cpu": 9}, pods=9, elastic=True)
    assert pack([pod(2), pod(8)], [elastic, group(8)]) == (0, 1)


def test_selection_of_home_nodes_does_not_apply_in_the_remote() -> None:
    home = pod(
        1,
        nodeSelector={"cluster-bridge.io/virtual-node": "true", "kubernetes.io/arch": "arm64"},
        tolerations=[{"key": "cluster-bridge.io/virtual-node", "operator": "Exists"}],
    )
    spec = in_remote(home)["spec"]
    assert spec["nodeSelector"] == {"kubernetes.io/arch": "arm64"}
    assert "tolerations" not in spec
