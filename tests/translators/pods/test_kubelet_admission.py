"""Pods that never fit are rejected with a kubelet's message; others are not."""

from __future__ import annotations

from typing import Any

import pytest

from tests import objects
from translators.object_accessors import Object
from translators.pods import kubelet_admission

#: Two nodes together: 8 CPUs and 4 GiB.
_HAS = kubelet_admission.total_allocatable(
    {"status": {"allocatable": {"cpu": "4", "memory": "2Gi", "example.com/gpu": "1"}}}
    for _ in range(2)
)


def _pod(*requests: dict[str, str], **spec: Any) -> Object:
    pod = objects.pod("a")
    containers = [
        {"name": f"c{number}", "resources": {"requests": request}}
        for number, request in enumerate(requests)
    ]
    pod["spec"] |= {"containers": containers, **spec}
    return pod


@pytest.mark.parametrize(
    "pod",
    [
        _pod({}),
        _pod({"cpu": "8", "memory": "4Gi"}),
        _pod({"cpu": "4"}, {"cpu": "4000m"}),
        _pod({"cpu": "9"}, resources={"requests": {"cpu": "1"}}),
        _pod({"cpu": "many"}),
    ],
)
def test_pod_that_may_fit_is_admitted(pod: Object) -> None:
    assert kubelet_admission.admission_rejection(pod, _HAS) is None


@pytest.mark.parametrize(
    ("pod", "reason", "numbers"),
    [
        (_pod({"cpu": "8001m"}), "OutOfcpu", "cpu, requested: 8001, used: 0, capacity: 8000"),
        (_pod({"cpu": "5"}, {"cpu": "5"}), "OutOfcpu", "cpu, requested: 10000"),
        (_pod({"memory": "5Gi", "cpu": "9"}), "OutOfcpu", "requested: 9000"),
        (_pod({"memory": "5Gi"}), "OutOfmemory", "requested: 5368709120, used: 0"),
        (_pod({"example.com/gpu": "3"}), "OutOfexample.com/gpu", "requested: 3, used: 0"),
        (_pod({"example.com/fpga": "1"}), "OutOfexample.com/fpga", "capacity: 0"),
        (_pod({}, resources={"requests": {"cpu": "99"}}), "OutOfcpu", "requested: 99000"),
    ],
)
def test_pod_that_never_fits_is_rejected(pod: Object, reason: str, numbers: str) -> None:
    found = kubelet_admission.admission_rejection(pod, _HAS)
    assert found is not None
    assert found[0] == reason
    assert numbers in found[1]
    assert found[1].startswith("Pod was rejected: Node didn't have enough resource: ")


def test_nothing_is_rejected_without_known_nodes() -> None:
    assert (
        kubelet_admission.admission_rejection(
            _pod({"cpu": "99"}), kubelet_admission.total_allocatable([])
        )
        is None
    )


_NODE = {"metadata": {"name": "burst", "labels": {"zone": "a"}}}


def _affine(**term: Any) -> dict[str, Any]:
    required = {"nodeSelectorTerms": [term]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


@pytest.mark.parametrize(
    "spec",
    [
        {"nodeSelector": {"zone": "b"}},
        {"affinity": _affine(matchExpressions=[{"key": "gpu", "operator": "Exists"}])},
        {
            "affinity": _affine(
                matchFields=[{"key": "metadata.name", "operator": "In", "values": ["other"]}]
            )
        },
    ],
)
def test_pod_that_selects_other_nodes_is_rejected_as_by_a_kubelet(spec: dict[str, Any]) -> None:
    found = kubelet_admission.admission_rejection(_pod({}, **spec), _HAS, _NODE)
    assert found is not None
    reason, message = found
    assert reason == "NodeAffinity"
    assert message.startswith("Pod was rejected: Predicate NodeAffinity failed: ")


def test_pod_that_selects_the_node_is_admitted() -> None:
    affinity = _affine(
        matchFields=[{"key": "metadata.name", "operator": "In", "values": ["burst"]}]
    )
    pod = _pod({}, nodeSelector={"zone": "a"}, affinity=affinity)
    assert kubelet_admission.admission_rejection(pod, _HAS, _NODE) is None


def test_resources_are_compared_first() -> None:
    found = kubelet_admission.admission_rejection(
        _pod({"cpu": "99"}, nodeSelector={"zone": "b"}), _HAS, _NODE
    )
    assert found is not None
    assert found[0] == "OutOfcpu"
