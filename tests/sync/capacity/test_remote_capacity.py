"""The offered capacity: after events in any order it equals a recount."""

from __future__ import annotations

import random
import tracemalloc
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sync.capacity.remote_capacity import (
    CapacityAggregator,
    RemoteCapacity,
    slim_namespace,
    slim_pod,
    usage,
)
from tests.sync.engine_harness import IDENTITY
from translators.capacity import pod_requests
from translators.capacity.node_capacity import NO_LIMITS, OfferLimits
from translators.object_accessors import Object
from translators.ownership_labels import (
    ANNOTATION_ACCEPTS,
    ANNOTATION_HOME_NAMESPACE,
    LABEL_HOME,
    LABEL_NODE,
    owner_labels,
)

_OURS = owner_labels(IDENTITY)
_NEIGHBOUR = {**_OURS, LABEL_NODE: "another"}


def _node(name: str = "w", has: dict[str, str] | None = None, *, ready: bool = True) -> Object:
    has = {"cpu": "4", "memory": "8Gi", "pods": "10", **(has or {})}
    return {
        "metadata": {"name": name},
        "status": {
            "capacity": has,
            "allocatable": has,
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
        },
    }


def _pod(
    name: str = "p",
    *,
    node: str = "w",
    namespace: str = "",
    labels: dict[str, str] | None = None,
    phase: str = "Running",
    **requests: str,
) -> Object:
    """A pod; with the bridge's labels its namespace defaults to the one of its home namespace."""
    container = {"name": "main", "resources": {"requests": requests}}
    namespace = namespace or ("ours-h" if labels == _OURS else "theirs")
    home = {ANNOTATION_HOME_NAMESPACE: namespace.removesuffix("-h")} if labels else {}
    meta: Object = {"name": name, "namespace": namespace, "uid": f"{namespace}/{name}"}
    return {
        "metadata": {**meta, "resourceVersion": "1", "labels": labels or {}, "annotations": home},
        "spec": {"containers": [container], **({"nodeName": node} if node else {})},
        "status": {"phase": phase},
    }


def _namespace(name: str, *, accepts: str = "") -> Object:
    annotations = {ANNOTATION_ACCEPTS: accepts} if accepts else {}
    labels = {} if accepts else {LABEL_HOME: IDENTITY.home_id}
    meta: Object = {"name": name, "uid": name, "resourceVersion": "1"}
    return slim_namespace({"metadata": {**meta, "labels": labels, "annotations": annotations}})


def _quota(namespace: str, *, used: dict[str, str] | None = None, **hard: str) -> Object:
    meta = {"name": "q", "namespace": namespace}
    return {"metadata": meta, "spec": {"hard": hard}, "status": {"used": used or {}}}


def _offer(
    *nodes: Object, pods: list[Object] | None = None, limits: OfferLimits = NO_LIMITS
) -> CapacityAggregator:
    offer = CapacityAggregator(IDENTITY, limits)
    for node in nodes or [_node()]:
        offer.node_changed(None, node)
    for pod in pods or []:
        offer.pod_changed(None, pod)
    return offer


def _allocatable(offer: CapacityAggregator) -> dict[str, str]:
    return offer.current().capacity.allocatable


@pytest.mark.parametrize(
    ("pod", "cpu", "pods"),
    [
        (_pod(cpu="1"), "3", "9"),
        (_pod(cpu="1", labels=_NEIGHBOUR), "3", "9"),
        (_pod(cpu="1", labels=_OURS), "4", "10"),
        # The bridge's labels in a namespace to which no home namespace is mapped.
        (_pod(cpu="1", labels=_OURS, namespace="theirs"), "3", "9"),
        (_pod(cpu="1", node=""), "4", "10"),
        (_pod(cpu="1", node="elsewhere"), "4", "10"),
        (_pod(cpu="1", phase="Succeeded"), "4", "10"),
        (_pod(cpu="1", phase="Failed"), "4", "10"),
        (_pod(cpu="1", phase="Pending"), "3", "9"),
        (_pod(cpu="9"), "0", "9"),
        (slim_pod(_pod(cpu="1"), IDENTITY), "3", "9"),
    ],
    ids=[
        "an unmanaged pod",
        "one of another virtual node of this home",
        "a remote pod of the bridge, which home subtracts",
        "one with copied labels",
        "one without a node",
        "one on a node that does not count",
        "one that succeeded",
        "one that failed",
        "one that starts",
        "more than the node has",
        "as the informer keeps it",
    ],
)
def test_usage_of_a_pod(pod: Object, cpu: str, pods: str) -> None:
    found = _allocatable(_offer(pods=[pod]))
    assert (found["cpu"], found["pods"]) == (cpu, pods)


