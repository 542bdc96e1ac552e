"""The capacity that is reported to home's scheduler."""

from __future__ import annotations

import pytest

from translators.object_accessors import Object
from translators.storage.identifiers import DRIVER
from translators.storage.storage_capacity import NO_LIMIT, storage_capacity
from translators.virtual_node_identity import Identity

IDENTITY = Identity(home_id="0123456789abcdef", home_name="berlin", node="burst")
CLASS: Object = {"metadata": {"name": "bridge"}, "provisioner": DRIVER}
FAST: Object = {
    "metadata": {
        "name": "fast",
        "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
    }
}


def _quota(namespace: str, hard: Object, used: Object | None = None) -> Object:
    return {
        "metadata": {"name": "q", "namespace": namespace},
        "spec": {"hard": hard},
        "status": {"used": used or {}},
    }


def _capacity(
    *quotas: Object, namespaces: tuple[str, ...] = ("a", "b"), of_remote: tuple[Object, ...] = ()
) -> str:
    made = storage_capacity(
        CLASS,
        IDENTITY,
        remote_classes=[FAST],
        remote_capacities=of_remote,
        quotas=quotas,
        namespaces=namespaces,
    )
    assert made is not None
    return str(made["capacity"])


_STORAGE = "requests.storage"
_OF_CLASS = "fast.storageclass.storage.k8s.io/requests.storage"


@pytest.mark.parametrize(
    ("quotas", "capacity"),
    [
        ([], NO_LIMIT),
        ([_quota("a", {_STORAGE: "10Gi"})], NO_LIMIT),
        ([_quota("a", {_STORAGE: "10Gi"}), _quota("b", {_STORAGE: "4Gi"})], "10Gi"),
        (
            [_quota("a", {_STORAGE: "10Gi"}, {_STORAGE: "8Gi"}), _quota("b", {_STORAGE: "4Gi"})],
            "4Gi",
        ),
        (
            [_quota("a", {_OF_CLASS: "3Gi"}), _quota("b", {_OF_CLASS: "1Gi", _STORAGE: "9Gi"})],
            "3Gi",
        ),
        ([_quota("a", {_STORAGE: "1Gi"}, {_STORAGE: "2Gi"}), _quota("b", {_STORAGE: "0"})], "0"),
        (
            [
                _quota("a", {_STORAGE: "2Gi"}),
                _quota("b", {_STORAGE: "1Gi"}),
                _quota("c", {_STORAGE: "9Gi"}),
            ],
            "2Gi",
        ),
        ([_quota("a", {"requests.cpu": "1"}), _quota("b", {_STORAGE: "1Gi"})], NO_LIMIT),
    ],
)
def test_quotas_limit_if_each_prepared_namespace_has_one(
    quotas: list[Object], capacity: str
) -> None:
    assert _capacity(*quotas) == capacity


def test_quotas_count_only_in_prepared_namespaces() -> None:
    assert _capacity(_quota("a", {_STORAGE: "1Gi"}), namespaces=()) == NO_LIMIT


def test_smaller_of_quota_and_segment_counts() -> None:
    segment = {"storageClassName": "fast", "capacity": "2Gi"}
    other = {"storageClassName": "slow", "capacity": "9Gi"}
    assert _capacity(namespaces=(), of_remote=(segment, other)) == "2Gi"
    assert (
        _capacity(_quota("a", {_STORAGE: "1Gi"}), namespaces=("a",), of_remote=(segment,)) == "1Gi"
    )


def test_segment_without_capacity_has_none() -> None:
    assert _capacity(of_remote=({"storageClassName": "fast"},)) == "0"
