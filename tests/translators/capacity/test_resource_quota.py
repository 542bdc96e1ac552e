"""ResourceQuotas: when they limit the node, by how much, and which are exhausted."""

from __future__ import annotations

import pytest

from translators.capacity import resource_quota
from translators.capacity.pod_requests import Amounts
from translators.object_accessors import Object


def _quota(namespace: str = "a", *, used: dict[str, str] | None = None, **hard: str) -> Object:
    return {
        "metadata": {"name": "q", "namespace": namespace},
        "spec": {"hard": hard},
        "status": {"used": used or {}},
    }


@pytest.mark.parametrize(
    ("hard", "expected"),
    [
        ({"cpu": "2"}, {"cpu": 2000}),
        ({"cpu": "2", "requests.cpu": "1500m"}, {"cpu": 1500}),
        ({"requests.memory": "1Gi"}, {"memory": 2**30}),
        ({"pods": "5", "count/pods": "3"}, {"pods": 3}),
        ({"requests.example.com/gpu": "1"}, {"example.com/gpu": 1}),
        ({"hugepages-2Mi": "4Mi"}, {"hugepages-2Mi": 2**22}),
        ({"requests.ephemeral-storage": "1Gi"}, {"ephemeral-storage": 2**30}),
        ({"limits.cpu": "1", "requests.storage": "1Gi", "services": "1", "count/jobs": "1"}, {}),
        ({"gold.storageclass.storage.k8s.io/requests.storage": "1Gi"}, {}),
    ],
)
def test_quota_limits_by_key(hard: dict[str, str], expected: Amounts) -> None:
    assert resource_quota.quota_limits(_quota() | {"spec": {"hard": hard}}) == expected


@pytest.mark.parametrize(
    "scope",
    [{"scopes": ["BestEffort"]}, {"scopeSelector": {"matchExpressions": [{"operator": "In"}]}}],
)
def test_scoped_quota_limits_nothing(scope: Object) -> None:
    scoped = _quota(pods="0")
    scoped["spec"] |= scope

    assert resource_quota.quota_limits(scoped) == {}
    assert resource_quota.exhausted_keys(scoped, ["pods"]) == ""


@pytest.mark.parametrize(
    ("quotas", "busy", "expected"),
    [
        ({}, set(), {}),
        ({"a": [_quota(cpu="2")]}, set(), {"cpu": 2000}),
        ({"a": [_quota(cpu="2")]}, {"a"}, {"cpu": 2000}),
        ({"a": [_quota(cpu="2")]}, {"a", "b"}, {}),
        ({"a": [_quota(cpu="2")], "b": [_quota(cpu="1", pods="4")]}, {"a"}, {"cpu": 3000}),
        ({"a": [_quota(cpu="2")], "b": [_quota(pods="4")]}, {"b"}, {"pods": 4}),
        ({"a": [_quota(cpu="2"), _quota(cpu="3", pods="1")]}, {"a"}, {"cpu": 2000, "pods": 1}),
    ],
    ids=[
        "no quota",
        "one, before there are pods",
        "one where all pods are",
        "pods elsewhere are not bounded",
        "two are added",
        "each resource by itself",
        "the least of two in one namespace",
    ],
)
def test_remaining_is_limited_only_if_all_used_namespaces_have_a_quota(
    quotas: dict[str, list[Object]], busy: set[str], expected: Amounts
) -> None:
    assert resource_quota.remaining(quotas, unmanaged={}, namespaces_with_pods=busy) == expected


def test_unmanaged_usage_is_subtracted() -> None:
    quotas = {"a": [_quota(cpu="2", memory="1Gi")], "b": [_quota(cpu="1")]}
    foreign = {"a": {"cpu": 5000, "memory": 2**29}, "c": {"cpu": 1}}

    assert resource_quota.remaining(quotas, unmanaged=foreign, namespaces_with_pods={"a"}) == {
        "cpu": 1000,
        "memory": 2**29,
    }


@pytest.mark.parametrize(
    ("hard", "used", "expected"),
    [
        ({"cpu": "2"}, {"cpu": "1999m"}, ""),
        ({"cpu": "2"}, {}, ""),
        ({"cpu": "2", "pods": "3"}, {"cpu": "2000m", "pods": "3"}, "cpu, pods"),
        ({"limits.cpu": "2"}, {"limits.cpu": "3"}, "limits.cpu"),
        ({"pods": "0"}, {"pods": "0"}, "pods"),
        ({"requests.example.com/gpu": "0"}, {}, ""),
        ({"services": "1"}, {"services": "1"}, ""),
    ],
    ids=[
        "some is left",
        "not counted yet",
        "two are reached",
        "a limit",
        "none at all",
        "of what the nodes do not have",
        "not of pods",
    ],
)
def test_exhausted_keys_are_listed(
    hard: dict[str, str], used: dict[str, str], expected: str
) -> None:
    counted = _quota(used=used) | {"spec": {"hard": hard}}
    expected = f"namespace a, quota q: {expected}" if expected else ""

    assert resource_quota.exhausted_keys(counted, {"cpu", "memory", "pods"}) == expected