def test_overcommitted_node_takes_nothing_from_another() -> None:
    found = _offer(_node("w"), _node("x"), pods=[_pod(cpu="9")]).current()
    assert found.capacity.allocatable["cpu"] == "4"
    assert found.capacity.capacity["cpu"] == "8"


def test_pods_of_a_node_that_is_not_known_yet_are_counted_when_it_is() -> None:
    offer = _offer(_node("w"), pods=[_pod(node="late", cpu="1")])
    offer.node_changed(None, _node("late"))
    assert _allocatable(offer)["cpu"] == "7"
    offer.node_changed(_node("late"), None)
    assert _allocatable(offer)["cpu"] == "4"
    offer.node_changed(None, _node("late"))
    assert _allocatable(offer)["cpu"] == "7"


def test_counted_amount_is_subtracted_independent_of_the_last_event() -> None:
    offer = _offer(pods=[_pod(cpu="1")])
    offer.pod_changed(_pod(cpu="3", phase="Succeeded"), None)
    assert _allocatable(offer)["cpu"] == "4"
    offer.pod_changed(_pod(cpu="1"), None)
    assert _allocatable(offer)["cpu"] == "4"


@pytest.mark.parametrize("added_first", [True, False])
@pytest.mark.parametrize("removes_labels", [True, False])
def test_pod_whose_labels_change_counts_until_it_is_deleted(
    added_first: bool, removes_labels: bool
) -> None:
    full = _pod(cpu="1", namespace="ours-h", labels=_OURS)
    slim = slim_pod(_pod(cpu="1", namespace="ours-h"), IDENTITY)
    previous, current = (full, slim) if removes_labels else (slim, full)
    changes = [(None, current), (previous, None)]
    offer = _offer(pods=[previous])
    counted = _offer(pods=[current]).current()
    for old, new in changes if added_first else reversed(changes):
        offer.pod_changed(old, new)
        if added_first or new is not None:
            assert offer.current().largest == counted.largest == "cpu=3,memory=8Gi"
    assert offer.current() == counted
    offer.pod_changed(current, None)
    assert offer.current() == _offer().current()


def test_resource_is_removed_with_the_last_node_that_has_it() -> None:
    gpu = {"example.com/gpu": "2", "hugepages-2Mi": "0"}
    offer = _offer(_node("w"), _node("x", gpu))
    assert _allocatable(offer).items() >= gpu.items()
    offer.node_changed(_node("x", gpu), _node("x"))
    assert not _allocatable(offer).keys() & gpu.keys()


def test_limits_are_obeyed() -> None:
    limits = OfferLimits({"cpu": 1000}, Fraction(1, 2), {"memory": 2**30})
    found = _offer(pods=[_pod(cpu="1")], limits=limits).current()
    assert found.capacity.allocatable == {"cpu": "1", "memory": "1Gi", "pods": "4"}


def test_largest_pod_counts_usage_of_own_pods() -> None:
    ours = _pod(cpu="3", memory="1Gi", labels=_OURS)
    offer = _offer(_node("w"), _node("x", {"cpu": "2"}), pods=[ours])
    assert offer.current().largest == "cpu=2,memory=8Gi"
    offer.pod_changed(ours, None)
    assert offer.current().largest == "cpu=4,memory=8Gi"


def test_largest_pod_counts_a_node_that_does_not_exist_yet() -> None:
    limits = OfferLimits(elastic={"cpu": 32_000, "memory": 2**36})
    assert _offer(limits=limits).current().largest == "cpu=32,memory=64Gi"


