"""Admission patches for pods of offloaded namespaces."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from translators.object_accessors import Object
from translators.offload_admission_patch import (
    POLICIES,
    Offloading,
    OffloadPolicy,
    admission_patch,
    offloading_of,
)

VIRTUAL = "cluster-bridge.io/virtual-node"
EXISTS: Object = {"key": VIRTUAL, "operator": "Exists"}
ABSENT: Object = {"key": VIRTUAL, "operator": "DoesNotExist"}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
SELECTOR = {"tier": "burst", "zone": "b"}
TIERS = ({"price": "low"}, {"price": "high", "zone": "a"})
CHEAP = [{"key": "price", "operator": "In", "values": ["low"]}]
DEAR = [
    {"key": "price", "operator": "In", "values": ["high"]},
    {"key": "zone", "operator": "In", "values": ["a"]},
]
CHOSEN = [{"key": k, "operator": "In", "values": [v]} for k, v in SELECTOR.items()]


def applied(pod: Object, operations: list[Object]) -> Object:
    """The pod after a JSON patch of "add" and "remove" in maps."""
    pod = copy.deepcopy(pod)
    for operation in operations:
        *way, last = (
            it.replace("~1", "/").replace("~0", "~") for it in operation["path"].split("/")[1:]
        )
        at: Any = pod
        for step in way:
            at = at[step]
        if operation["op"] == "remove":
            del at[last]
        else:
            at[last] = operation["value"]
    return pod


def offloaded(spec: Object, policy: OffloadPolicy, nodes: dict[str, str] | None = None) -> Object:
    """The spec of a new pod."""
    return changed(spec, Offloading(policy, nodes or {}))


def changed(spec: Object, offloading: Offloading) -> Object:
    """The spec of a new pod."""
    pod = {"spec": spec}
    found: Object = applied(pod, admission_patch(pod, offloading))["spec"]
    return found


def required(*terms: list[Object]) -> Object:
    return {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": term} for term in terms]}}


SPECS: list[Object] = [
    {},
    {"tolerations": [{"key": "a", "operator": "Exists"}]},
    {"tolerations": [{**EXISTS, "effect": "NoSchedule"}]},
    {"nodeSelector": {VIRTUAL: "true", "a": "b"}, "tolerations": [EXISTS]},
    {"affinity": {"podAffinity": {"new": 1}}},
    {"affinity": {"nodeAffinity": required([{"key": "a", "operator": "Exists"}], [EXISTS])}},
    {
        "affinity": {
            "nodeAffinity": {
                REQUIRED: {
                    "nodeSelectorTerms": [
                        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": "x"}]}
                    ]
                },
                PREFERRED: [{"weight": 1, "preference": {"matchExpressions": [EXISTS]}}],
            }
        }
    },
]


def test_burst_prefers_other_nodes() -> None:
    assert offloaded({}, "burst") == {
        "tolerations": [EXISTS],
        "affinity": {
            "nodeAffinity": {
                PREFERRED: [{"weight": 100, "preference": {"matchExpressions": [ABSENT]}}]
            }
        },
    }


def test_burst_with_a_selector_allows_only_these_virtual_nodes() -> None:
    own = {"key": "a", "operator": "Exists"}
    spec = offloaded({"affinity": {"nodeAffinity": required([own])}}, "burst", SELECTOR)
    terms = spec["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
    assert [it["matchExpressions"] for it in terms] == [[own, ABSENT], [own, *CHOSEN]]


def test_remote_only_requires_a_virtual_node_in_every_term() -> None:
    own = {"key": "a", "operator": "Exists"}
    spec = offloaded({"affinity": {"nodeAffinity": required([own], [ABSENT])}}, "remote-only")
    assert spec["affinity"]["nodeAffinity"] == required([own, EXISTS], [EXISTS])
    assert spec["tolerations"] == [EXISTS]
    narrowed = offloaded({}, "remote-only", SELECTOR)
    assert narrowed["affinity"]["nodeAffinity"] == required([EXISTS, *CHOSEN])


def test_local_only_removes_selectors_of_virtual_nodes() -> None:
    spec = {
        "nodeSelector": {VIRTUAL: "true", "a": "b"},
        "tolerations": [EXISTS, {"key": "a", "operator": "Exists"}],
        "affinity": {"nodeAffinity": required([EXISTS])},
    }
    assert offloaded(spec, "local-only") == {
        "nodeSelector": {"a": "b"},
        "tolerations": [{"key": "a", "operator": "Exists"}],
        "affinity": {"nodeAffinity": required([ABSENT])},
    }


def preferences(spec: Object) -> list[tuple[int, list[Object]]]:
    terms = spec["affinity"]["nodeAffinity"][PREFERRED]
    return [(term["weight"], term["preference"]["matchExpressions"]) for term in terms]


def test_tiers_are_preferences_in_order_after_home() -> None:
    own = {"weight": 7, "preference": {"matchExpressions": [EXISTS]}}
    spec = {"affinity": {"nodeAffinity": {PREFERRED: [own]}}}
    assert preferences(changed(spec, Offloading("burst", tiers=TIERS))) == [
        (7, [EXISTS]),
        (100, [ABSENT]),
        (67, CHEAP),
        (34, DEAR),
    ]
    remote_only = changed({}, Offloading("remote-only", tiers=TIERS))
    assert preferences(remote_only) == [(100, CHEAP), (50, DEAR)]


def test_only_selected_pods_are_changed() -> None:
    offloading = Offloading("remote-only", pods={"app": "batch", "size": "big"})
    for labels in ({}, {"app": "batch"}, {"app": "batch", "size": "small"}):
        assert admission_patch({"metadata": {"labels": labels}, "spec": {}}, offloading) == []
    labels = {"app": "batch", "size": "big", "more": "x"}
    assert admission_patch({"metadata": {"labels": labels}, "spec": {}}, offloading)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("nodes", [{}, SELECTOR], ids=["all", "some"])
@pytest.mark.parametrize("tiers", [(), TIERS], ids=["no tier", "two tiers"])
@pytest.mark.parametrize("spec", SPECS, ids=range(len(SPECS)))
def test_patch_is_idempotent(
    policy: OffloadPolicy, nodes: dict[str, str], tiers: tuple[dict[str, str], ...], spec: Object
) -> None:
    offloading = Offloading(policy, nodes, tiers)
    assert admission_patch({"spec": changed(spec, offloading)}, offloading) == []


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("spec", SPECS, ids=range(len(SPECS)))
def test_other_fields_are_unchanged(policy: OffloadPolicy, spec: Object) -> None:
    given = {**copy.deepcopy(spec), "containers": [{"name": "a"}], "new": {"field": 1}}
    before = copy.deepcopy(given)
    after = offloaded(given, policy, SELECTOR)
    assert given == before
    assert after["new"] == {"field": 1}
    assert after["containers"] == [{"name": "a"}]
    kept = (spec.get("affinity") or {}).get("podAffinity")
    assert after["affinity"].get("podAffinity") == kept


@pytest.mark.parametrize("policy", POLICIES)
def test_exempt_pods_are_unchanged(policy: OffloadPolicy) -> None:
    owner = {"kind": "DaemonSet", "name": "log", "controller": True}
    offloading = Offloading(policy)
    pod: Object = {"metadata": {"ownerReferences": [owner]}, "spec": {}}
    assert admission_patch(pod, offloading) == []
    assert admission_patch({"spec": {"nodeName": "a"}}, offloading) == []
    pod["metadata"]["ownerReferences"] = [{**owner, "kind": "ReplicaSet"}]
    assert admission_patch(pod, offloading)


def namespace(label: str, **annotations: str) -> Object:
    meta = {f"cluster-bridge.io/offload-{key}": text for key, text in annotations.items()}
    return {"metadata": {"labels": {"cluster-bridge.io/offload": label}, "annotations": meta}}


def test_offloading_of_a_namespace() -> None:
    found = offloading_of(
        namespace(
            "remote-only",
            **{
                "node-selector": "a=1,b=",
                "tiers": "price=low;zone=a,price=high",
                "pod-selector": "c=d",
            },
        )
    )
    assert found == Offloading("remote-only", {"a": "1", "b": ""}, TIERS, {"c": "d"})
    assert found is not None
    assert found.annotations == {
        "cluster-bridge.io/offload-node-selector": "a=1,b=",
        "cluster-bridge.io/offload-tiers": "price=low;price=high,zone=a",
        "cluster-bridge.io/offload-pod-selector": "c=d",
    }
    assert offloading_of(namespace("of another version")) is None
    assert offloading_of({"metadata": {}}) is None
    assert offloading_of({}) is None
    nonsense = namespace("burst", **{"node-selector": "nonsense", "tiers": ";nonsense;"})
    assert offloading_of(nonsense) == Offloading("burst")
    many = ";".join(f"rank={number}" for number in range(1000))
    bounded = offloading_of(namespace("burst", tiers=many))
    assert bounded is not None
    assert [tier["rank"] for tier in bounded.tiers] == [str(number) for number in range(9)]


def test_oversized_node_affinity_is_exempt() -> None:
    small: Object = {
        "spec": {"affinity": {"nodeAffinity": required(*([EXISTS] for _ in range(10)))}}
    }
    large: Object = {
        "spec": {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{}] * 30_000}}}}
    }
    for policy in POLICIES:
        assert admission_patch(small, Offloading(policy, SELECTOR))
        assert not admission_patch(large, Offloading(policy, SELECTOR))
        many = {str(number): "" for number in range(2_000)}
        assert not admission_patch(small, Offloading(policy, many))
