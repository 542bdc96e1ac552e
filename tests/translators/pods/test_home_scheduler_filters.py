"""Scheduler predicates for one pod and one node."""

from __future__ import annotations

from typing import Any

import pytest

from translators.object_accessors import Object
from translators.pods.home_scheduler_filters import predicate_failures, tolerates

_TAINT = {"key": "cluster-bridge.io/virtual-node", "value": "true", "effect": "NoSchedule"}


def _node(**spec: Any) -> Object:
    return {
        "metadata": {"name": "burst", "labels": {"a": "1", "size": "4"}},
        "spec": spec,
        "status": {"allocatable": {"cpu": "2", "memory": "1Gi", "pods": "3"}},
    }


def _pod(cpu: str = "1", uid: str = "1", **spec: Any) -> Object:
    container = {"name": "main", "resources": {"requests": {"cpu": cpu}}}
    return {"metadata": {"uid": uid}, "spec": {"containers": [container], **spec}}


def _fields(pod: Object, node: Object, *bound: Object) -> list[str]:
    return [it.field for it in predicate_failures(pod, node, bound)]


def _requires(*expressions: Object) -> Object:
    term = {"matchExpressions": list(expressions)}
    required = {"nodeSelectorTerms": [term]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


def test_pod_without_requirements_fits() -> None:
    assert predicate_failures(_pod(), _node()) == []


def test_node_selector_is_compared_with_labels() -> None:
    found = predicate_failures(_pod(nodeSelector={"a": "1", "b": "2", "size": "5"}), _node())
    assert [(it.field, it.message) for it in found] == [
        ("spec.nodeSelector[b]", "requires '2'; the node has no such label"),
        ("spec.nodeSelector[size]", "requires '5'; the node has '4'"),
    ]


@pytest.mark.parametrize(
    ("operator", "key", "values", "holds"),
    [
        ("In", "a", ["0", "1"], True),
        ("In", "a", ["0"], False),
        ("NotIn", "a", ["1"], False),
        ("NotIn", "none", ["1"], True),
        ("Exists", "a", None, True),
        ("Exists", "none", None, False),
        ("DoesNotExist", "a", None, False),
        ("DoesNotExist", "none", None, True),
        ("Gt", "size", ["3"], True),
        ("Gt", "size", ["4"], False),
        ("Lt", "size", ["5"], True),
        ("Lt", "size", ["4"], False),
        ("Gt", "none", ["1"], False),
        ("Unknown", "a", None, False),
    ],
)
def test_node_affinity_operators(
    operator: str, key: str, values: list[str] | None, holds: bool
) -> None:
    expression: Object = {"key": key, "operator": operator}
    if values is not None:
        expression["values"] = values
    assert (_fields(_pod(affinity=_requires(expression)), _node()) == []) == holds


def test_terms_are_alternatives_and_an_empty_term_matches_nothing() -> None:
    affinity = _requires({"key": "none", "operator": "Exists"})
    terms = affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert len(_fields(_pod(affinity=affinity), _node())) == 1
    terms["nodeSelectorTerms"].append({})
    assert len(_fields(_pod(affinity=affinity), _node())) == 1
    fields = [{"key": "metadata.name", "operator": "In", "values": ["burst"]}]
    terms["nodeSelectorTerms"].append({"matchFields": fields})
    assert _fields(_pod(affinity=affinity), _node()) == []


def test_prefer_no_schedule_taints_are_ignored() -> None:
    node = _node(taints=[_TAINT, {"key": "soft", "effect": "PreferNoSchedule"}])
    assert _fields(_pod(), node) == ["spec.tolerations"]
    toleration = {"key": _TAINT["key"], "operator": "Exists"}
    assert _fields(_pod(tolerations=[toleration]), node) == []


def test_cordon_is_reported_once() -> None:
    taint = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
    assert _fields(_pod(), _node(unschedulable=True, taints=[taint])) == ["node.spec.unschedulable"]


@pytest.mark.parametrize(
    ("toleration", "holds"),
    [
        ({"operator": "Exists"}, True),
        ({"key": _TAINT["key"], "operator": "Exists"}, True),
        ({"key": _TAINT["key"], "value": "true"}, True),
        ({"key": _TAINT["key"], "operator": "Equal", "value": "false"}, False),
        ({"key": _TAINT["key"], "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "other", "operator": "Exists"}, False),
    ],
)
def test_toleration_matches_taint(toleration: Object, holds: bool) -> None:
    assert tolerates(toleration, _TAINT) == holds


def test_requests_of_bound_pods_are_subtracted() -> None:
    ended = _pod("2", "2") | {"status": {"phase": "Succeeded"}}
    assert _fields(_pod(), _node(), _pod("1", "3"), ended, _pod("2", "1")) == []
    found = predicate_failures(
        _pod(), _node(), [_pod("1500m", "3"), _pod("0", "4"), _pod("0", "5")]
    )
    assert [(it.field, it.message) for it in found] == [
        ("resources.requests[cpu]", "requests 1; the node has 500m left of 2"),
        ("resources.requests[pods]", "requests 1; the node has 0 left of 3"),
    ]


def test_scheduling_gate_prevents_scheduling() -> None:
    gated = _pod(schedulingGates=[{"name": "example.com/wait"}])
    assert _fields(gated, _node()) == ["spec.schedulingGates[example.com/wait]"]


@pytest.mark.parametrize(
    ("ready", "messages"),
    [
        ({"status": "True", "reason": "KubeletReady"}, []),
        ({"status": "True", "reason": "NoSchedulableNodes", "message": "all 2"}, ["all 2"]),
        (
            {"status": "False", "reason": "RemoteUnreachable", "message": "timeout"},
            ["the node is not Ready: timeout"],
        ),
        ({"status": "Unknown"}, ["the node is not Ready: no bridge serves it"]),
    ],
)
def test_node_that_takes_no_pods_names_the_cause(ready: Object, messages: list[str]) -> None:
    node = _node()
    node["status"]["conditions"] = [{"type": "Ready", **ready}]
    found = predicate_failures(_pod(), node)
    assert [(it.field, it.message) for it in found] == [("node.status", it) for it in messages]
