"""Where a pod is placed, and the verdict about each candidate."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from translators.fit.node_groups import NodeGroup
from translators.object_accessors import Object
from translators.placement import placed_pod
from translators.placement.decision import HOME, Decision, Remote, Room, cost_of, decide
from translators.placement.placement_policy import (
    ANNOTATION_PLACEMENT,
    PlacementPolicy,
    PolicyError,
    parse_policy,
    policy_for,
)

TIERS: list[Object] = [
    {"name": "home", "home": True},
    {"name": "cheap", "remotes": {"matchLabels": {"class": "cheap"}}},
    {"name": "expensive", "remotes": {"matchLabels": {"class": "expensive"}}},
]


def policy(*tiers: Object, **spec: object) -> PlacementPolicy:
    return parse_policy(
        {
            "metadata": {"name": "p"},
            "spec": {"namespaces": ["default"], "tiers": list(tiers) or TIERS, **spec},
        }
    )


def group(cpu: int, count: int = 1) -> NodeGroup:
    return NodeGroup(free={"cpu": cpu}, pods=10, count=count)


def remote(
    name: str,
    cls: str = "cheap",
    *groups: NodeGroup,
    cost: str = "",
    free: int = 100_000,
    ready: str = "True",
    published: bool = True,
    awaited: bool = False,
) -> Remote:
    labels = {"class": cls, "kubernetes.io/hostname": name}
    taint = {"key": "cluster-bridge.io/virtual-node", "effect": "NoSchedule"}
    node: Object = {
        "metadata": {
            "name": name,
            "labels": labels | ({"cluster-bridge.io/cost": cost} if cost else {}),
        },
        "spec": {"taints": [taint]},
        "status": {"conditions": [{"type": "Ready", "status": ready, "reason": "Lost"}]},
    }
    return Remote(
        node, {"cpu": free, "pods": 100}, groups if published else None, is_awaited=awaited
    )


def pod(cpu: int = 1000, namespace: str = "default", **spec: Any) -> Object:
    container = {"name": "c", "resources": {"requests": {"cpu": f"{cpu}m"}}}
    return {
        "metadata": {"name": "a", "namespace": namespace},
        "spec": {"containers": [container], **spec},
    }


def choose(
    one: Object, by: PlacementPolicy, *remotes: Remote, home: int = 0, **more: Any
) -> Decision:
    more = {"counts": {}, **more}
    return decide(one, by, Room(remotes, (group(home),)), **more)


def reasons(decision: Decision) -> dict[str, str]:
    return {it.candidate: it.reason for it in decision.verdicts}


CHEAP, DEAR = remote("c", "cheap", group(2000)), remote("e", "expensive", group(4000))


@pytest.mark.parametrize(
    ("cpu", "home", "choice"),
    [(1000, 1000, HOME), (1000, 500, "c"), (3000, 500, "e"), (5000, 500, None)],
)
def test_first_tier_with_room_is_chosen(cpu: int, home: int, choice: str | None) -> None:
    decision = choose(pod(cpu), policy(), CHEAP, DEAR, home=home)
    assert decision.choice == choice
    assert len(decision.verdicts) == 3


def test_sum_of_free_resources_is_no_room() -> None:
    many = remote("c", "cheap", group(2000, count=10))
    decision = choose(pod(3000), policy(), many)
    assert decision.choice is None
    assert "no node of the remote fits: requests cpu 3, 2 free (10 nodes)" in reasons(decision)["c"]
    assert choose(pod(3000), policy(*TIERS, requireFit=False), many).choice == "c"


def test_full_virtual_node_is_not_chosen_despite_room() -> None:
    limited = remote("c", "cheap", group(2000), free=500)
    assert "the virtual node has 500m left" in reasons(choose(pod(), policy(), limited))["c"]


def test_lost_remote_and_unpublished_room_are_not_chosen() -> None:
    lost = remote("c", "cheap", group(2000), ready="Unknown")
    silent = remote("e", "expensive", published=False)
    decision = choose(pod(), policy(), lost, silent)
    assert decision.choice is None
    assert "not Ready: Lost" in reasons(decision)["c"]
    assert "publishes no room" in reasons(decision)["e"]


def test_room_that_is_awaited_keeps_the_pod_from_later_tiers() -> None:
    awaited = remote("c", "cheap", published=False, awaited=True)
    decision = choose(pod(), policy(), awaited, DEAR)
    assert (decision.choice, decision.tier) == (None, "")
    assert {it.candidate: it.outcome for it in decision.verdicts} == {
        HOME: "impossible",
        "c": "unknown",
        "e": "possible",
    }
    assert reasons(decision)["e"] == "tier cheap comes first"


def test_room_that_is_awaited_keeps_no_pod_from_its_own_or_an_earlier_tier() -> None:
    awaited = remote("c", "cheap", published=False, awaited=True)
    other = remote("d", "cheap", group(2000))
    assert choose(pod(), policy(), awaited, other).choice == "d"
    assert choose(pod(), policy(), awaited, home=1000).choice == HOME


def test_room_is_not_awaited_where_the_pod_cannot_run_or_need_not_fit() -> None:
    full = remote("c", "cheap", published=False, awaited=True, free=500)
    assert choose(pod(), policy(), full, DEAR).choice == "e"
    awaited = remote("c", "cheap", published=False, awaited=True)
    assert choose(pod(), policy(*TIERS, requireFit=False), awaited).choice == "c"


def test_refusal_leads_to_the_next_tier() -> None:
    decision = choose(pod(), policy(), CHEAP, DEAR, blocked={"c": "refused the pod"})
    assert decision.choice == "e"
    assert reasons(decision)["c"] == "refused the pod"


def test_remote_that_no_tier_selects_is_excluded() -> None:
    other = remote("o", "other", group(9000))
    decision = choose(pod(), policy(), other)
    assert decision.choice is None
    assert reasons(decision)["o"] == "no tier of policy p selects it"


def test_cheapest_of_a_tier_is_filled_first() -> None:
    tier = {"name": "any", "remotes": {}}
    first = remote("a", "x", group(2000), cost="2.5")
    second = remote("b", "x", group(2000), cost="0.5")
    assert choose(pod(), policy(tier), first, second, counts={"b": 50}).choice == "b"


def test_spread_follows_weights() -> None:
    tier = {"name": "any", "remotes": {}, "spread": True, "weights": {"a": 3}}
    a, b = remote("a", "x", group(2000)), remote("b", "x", group(2000))
    counts: dict[str, int] = {}
    for _ in range(8):
        choice = choose(pod(), policy(tier), a, b, counts=counts).choice
        assert choice is not None
        counts[choice] = counts.get(choice, 0) + 1
    assert counts == {"a": 6, "b": 2}


def test_weight_of_zero_excludes_a_remote() -> None:
    tier = {"name": "any", "remotes": {}, "weights": {"a": 0}}
    assert choose(pod(), policy(tier), remote("a", "x", group(2000))).choice is None


def test_max_pods_and_max_share_limit_a_remote() -> None:
    few = {"name": "few", "remotes": {"matchLabels": {"class": "cheap"}}, "maxPods": 2}
    rest = {"name": "rest", "remotes": {"matchLabels": {"class": "expensive"}}}
    assert choose(pod(), policy(few, rest), CHEAP, DEAR, counts={"c": 1}).choice == "c"
    assert choose(pod(), policy(few, rest), CHEAP, DEAR, counts={"c": 2}).choice == "e"
    half = {**few, "maxPods": None, "maxShare": 50}
    half = {key: value for key, value in half.items() if value is not None}
    assert choose(pod(), policy(half, rest), CHEAP, DEAR, counts={}).choice == "c"
    assert choose(pod(), policy(half, rest), CHEAP, DEAR, counts={"c": 1}).choice == "e"
    assert choose(pod(), policy(half, rest), CHEAP, DEAR, counts={"c": 1, "e": 2}).choice == "c"


@pytest.mark.parametrize(
    ("text", "cost"), [("3", 3.0), ("", 0.0), ("x", 0.0), ("nan", 0.0), ("inf", 0.0)]
)
def test_cost_is_a_finite_number(text: str, cost: float) -> None:
    assert cost_of({"cluster-bridge.io/cost": text}) == cost


@given(
    st.integers(1, 6000),
    st.lists(st.tuples(st.integers(0, 6000), st.sampled_from(["cheap", "expensive"])), max_size=5),
    st.integers(0, 6000),
)
def test_choice_always_has_a_node_for_the_pod(
    cpu: int, rooms: list[tuple[int, str]], home: int
) -> None:
    remotes = [remote(f"r{n}", cls, group(free)) for n, (free, cls) in enumerate(rooms)]
    decision = choose(pod(cpu), policy(), *remotes, home=home)
    frees = {HOME: home} | {f"r{n}": free for n, (free, _) in enumerate(rooms)}
    if decision.choice is None:
        assert all(free < cpu for free in frees.values())
    else:
        assert frees[decision.choice] >= cpu
        assert decision.choice == HOME or home < cpu
    assert {it.candidate for it in decision.verdicts} == {*frees}


# -- policies ------------------------------------------------------------------------------


def test_highest_priority_then_name_decides() -> None:
    def named(name: str, priority: int) -> PlacementPolicy:
        spec = {"namespaces": ["default"], "tiers": TIERS, "priority": priority}
        return parse_policy({"metadata": {"name": name}, "spec": spec})

    found = policy_for(pod(), [named("z", 1), named("b", 5), named("a", 5)], {})
    assert found is not None
    assert found.name == "a"


@pytest.mark.parametrize(
    ("spec", "matches"),
    [
        ({"namespaces": ["default"]}, True),
        ({"namespaces": ["other"]}, False),
        ({"namespaces": ["other"], "namespaceSelector": {"matchLabels": {"team": "x"}}}, True),
        ({"namespaces": ["other"], "namespaceSelector": {}}, True),
        ({"namespaces": [], "podSelector": {"matchLabels": {"app": "x"}}}, False),
        ({"namespaces": [], "priorityClasses": ["batch"]}, True),
        ({"namespaces": [], "priorityClasses": ["other"]}, False),
    ],
)
def test_policy_selects_pods(spec: Object, matches: bool) -> None:
    one = pod(priorityClassName="batch")
    assert (policy_for(one, [policy(**spec)], {"team": "x"}) is not None) == matches


def test_system_namespaces_and_daemonsets_have_no_policy() -> None:
    everywhere = policy(namespaces=["kube-system", "default"])
    assert policy_for(pod(namespace="kube-system"), [everywhere], {}) is None
    daemon = pod()
    daemon["metadata"]["ownerReferences"] = [{"kind": "DaemonSet", "controller": True}]
    assert policy_for(daemon, [everywhere], {}) is None


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"tiers": []}, "spec.tiers"),
        ({"tiers": [{"name": "a"}]}, "spec.tiers[0]"),
        ({"tiers": [{"name": "a", "home": True, "remotes": {}}]}, "spec.tiers[0]"),
        ({"tiers": [{"home": True}]}, "spec.tiers[0].name"),
        ({"tiers": [TIERS[0], TIERS[0]]}, "unique"),
        ({"tiers": [{**TIERS[1], "maxShare": 101}]}, "maxShare"),
        ({"tiers": [{**TIERS[1], "maxPods": 0}]}, "maxPods"),
        ({"tiers": [{**TIERS[1], "weights": {"a": -1}}]}, "weights[a]"),
        ({"tiers": [{"name": "a", "remotes": {"matchExpressions": [{}]}}]}, "operator"),
        ({"maxWait": "soon"}, "spec.maxWait"),
        ({"maxWait": ""}, "spec.maxWait"),
        ({"namespaces": []}, "namespaceSelector"),
        ({"namespaces": [], "namespaceSelector": {}, "podSelector": {}}, "namespaceSelector"),
        ({"namespaces": [], "priorityClasses": []}, "priorityClasses"),
        ({"requireFit": "yes"}, "requireFit"),
    ],
)
def test_invalid_policy_names_the_field(spec: Object, field: str) -> None:
    valid: Object = {"namespaces": ["default"], "tiers": TIERS}
    with pytest.raises(PolicyError) as caught:
        parse_policy({"metadata": {"name": "p"}, "spec": {**valid, **spec}})
    assert field in str(caught.value)


def test_max_wait_is_a_duration() -> None:
    assert policy(maxWait="1h30m").max_wait == 5400


# -- the pod -------------------------------------------------------------------------------


def test_gate_is_added_once() -> None:
    once = placed_pod.gated(pod())
    assert placed_pod.has_gate(once)
    assert placed_pod.gated(once) == once
    assert placed_pod.gated(pod(nodeName="n")) == pod(nodeName="n")


def test_pod_for_a_remote_selects_its_node() -> None:
    gates = [{"name": "other.example.com/gate"}]
    waiting = placed_pod.gated(pod(schedulingGates=gates, nodeSelector={"a": "b"}))
    done = placed_pod.placed(waiting, choose(pod(), policy(), CHEAP))
    assert done["spec"]["schedulingGates"] == gates
    assert done["spec"]["nodeSelector"] == {"a": "b", "kubernetes.io/hostname": "c"}
    assert done["spec"]["tolerations"][0]["key"] == "cluster-bridge.io/virtual-node"
    assert done["metadata"]["labels"]["cluster-bridge.io/placement"] == "placed"
    assert placed_pod.read_record(done) == ("p", "c")


def test_pod_for_home_excludes_virtual_nodes_in_each_alternative() -> None:
    own: Object = {"key": "k", "operator": "Exists"}
    terms = [{"matchExpressions": [own]}, {"matchFields": []}]
    affinity = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}
        }
    }
    decision = choose(pod(), policy(), home=2000)
    done = placed_pod.placed(placed_pod.gated(pod(affinity=affinity)), decision)
    required = done["spec"]["affinity"]["nodeAffinity"]
    [first, second] = required["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    local = {"key": "cluster-bridge.io/virtual-node", "operator": "DoesNotExist"}
    assert first["matchExpressions"] == [own, local]
    assert second["matchExpressions"] == [local]
    assert "tolerations" not in done["spec"]


def test_released_pod_may_use_every_tier() -> None:
    done = placed_pod.released(placed_pod.gated(pod()), policy(), "waited too long")
    terms = done["spec"]["affinity"]["nodeAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]["nodeSelectorTerms"]
    assert len(terms) == 3
    assert "schedulingGates" not in done["spec"]
    assert placed_pod.read_record(done) is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"policy": 1}', '{"policy": "p"}', None, 3])
def test_annotation_of_others_is_no_record(text: object) -> None:
    meta = {"annotations": {ANNOTATION_PLACEMENT: text}}
    assert placed_pod.read_record({"metadata": meta}) is None
