"""Admission patches for pods of offloaded namespaces."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from translators.object_accessors import Object
from translators.offload_admission_patch import (
    POLICIES,
    OffloadPolicy,
    admission_patch,
    policy_of,
    selector_of,
)

VIRTUAL = "cluster-bridge.io/virtual-node"
EXISTS: Object = {"key": VIRTUAL, "operator": "Exists"}
ABSENT: Object = {"key": VIRTUAL, "operator": "DoesNotExist"}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
SELECTOR = {"tier": "burst", "zone": "b"}
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


def offloaded(
    spec: Object, policy: OffloadPolicy, selector: dict[str, str] | None = None
) -> Object:
    """The spec of a new pod."""
    pod = {"spec": spec}
    found: Object = applied(pod, admission_patch(pod, policy, selector or {}))["spec"]
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


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("selector", [{}, SELECTOR], ids=["all", "some"])
@pytest.mark.parametrize("spec", SPECS, ids=range(len(SPECS)))
def test_patch_is_idempotent(policy: OffloadPolicy, selector: dict[str, str], spec: Object) -> None:
    changed = offloaded(spec, policy, selector)
    assert admission_patch({"spec": changed}, policy, selector) == []


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("spec", SPECS, ids=range(len(SPECS)))
def test_other_fields_are_unchanged(policy: OffloadPolicy, spec: Object) -> None:
    given = {**copy.deepcopy(spec), "containers": [{"name": "a"}], "new": {"field": 1}}
    before = copy.deepcopy(given)
    changed = offloaded(given, policy, SELECTOR)
    assert given == before
    assert changed["new"] == {"field": 1}
    assert changed["containers"] == [{"name": "a"}]
    kept = (spec.get("affinity") or {}).get("podAffinity")
    assert changed["affinity"].get("podAffinity") == kept


@pytest.mark.parametrize("policy", POLICIES)
def test_exempt_pods_are_unchanged(policy: OffloadPolicy) -> None:
    owner = {"kind": "DaemonSet", "name": "log", "controller": True}
    assert admission_patch({"metadata": {"ownerReferences": [owner]}, "spec": {}}, policy, {}) == []
    assert admission_patch({"spec": {"nodeName": "a"}}, policy, {}) == []
    other = {**owner, "kind": "ReplicaSet"}
    assert admission_patch({"metadata": {"ownerReferences": [other]}, "spec": {}}, policy, {})


def test_policy_of_a_namespace() -> None:
    def namespace(label: str, text: str = "") -> Object:
        annotations = {"cluster-bridge.io/offload-node-selector": text}
        labels = {"cluster-bridge.io/offload": label}
        return {"metadata": {"labels": labels, "annotations": annotations}}

    assert policy_of(namespace("remote-only")) == "remote-only"
    assert policy_of(namespace("of another version")) is None
    assert policy_of({"metadata": {}}) is None
    assert selector_of(namespace("burst", "a=1,b=")) == {"a": "1", "b": ""}
    assert selector_of(namespace("burst", "nonsense")) == {}
    assert selector_of({}) == {}


def test_pod_of_a_placement_policy_is_limited_too() -> None:
    """In whichever order admission runs."""
    pod = {"metadata": {"labels": {"cluster-bridge.io/placement": "pending"}}, "spec": {}}
    changed = applied(pod, admission_patch(pod, "remote-only", {}))
    assert changed["spec"]["affinity"]["nodeAffinity"] == required([EXISTS])


def test_oversized_node_affinity_is_exempt() -> None:
    small: Object = {
        "spec": {"affinity": {"nodeAffinity": required(*([EXISTS] for _ in range(10)))}}
    }
    large: Object = {
        "spec": {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{}] * 30_000}}}}
    }
    for policy in POLICIES:
        assert admission_patch(small, policy, SELECTOR)
        assert not admission_patch(large, policy, SELECTOR)
        assert not admission_patch(small, policy, {str(it): "" for it in range(2_000)})
