"""An object that passes the check of its shape makes no translator raise, whatever else it has."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sync.capacity.remote_capacity import CapacityAggregator, slim_namespace, slim_pod
from translators.capacity.node_capacity import NO_LIMITS
from translators.mirror import event
from translators.object_accessors import Object, condition_of, controller_of, is_ready
from translators.ownership_labels import Origin, origin_of
from translators.pods import pod_status, references, remote_pod, restart_policy_never, update
from translators.remote_shapes import wrong_part
from translators.translation_options import Policy
from translators.virtual_node_identity import Identity

IDENTITY = Identity(home_id="0123456789abcdef", home_name="berlin", node="burst")
POLICY = Policy(IDENTITY, "10.20.0.5", network="flat")
TIME = "2025-11-03T10:00:00Z"

HOME: Object = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "web", "namespace": "shop", "uid": "home-1", "labels": {"a": "b"}},
    "spec": {
        "nodeName": "burst",
        "containers": [
            {
                "name": "c",
                "image": "busybox:1",
                "resources": {"requests": {"cpu": "1"}},
                "env": [
                    {"name": "A", "value": "1"},
                    {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
                ],
                "envFrom": [{"configMapRef": {"name": "cm"}}],
            }
        ],
        "initContainers": [{"name": "i", "image": "busybox:1", "restartPolicy": "Always"}],
        "volumes": [
            {"name": "v", "secret": {"secretName": "s"}},
            {"name": "p", "projected": {"sources": [{"configMap": {"name": "cm"}}]}},
        ],
        "tolerations": [{"key": "k", "operator": "Exists"}],
        "readinessGates": [{"conditionType": "example.com/gate"}],
        "restartPolicy": "Always",
    },
    "status": {"phase": "Running", "startTime": TIME},
}
STATUS: Object = {
    "phase": "Running",
    "hostIP": "10.0.0.1",
    "hostIPs": [{"ip": "10.0.0.1"}],
    "podIP": "10.1.0.1",
    "podIPs": [{"ip": "10.1.0.1"}],
    "startTime": TIME,
    "observedGeneration": 1,
    "qosClass": "Burstable",
    "conditions": [
        {"type": kind, "status": "True", "lastTransitionTime": TIME, "observedGeneration": 1}
        for kind in ("PodScheduled", "Ready", "DisruptionTarget", "PodResizePending")
    ],
    "containerStatuses": [
        {
            "name": "c",
            "ready": True,
            "restartCount": 0,
            "image": "busybox:1",
            "imageID": "busybox@1",
            "containerID": "c://1",
            "state": {"running": {"startedAt": TIME}},
            "lastState": {"terminated": {"exitCode": 1, "reason": "Error", "finishedAt": TIME}},
            "resources": {"requests": {"cpu": "1"}},
            "allocatedResources": {"cpu": "1"},
        }
    ],
    "initContainerStatuses": [{"name": "i", "state": {"terminated": {"exitCode": 0}}}],
}


def remote() -> Object:
    """The pod in the remote, being deleted."""
    made = remote_pod.translate_pod(HOME, POLICY).pod
    made["metadata"] |= {
        "uid": "remote-1",
        "resourceVersion": "7",
        "generation": 1,
        "deletionTimestamp": TIME,
        "deletionGracePeriodSeconds": 30,
        "ownerReferences": [{"kind": "Job", "name": "j", "uid": "u", "controller": True}],
    }
    made["spec"]["nodeName"] = "worker"
    return {**made, "status": copy.deepcopy(STATUS)}


def read_pod(pod: Object) -> None:
    """Everything that the bridge does with a remote pod."""
    origin_of(pod)
    controller_of(pod)
    references.references(pod)
    restart_policy_never.is_gated(pod)
    pod_status.is_terminal(pod)
    pod_status.is_observed_by_kubelet(HOME, pod)
    for home in (HOME, {**HOME, "status": {**STATUS, "phase": "Running"}}):
        status = pod_status.translate_status(home, pod, POLICY, now=TIME)
        pod_status.translate_status({**home, "status": status}, pod, POLICY, now=TIME)
    update.pod_patches(HOME, pod, POLICY)
    capacity = CapacityAggregator(IDENTITY, NO_LIMITS)
    capacity.pod_changed(None, pod)
    capacity.pod_changed(pod, {**pod, "spec": {}})
    capacity.current()


def read_unmanaged_pod(pod: Object) -> None:
    capacity = CapacityAggregator(IDENTITY, NO_LIMITS)
    capacity.pod_changed(None, slim_pod(pod, IDENTITY))
    capacity.current()


def read_node(node: Object) -> None:
    is_ready(node)
    condition_of(node, "DiskPressure")
    capacity = CapacityAggregator(IDENTITY, NO_LIMITS)
    capacity.node_changed(None, node)
    capacity.current()


def read_quota(quota: Object) -> None:
    capacity = CapacityAggregator(IDENTITY, NO_LIMITS, accepts=lambda _: True)
    capacity.node_changed(None, NODE)
    capacity.namespace_changed(None, {"metadata": {"name": "shop-berlin"}})
    capacity.quota_changed(None, quota)
    capacity.current()


def read_event(it: Object) -> None:
    packed = event.compact(it)
    event.involved_uid(it)
    origin = origin_of(remote())
    assert origin is not None
    made = event.translate_event(packed, origin, IDENTITY)
    event.progress_fields(made)


def read_namespace(it: Object) -> None:
    slim_namespace(it)
    CapacityAggregator(IDENTITY, NO_LIMITS).namespace_changed(None, it)


NODE: Object = {
    "metadata": {"name": "worker", "uid": "n", "resourceVersion": "1", "labels": {"a": "b"}},
    "spec": {"taints": [{"key": "a", "effect": "NoSchedule"}], "podCIDRs": ["10.1.0.0/24"]},
    "status": {
        "capacity": {"cpu": "4", "memory": "8Gi", "pods": "110"},
        "allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110"},
        "conditions": [{"type": "Ready", "status": "True"}],
    },
}
EVENT: Object = {
    "metadata": {"name": "e", "namespace": "shop-berlin", "uid": "e", "resourceVersion": "1"},
    "involvedObject": {"kind": "Pod", "namespace": "shop-berlin", "name": "web", "uid": "remote-1"},
    "related": {"kind": "Pod", "namespace": "shop-berlin", "name": "other", "uid": "remote-2"},
    "reason": "Started",
    "message": "shop-berlin/web started",
    "count": 1,
    "eventTime": TIME,
    "series": {"count": 2, "lastObservedTime": TIME},
    "source": {"component": "kubelet", "host": "worker"},
}
QUOTA: Object = {
    "metadata": {"name": "q", "namespace": "shop-berlin", "uid": "q", "resourceVersion": "1"},
    "spec": {"hard": {"requests.cpu": "1", "pods": "3"}},
    "status": {"hard": {"requests.cpu": "1"}, "used": {"requests.cpu": "1"}},
}
NAMESPACE: Object = {
    "metadata": {
        "name": "shop-berlin",
        "uid": "n",
        "resourceVersion": "1",
        "labels": {"a": "b"},
        "annotations": {"cluster-bridge.io/accepts-home": "x"},
    }
}
CASES: dict[str, tuple[str, Object, Callable[[Object], None]]] = {
    "pod": ("Pod", remote(), read_pod),
    "unmanaged-pod": ("PodUsage", remote(), read_unmanaged_pod),
    "node": ("Node", NODE, read_node),
    "quota": ("ResourceQuota", QUOTA, read_quota),
    "event": ("Event", EVENT, read_event),
    "namespace": ("Namespace", NAMESPACE, read_namespace),
}
#: Values that replace parts of an object.
WRONG: list[Any] = [
    None,
    True,
    0,
    -1,
    2**62,
    1.5,
    "",
    "x",
    "9" * 5000,
    "1e999",
    TIME,
    [],
    [None],
    [[]],
]
WRONG += [["a"], [{}], {}, {"": None}, {"a": "b"}, {"a": {"b": ["c"]}}]
#: Keys of labels that are too many for one object.
_MANY = list(map(str, range(1100)))
values = st.sampled_from(WRONG) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)


def places(whole: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all parts of an object, at every depth."""
    inside = whole.items() if isinstance(whole, dict) else ()
    for key, part in enumerate(whole) if isinstance(whole, list) else inside:
        yield (*path, key)
        yield from places(part, (*path, key))