def test_a_quota_bounds_the_node_while_all_our_pods_are_under_one() -> None:
    offer = _offer()
    offer.quota_changed(None, _quota("a-h", cpu="2"))
    assert _allocatable(offer)["cpu"] == "4", "an unmanaged namespace"
    assert offer.current().exhausted is None
    offer.namespace_changed(None, _namespace("a-h"))
    assert _allocatable(offer)["cpu"] == "2"
    assert offer.current().exhausted == ()
    foreign = _pod("f", node="", namespace="a-h", cpu="500m")
    offer.pod_changed(None, foreign)
    assert _allocatable(offer)["cpu"] == "1500m", "it needs no node to use the quota"
    elsewhere = _pod(namespace="b-h", labels=_OURS)
    offer.pod_changed(None, elsewhere)
    assert _allocatable(offer)["cpu"] == "4"
    offer.pod_changed(elsewhere, None)
    offer.namespace_changed(_namespace("a-h"), None)
    assert _allocatable(offer)["cpu"] == "4"


def test_quota_of_a_granted_namespace_counts_before_there_are_pods() -> None:
    offer = _offer()
    offer.namespace_changed(None, _namespace("shop", accepts="h"))
    offer.namespace_changed(None, _namespace("other", accepts="another-home"))
    offer.quota_changed(None, _quota("shop", pods="3"))
    offer.quota_changed(None, _quota("other", cpu="1"))
    assert (_allocatable(offer)["pods"], _allocatable(offer)["cpu"]) == ("3", "4")


def test_exhausted_quota_is_named() -> None:
    offer = _offer()
    offer.namespace_changed(None, _namespace("a-h"))
    before = _quota("a-h", cpu="2", pods="9", used={"cpu": "1"})
    after = _quota("a-h", cpu="2", pods="9", used={"cpu": "2"})
    offer.quota_changed(None, before)
    offer.quota_changed(before, after)
    assert offer.current().exhausted == ("namespace a-h, quota q: cpu",)
    offer.quota_changed(after, None)
    assert offer.current().exhausted is None


def test_handlers_are_called_only_if_the_capacity_changes() -> None:
    node, pod = _node(), _pod(cpu="1")
    offer = _offer(node, pods=[pod])
    changes = []
    offer.on_change(lambda: changes.append(1))
    beat = {**node, "status": {**node["status"], "images": []}}
    offer.node_changed(node, beat)
    offer.pod_changed(pod, {**pod, "status": {"phase": "Running", "podIP": "10.0.0.1"}})
    offer.namespace_changed(None, _namespace("a-h"))
    offer.quota_changed(None, _quota("theirs", cpu="1"))
    assert changes == []
    offer.pod_changed(pod, _pod(cpu="2"))
    offer.quota_changed(None, _quota("a-h", cpu="1"))
    offer.node_changed(node, _node(ready=False))
    assert len(changes) == 3


_requests = st.fixed_dictionaries(
    {},
    optional={
        "cpu": st.sampled_from(["100m", "1", "3"]),
        "memory": st.sampled_from(["64Mi", "1G", "9Gi"]),
        "example.com/gpu": st.just("1"),
    },
)
_pods = st.builds(
    lambda name, requests, **more: _pod(name, **more, **requests),
    st.sampled_from(["p", "q", "r"]),
    _requests,
    node=st.sampled_from(["", "w", "x"]),
    namespace=st.sampled_from(["a-h", "b-h", "theirs"]),
    labels=st.sampled_from([{}, _OURS, _NEIGHBOUR]),
    phase=st.sampled_from(["Pending", "Running", "Succeeded"]),
)
_nodes = st.builds(
    lambda name, ready, has: _node(name, has, ready=ready),
    st.sampled_from(["w", "x"]),
    st.booleans(),
    _requests,
)
_namespaces = st.sampled_from(
    [_namespace("a-h"), _namespace("b-h"), _namespace("b-h", accepts="z")]
)
_quotas = st.builds(
    lambda namespace, hard: _quota(namespace, **hard), st.sampled_from(["a-h", "b-h"]), _requests
)
_events = st.one_of(
    *(
        st.tuples(st.just(kind), objects, st.booleans())
        for kind, objects in (
            ("pod", _pods),
            ("node", _nodes),
            ("namespace", _namespaces),
            ("quota", _quotas),
        )
    )
)


def _key(kind: str, obj: Object) -> tuple[str, str, str]:
    return kind, obj["metadata"].get("namespace", ""), obj["metadata"]["name"]


