"""Translation of Services."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from kubernetes.client import V1ServiceSpec

from tests.translators.golden import IDENTITY, homes
from tests.translators.strategies import json_values
from translators.merge_patch import merge_patch
from translators.mirror.service import (
    REMOVABLE_FIELDS,
    is_api_server,
    is_copied,
    is_headless,
    translate_service,
)
from translators.object_accessors import Object
from translators.ownership_labels import ANNOTATION_MIRROR

#: The spec fields that the remote Service does not have.
_NOT_CARRIED = {
    "allocateLoadBalancerNodePorts",
    "clusterIP",
    "clusterIPs",
    "externalIPs",
    "externalTrafficPolicy",
    "healthCheckNodePort",
    "ipFamilies",
    "loadBalancerClass",
    "loadBalancerIP",
    "loadBalancerSourceRanges",
}


def _service(spec: Object, name: str = "web", namespace: str = "shop") -> Object:
    return {"metadata": {"name": name, "namespace": namespace, "uid": "home-1"}, "spec": spec}


def test_only_documented_spec_fields_are_dropped() -> None:
    spec: Object = {name: f"any-{name}" for name in V1ServiceSpec.attribute_map.values()}
    spec["ports"] = [{"port": 80}]

    assert translate_service(_service(spec), IDENTITY)["spec"] == {
        name: value for name, value in spec.items() if name not in _NOT_CARRIED
    }


@given(json_values)
def test_unknown_fields_are_kept(value: Any) -> None:
    new = {"future": value}
    home = {**_service({"ports": [{"port": 80, "nodePort": 30000, **new}], **new}), **new}
    before = copy.deepcopy(home)
    remote = translate_service({**home, "status": {"loadBalancer": {}}}, IDENTITY)

    assert remote == {
        **new,
        "metadata": remote["metadata"],
        "spec": {"ports": [{"port": 80, **new}], **new},
    }
    assert home == before


@pytest.mark.parametrize("home", homes("service"), ids=lambda home: str(home["metadata"]["name"]))
def test_translated_service_can_be_translated_again(home: Object) -> None:
    first = translate_service(home, IDENTITY)
    again = translate_service({**first, "metadata": {**first["metadata"], "uid": "x"}}, IDENTITY)

    assert again["spec"] == first["spec"]


@pytest.mark.parametrize(
    ("policy", "carried"),
    [
        ("SingleStack", "SingleStack"),
        ("PreferDualStack", "PreferDualStack"),
        ("RequireDualStack", "PreferDualStack"),
    ],
    ids=["one family stays one", "a wish stays a wish", "a demand becomes a wish"],
)
def test_ip_family_policy(policy: str, carried: str) -> None:
    home = _service({"ipFamilyPolicy": policy, "ipFamilies": ["IPv6", "IPv4"]})

    assert translate_service(home, IDENTITY)["spec"] == {"ipFamilyPolicy": carried}


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, True), ("true", True), ("", True), ("false", False)],
    ids=["default", "enabled", "unset", "disabled"],
)
def test_annotation_prevents_the_copy(value: str | None, expected: bool) -> None:
    home = _service({})
    home["metadata"]["annotations"] = {} if value is None else {ANNOTATION_MIRROR: value}

    assert is_copied(home) is expected


def test_only_the_service_of_the_api_server_is_not_copied() -> None:
    assert is_api_server(_service({}, "kubernetes", "default"))
    assert not is_copied(_service({}, "kubernetes", "default"))
    assert not is_api_server(_service({}, "kubernetes", "shop"))
    assert not is_api_server(_service({}, "web", "default"))


@pytest.mark.parametrize(
    ("spec", "expected"),
    [({"clusterIP": "None"}, True), ({"clusterIP": "10.96.0.7"}, False), ({}, False)],
    ids=["None is a choice", "an address is none", "no address yet is no choice"],
)
def test_headless_service_stays_headless(spec: Object, expected: bool) -> None:
    assert is_headless(_service(spec)) is expected


def test_removable_fields_are_documented_spec_fields() -> None:
    spec: Object = {
        "type": "ClusterIP",
        **dict.fromkeys(REMOVABLE_FIELDS, "x"),
        "ports": [{"port": 80}],
    }
    with_all = translate_service(_service(spec), IDENTITY)
    without = translate_service(_service({"type": "ClusterIP"}), IDENTITY)
    without["spec"] |= dict.fromkeys(REMOVABLE_FIELDS)

    assert merge_patch(with_all, without) == {"spec": dict.fromkeys(REMOVABLE_FIELDS)}
