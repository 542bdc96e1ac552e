"""Parameters of home's StorageClasses, and the remote's class that each names."""

from __future__ import annotations

from typing import Any

import pytest

from translators.object_accessors import Object
from translators.storage.identifiers import DRIVER
from translators.storage.remote_pvc import unsupported_field
from translators.storage.storage_class import (
    ServedClass,
    StorageClassError,
    find_remote_class,
    parse_served_class,
    waits_for_consumer,
)


def _class(name: str = "burst", *, default: str = "", **fields: Any) -> Object:
    annotations = {"storageclass.kubernetes.io/is-default-class": "true"} if default else {}
    meta = {"name": name, "annotations": annotations, "creationTimestamp": default}
    return {"metadata": meta, "provisioner": DRIVER, **fields}


def test_settings_of_a_class() -> None:
    term = {"key": "cluster-bridge.io/remote", "values": ["r1"]}
    parsed = parse_served_class(
        _class(
            parameters={
                "remoteStorageClass": "fast",
                "accessModes": "ReadWriteOnce, ReadWriteMany",
            },
            reclaimPolicy="Retain",
            mountOptions=["noatime"],
            volumeBindingMode="Immediate",
            allowedTopologies=[{"matchLabelExpressions": [term]}],
        )
    )
    assert parsed == ServedClass(
        "burst",
        remote_class="fast",
        access_modes=("ReadWriteOnce", "ReadWriteMany"),
        reclaim_policy="Retain",
        mount_options=("noatime",),
        waits_for_consumer=False,
        remotes=("r1",),
    )


@pytest.mark.parametrize(
    ("parameters", "problem"),
    [({"type": "ssd"}, "unknown parameter type"), ({"accessModes": "RWO"}, "access mode RWO")],
)
def test_unknown_parameters_are_rejected(parameters: Object, problem: str) -> None:
    with pytest.raises(StorageClassError, match=problem):
        parse_served_class(_class(parameters=parameters))


def test_newest_default_class_counts() -> None:
    older, newer = _class("a", default="2025-01-01"), _class("b", default="2025-02-01")
    assert find_remote_class(ServedClass("burst"), [newer, _class("c"), older]) is newer


@pytest.mark.parametrize(
    ("served", "classes", "problem"),
    [
        (ServedClass("burst"), [_class("a")], "no default StorageClass.*to a"),
        (ServedClass("burst"), [], "it has none"),
        (ServedClass("burst", remote_class="x"), [_class("a")], "no StorageClass x"),
    ],
)
def test_missing_class_is_named(served: ServedClass, classes: list[Object], problem: str) -> None:
    with pytest.raises(StorageClassError, match=problem):
        find_remote_class(served, classes)


def test_unknown_class_may_wait_for_a_pod() -> None:
    assert waits_for_consumer(None)
    assert waits_for_consumer(_class(volumeBindingMode="WaitForFirstConsumer"))
    assert not waits_for_consumer(_class(volumeBindingMode="Immediate"))


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ({}, ""),
        ({"accessModes": ["ReadWriteOnce"]}, ""),
        ({"accessModes": ["ReadWriteMany"]}, "access mode ReadWriteMany"),
        ({"selector": {"matchLabels": {}}}, "spec.selector"),
        ({"dataSource": {"kind": "PersistentVolumeClaim", "name": "a"}}, ""),
        (
            {"dataSourceRef": {"kind": "PersistentVolumeClaim", "name": "a", "namespace": "b"}},
            "another namespace",
        ),
        ({"dataSourceRef": {"apiGroup": "x", "kind": "Populator", "name": "a"}}, "Populator a"),
    ],
)
def test_fields_that_the_remote_cannot_have(spec: Object, problem: str) -> None:
    served = ServedClass("burst", access_modes=("ReadWriteOnce",))
    home = {"metadata": {"name": "data", "namespace": "shop"}, "spec": spec}
    found = unsupported_field(home, served)
    assert problem in found
    assert bool(problem) == bool(found)
