"""ResourceQuotas: when they limit the node, by how much, and which are exhausted."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

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


_HARD = st.dictionaries(
    st.sampled_from(["cpu", "memory", "pods", "requests.cpu", "limits.cpu", "requests.x.io/y"]),
    st.integers(0, 9).map(str),
)
_AMOUNTS = st.dictionaries(st.sampled_from(["cpu", "memory", "x.io/y"]), st.integers(0, 9000))
_NAMESPACES = st.sampled_from("abcd")


@given(
    hard=st.dictionaries(_NAMESPACES, st.lists(_HARD, max_size=3)),
    unmanaged=st.dictionaries(_NAMESPACES, _AMOUNTS),
    busy=st.sets(_NAMESPACES),
)
def test_remaining_is_the_sum_of_the_least_that_each_namespace_leaves(
    hard: dict[str, list[dict[str, str]]], unmanaged: dict[str, Amounts], busy: set[str]
) -> None:
    quotas = {
        name: [{**_quota(name), "spec": {"hard": each}} for each in of_name]
        for name, of_name in hard.items()
    }
    limits = {
        name: [resource_quota.quota_limits(quota) for quota in of_name]
        for name, of_name in quotas.items()
    }

    def left(namespace: str, resource: str) -> list[int]:
        """The amount of the resource that each quota of the namespace leaves."""
        used = unmanaged.get(namespace, {}).get(resource, 0)
        of_resource = [limit[resource] for limit in limits.get(namespace, []) if resource in limit]
        return [max(0, amount - used) for amount in of_resource]

    expected = {}
    for resource in ("cpu", "memory", "pods", "x.io/y"):
        found = [min(left(name, resource)) for name in limits if left(name, resource)]
        if found and all(left(name, resource) for name in busy):
            expected[resource] = sum(found)
    remaining = resource_quota.remaining(quotas, unmanaged=unmanaged, namespaces_with_pods=busy)
    assert remaining == expected


def test_remaining_reads_each_namespace_with_pods_a_fixed_number_of_times() -> None:
    class Counted(set[str]):
        reads = 0

        def __iter__(self) -> Iterator[str]:
            self.reads += 1
            return super().__iter__()

    busy = Counted(str(number) for number in range(100))
    quotas = {namespace: [_quota(namespace, cpu="1", memory="1")] for namespace in sorted(busy)}
    busy.reads = 0

    remaining = resource_quota.remaining(quotas, unmanaged={}, namespaces_with_pods=busy)

    assert remaining == {"cpu": 100_000, "memory": 100}
    assert busy.reads <= 2


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