@given(st.lists(_events, max_size=30), st.integers(0, 2**16))
def test_sums_after_random_events_equal_a_recount(
    events: list[tuple[str, Object, bool]], seed: int
) -> None:
    limits = OfferLimits({"cpu": 500}, Fraction(9, 10), {"pods": 15})
    offer = CapacityAggregator(IDENTITY, limits)
    known: dict[tuple[str, str, str], Object] = {}
    for kind, obj, is_gone in events:
        key = _key(kind, obj)
        old = known.pop(key, None)
        if not is_gone:
            known[key] = obj
        elif old is None:
            continue
        _tell(offer, kind, old, None if is_gone else obj)
    if seed % 2:
        offer.current()
    assert offer.current() == _from_scratch(known, limits, random.Random(seed))
    for amounts in (offer.current().capacity.allocatable, offer.current().capacity.capacity):
        assert all(amount >= 0 for amount in pod_requests.parse_resource_list(amounts).values())


def _from_scratch(
    known: dict[tuple[str, str, str], Object], limits: OfferLimits, rng: random.Random
) -> RemoteCapacity:
    """The capacity computed from the current objects, added in another order."""
    offer = CapacityAggregator(IDENTITY, limits)
    keys = sorted(known)
    rng.shuffle(keys)
    for key in keys:
        _tell(offer, key[0], None, known[key])
    return offer.current()


def _tell(offer: CapacityAggregator, kind: str, old: Object | None, new: Object | None) -> None:
    handlers: dict[str, Any] = {
        "pod": offer.pod_changed,
        "node": offer.node_changed,
        "namespace": offer.namespace_changed,
        "quota": offer.quota_changed,
    }
    handlers[kind](old, new)


@given(st.lists(_pods, max_size=8), st.lists(_nodes, max_size=3))
def test_capacity_is_the_sum_over_the_nodes(pods: list[Object], nodes: list[Object]) -> None:
    """Compares with a simple sum, without quotas and limits."""
    offer = CapacityAggregator(IDENTITY, NO_LIMITS)
    theirs = {_key("pod", pod): pod for pod in pods}
    there = {node["metadata"]["name"]: node for node in nodes}
    for node in there.values():
        offer.node_changed(None, node)
    for pod in theirs.values():
        offer.pod_changed(None, pod)
    expected: dict[str, int] = {}
    for name, node in there.items():
        if node["status"]["conditions"][0]["status"] != "True":
            continue
        for resource, has in pod_requests.parse_resource_list(
            node["status"]["allocatable"]
        ).items():
            used = sum(
                pod_requests.requests_of(pod).get(resource, 0)
                for pod in theirs.values()
                if pod["spec"].get("nodeName") == name
                and pod["status"]["phase"] != "Succeeded"
                and not (pod["metadata"]["labels"] == _OURS and _is_mapped(pod))
            )
            expected[resource] = expected.get(resource, 0) + max(0, has - used)
    assert pod_requests.parse_resource_list(offer.current().capacity.allocatable) == expected


def _is_mapped(pod: Object) -> bool:
    return str(pod["metadata"]["namespace"]).endswith("-h")


def test_ten_thousand_unmanaged_pods_cost_few_megabytes() -> None:
    offer = _offer()
    tracemalloc.start()
    try:
        kept = [
            slim_pod(_pod(f"pod-{number}", node=f"n-{number % 100}", cpu="100m"), IDENTITY)
            for number in range(10_000)
        ]
        for pod in kept:
            offer.pod_changed(None, pod)
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size < 12 * 2**20


def _with_requests(pod: Object, requests: dict[str, str]) -> Object:
    return {**pod, "spec": {"containers": [{"resources": {"requests": requests}}]}}


@pytest.mark.parametrize(
    ("requests", "shared"),
    [
        ({"cpu": "1", "memory": "1Gi", "x.io/y": "1"}, True),
        ({"x" * 317: "1"}, False),  # and ``pods``
        ({f"x.io/{number}": "1" for number in range(100)}, False),
    ],
    ids=["usual", "a long name", "many names"],
)
def test_only_requests_of_usual_size_are_kept_for_other_pods(
    requests: dict[str, str], shared: bool
) -> None:
    first, second = (usage(_with_requests(_pod(name), requests), IDENTITY) for name in "ab")
    assert first is not None
    assert second is not None
    assert first.amounts == second.amounts
    assert (first.amounts is second.amounts) == shared