def replaced(whole: Object, path: tuple[Any, ...], value: Any) -> Object:
    """A copy with another part."""
    made: Any = copy.deepcopy(whole)
    target = made
    for step in path[:-1]:
        target = target[step]
    target[path[-1]] = copy.deepcopy(value)
    return dict(made)


@pytest.mark.parametrize("case", CASES)
def test_objects_of_an_api_server_pass(case: str) -> None:
    kind, whole, read = CASES[case]
    assert wrong_part(kind, whole) == ""
    read(whole)


@pytest.mark.parametrize("case", CASES)
def test_every_wrong_part_is_rejected_or_harmless(case: str) -> None:
    """Each part of each object, replaced by each value."""
    kind, whole, read = CASES[case]
    for path in places(whole):
        for value in WRONG:
            made = replaced(whole, path, value)
            if not wrong_part(kind, made):
                try:
                    read(made)
                except Exception as error:
                    raise AssertionError(f"{path} = {str(value)[:50]!r}") from error


@pytest.mark.parametrize("case", CASES)
@settings(max_examples=150)
@given(data=st.data())
def test_random_parts_are_rejected_or_harmless(case: str, data: st.DataObject) -> None:
    kind, whole, read = CASES[case]
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from(list(places(whole))))
        whole = replaced(whole, path, data.draw(values))
    if not wrong_part(kind, whole):
        read(whole)


