"""The capacity that options and quotas declare."""

from __future__ import annotations

import pytest

from translators.capacity.declared_capacity import declared_capacity, missing_resources
from translators.object_accessors import Object


def quota(**hard: str) -> Object:
    return {"metadata": {"name": "q"}, "spec": {"hard": hard}}


def test_option_takes_the_place_of_all_quotas_of_its_resource() -> None:
    quotas = {"a": [quota(cpu="1", pods="3")], "b": [quota(pods="4")]}
    unmanaged = {"a": {"cpu": 500, "pods": 1}, "b": {"cpu": 250, "pods": 9}}
    found = declared_capacity({"cpu": 4000}, quotas, unmanaged)
    assert found.total == {"cpu": 4000, "pods": 7}
    assert found.free == {"cpu": 3250, "pods": 2}


def test_strictest_quota_of_each_namespace_counts() -> None:
    quotas = {"a": [quota(pods="3"), quota(pods="2")], "b": [quota(**{"count/pods": "4"})]}
    assert declared_capacity({}, quotas, {}).total == {"pods": 6}


def test_quotas_declare_extended_resources() -> None:
    quotas = {"a": [quota(**{"requests.nvidia.com/gpu": "2", "limits.cpu": "9"})]}
    assert declared_capacity({}, quotas, {}).total == {"nvidia.com/gpu": 2}


@pytest.mark.parametrize(
    ("declared", "quotas", "missing"),
    [
        ({"cpu": 1, "memory": 1, "pods": 1}, [], []),
        ({"cpu": 1}, [quota(pods="3")], ["memory"]),
        ({}, [quota(**{"requests.cpu": "1", "requests.memory": "1Gi"}), quota(pods="1")], []),
        ({}, [], ["cpu", "memory", "pods"]),
        ({}, [quota(**{"limits.cpu": "1"})], ["cpu", "memory", "pods"]),
    ],
)
def test_resources_without_option_and_quota_are_missing(
    declared: dict[str, int], quotas: list[Object], missing: list[str]
) -> None:
    assert missing_resources(declared, quotas) == missing