def _resized(pod: Object, **requests: str) -> Object:
    status = {"name": "main", "resources": {"requests": requests}, "allocatedResources": requests}
    return {**pod, "status": {**pod["status"], "containerStatuses": [status]}}


def test_usage_is_recomputed_only_if_its_fields_change(monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[str] = []
    requests_of = pod_requests.requests_of

    def noted(pod: Object) -> pod_requests.Amounts:
        requests.append(pod["metadata"]["name"])
        return requests_of(pod)

    monkeypatch.setattr(pod_requests, "requests_of", noted)
    first = _pod(cpu="1", phase="Pending")
    first["status"]["containerStatuses"] = [{"name": "main", "ready": False}]
    offer = _offer(pods=[first])
    status = {"phase": "Running", "conditions": [{"type": "Ready"}]}
    ready = {**first, "status": {**status, "containerStatuses": [{"name": "main", "ready": True}]}}
    offer.pod_changed(first, ready)
    assert requests == ["p"]
    grown = _resized(ready, cpu="2")
    offer.pod_changed(ready, grown)
    assert _allocatable(offer)["cpu"] == "2"
    stuck = {**grown, "spec": _pod(cpu="3")["spec"]}
    offer.pod_changed(grown, stuck)
    assert _allocatable(offer)["cpu"] == "1"
    pending = {"type": "PodResizePending", "reason": "Infeasible"}
    infeasible = {**stuck, "status": {**stuck["status"], "conditions": [pending]}}
    offer.pod_changed(stuck, infeasible)
    assert _allocatable(offer)["cpu"] == "2"
    assert requests == ["p"] * 4
    offer.pod_changed(infeasible, {**infeasible, "status": {"phase": "Failed"}})
    assert _allocatable(offer)["cpu"] == "4"


def _unknown(**caps: str) -> CapacityAggregator:
    limits = OfferLimits(caps=pod_requests.parse_resource_list(caps))
    offer = CapacityAggregator(IDENTITY, limits, nodes_unknown_in=["ours-h", "also-h"])
    for name in ("ours-h", "also-h", "theirs"):
        offer.namespace_changed(None, _namespace(name, accepts="*"))
    return offer


def test_declared_capacity_without_unmanaged_pods_of_prepared_namespaces() -> None:
    offer = _unknown(cpu="8", memory="8Gi", pods="10")
    for pod in (
        _pod("a", namespace="also-h", cpu="1"),
        _pod("b", namespace="theirs", cpu="2"),
        _pod("c", labels=_OURS, cpu="3"),
    ):
        offer.pod_changed(None, pod)
    found = offer.current()
    assert found.capacity.capacity == {"cpu": "8", "memory": "8Gi", "pods": "10"}
    assert found.capacity.allocatable == {"cpu": "7", "memory": "8Gi", "pods": "9"}
    assert found.capacity.nodes is None
    assert found.largest == "cpu=4,memory=8Gi"


def test_quotas_of_prepared_namespaces_declare_what_options_do_not() -> None:
    offer = _unknown(cpu="8", memory="8Gi")
    for namespace in ("ours-h", "also-h", "theirs"):
        offer.quota_changed(None, _quota(namespace, pods="5"))
    assert _allocatable(offer)["pods"] == "10"
    offer.pod_changed(None, _pod("a", namespace="also-h"))
    assert _allocatable(offer)["pods"] == "9"
    offer.quota_changed(_quota("also-h", pods="5"), None)
    assert _allocatable(offer)["pods"] == "5"


def test_reserve_and_share_apply_to_the_declared_capacity() -> None:
    limits = OfferLimits(
        reserve=pod_requests.parse_resource_list({"cpu": "2"}),
        share=Fraction(1, 2),
        caps=pod_requests.parse_resource_list({"cpu": "8"}),
    )
    offer = CapacityAggregator(IDENTITY, limits, nodes_unknown_in=["ours-h"])
    assert _allocatable(offer) == {"cpu": "3"}