@pytest.mark.parametrize(
    ("path", "value", "where"),
    [
        (("status",), "x", "status"),
        (("status", "containerStatuses"), 5, "status.containerStatuses"),
        (("status", "conditions"), [{"status": "True"}], "status.conditions[0].type"),
        (("status", "startTime"), "yesterday", "status.startTime"),
        (("metadata",), [], "metadata"),
        (("metadata", "labels"), {"a": 5}, "metadata.labels.*"),
        (("metadata", "name"), "x" * 300, "metadata.name"),
        (("metadata", "labels"), {"x" * 318: "a"}, "metadata.labels.*"),
        (("metadata", "labels"), {"a": "x" * 254}, "metadata.labels.*"),
        (("metadata", "labels"), dict.fromkeys(_MANY, "x" * 253), "metadata.labels.*"),
        (("metadata", "annotations"), {"x" * 318: "a"}, "metadata.annotations.*"),
        (("metadata", "annotations"), {"a": "x" * 2**18}, "metadata.annotations.*"),
        (("spec", "overhead"), {"x" * 318: "1"}, "spec.overhead.*"),
        (("spec", "overhead"), {"cpu": None}, "spec.overhead.*"),
    ],
)
def test_path_names_the_part(path: tuple[str, ...], value: Any, where: str) -> None:
    assert wrong_part("Pod", replaced(remote(), path, value)) == where


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("metadata", "labels"), {}),
        (("metadata", "labels"), {"x" * 317: "x" * 253, "y" * 317: "y" * 253}),
        (("metadata", "annotations"), {"a": "x" * (2**18 - 1)}),
        (("spec", "overhead"), {"x" * 317: "1"}),
    ],
    ids=["none", "labels", "annotations", "resources"],
)
def test_texts_of_the_greatest_length_pass(path: tuple[str, ...], value: Any) -> None:
    assert wrong_part("Pod", replaced(remote(), path, value)) == ""


@pytest.mark.parametrize(
    ("time", "is_valid"),
    [
        ("2026-01-01T00:00:00Z", True),
        ("2026-01-01T00:00:00.000006Z", True),
        ("2026-01-01T00:00:00.5+05:30", True),
        ("20260101", False),
        ("2026-01-01", False),
        ("2026-W01-1", False),
        ("2026-01-01 00:00:00Z", False),
        ("2026-01-01T00:00:00", False),
        ("2026-01-01T24:00:00Z", False),
        ("2026-01-01T00:00:00,5+05", False),
        ("2026-01-01T00:00:00+05:99", False),
        ("2026-02-30T00:00:00Z", False),
    ],
)
def test_times_are_those_that_an_api_server_accepts(time: str, is_valid: bool) -> None:
    pod = replaced(remote(), ("status", "startTime"), time)
    assert wrong_part("Pod", pod) == ("" if is_valid else "status.startTime")


@pytest.mark.parametrize(
    ("count", "is_valid"), [(0, True), (2**31 - 1, True), (2**31, False), (-(2**31) - 1, False)]
)
def test_restart_count_has_32_bits(count: int, is_valid: bool) -> None:
    path = ("status", "containerStatuses", 0, "restartCount")
    where = "" if is_valid else "status.containerStatuses[0].restartCount"
    assert wrong_part("Pod", replaced(remote(), path, count)) == where


def test_unchanged_parts_are_not_checked_again() -> None:
    before = remote()
    wrong = {**before, "spec": {"containers": 5}}
    assert wrong_part("Pod", wrong) == "spec.containers"
    assert wrong_part("Pod", {**wrong, "status": {}}, wrong) == ""


def test_origin_is_needed_for_the_cases() -> None:
    assert isinstance(origin_of(remote()), Origin)
