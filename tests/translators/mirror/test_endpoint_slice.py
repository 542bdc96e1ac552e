"""Home's endpoints in the remote, without fields that refer to home."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.translators.golden import IDENTITY, homes
from tests.translators.strategies import dns_labels, json_values
from translators.mirror.endpoint_slice import (
    LABEL_MANAGED_BY,
    MANAGER,
    has_endpoints,
    remote_name,
    service_name,
    translate_endpoint_slice,
)
from translators.object_accessors import Object
from translators.ownership_labels import is_owned_by_node

ELSEWHERE = {"forZones": [{"name": "other-cluster.cluster-bridge.io"}]}


def _slice(*endpoints: Object, **labels: str) -> Object:
    meta = {"name": "web-x7k2p", "namespace": "shop", "uid": "home-1", "labels": labels}
    return {"addressType": "IPv4", "metadata": meta, "endpoints": list(endpoints)}


@given(st.lists(st.sampled_from([IDENTITY.node, "home-1", "other-virtual", None])))
def test_endpoints_of_the_virtual_node_are_excluded(nodes: list[str | None]) -> None:
    endpoints: list[Object] = [
        {"addresses": [f"10.0.0.{number}"], **({"nodeName": node} if node else {})}
        for number, node in enumerate(nodes)
    ]
    home = _slice(*endpoints)
    before = copy.deepcopy(home)

    assert translate_endpoint_slice(home, IDENTITY)["endpoints"] == [
        {"addresses": endpoint["addresses"], "hints": ELSEWHERE}
        for endpoint in endpoints
        if endpoint.get("nodeName") != IDENTITY.node
    ]
    assert has_endpoints(home, IDENTITY) == any(node != IDENTITY.node for node in nodes)
    assert home == before


@given(json_values)
def test_unknown_fields_are_kept(value: Any) -> None:
    new = {"future": value}
    endpoint = {"addresses": ["10.0.0.1"], "conditions": {"ready": True, **new}, **new}
    remote = translate_endpoint_slice(
        {**_slice(endpoint), "ports": [{"port": 80, **new}], **new}, IDENTITY
    )

    assert remote["endpoints"] == [{**endpoint, "hints": ELSEWHERE}]
    assert remote["ports"] == [{"port": 80, **new}]
    assert remote["future"] == value


def test_home_is_another_zone_and_another_node() -> None:
    """Also where both clusters have zones of the same name."""
    zone, node = {"forZones": [{"name": "a"}]}, {"forNodes": [{"name": "home-1"}]}
    home = _slice({"zone": "a", "hints": zone}, {"zone": "a", "hints": {**zone, **node}})
    by_zone, by_node = translate_endpoint_slice(home, IDENTITY)["endpoints"]

    assert by_zone == {"hints": ELSEWHERE}
    assert by_node == {"hints": {**ELSEWHERE, "forNodes": ELSEWHERE["forZones"]}}


def test_slice_is_not_managed_by_the_remotes_controller() -> None:
    home = _slice(**{LABEL_MANAGED_BY: "endpointslice-controller.k8s.io"})
    remote = translate_endpoint_slice(home, IDENTITY)

    assert remote["metadata"]["labels"][LABEL_MANAGED_BY] == MANAGER
    assert is_owned_by_node(remote, IDENTITY)


@given(st.lists(dns_labels, min_size=2, max_size=2, unique=True))
def test_names_differ_by_slice_and_by_node(names: list[str]) -> None:
    other = replace(IDENTITY, node="other")
    made = [remote_name(name, who) for name in names for who in (IDENTITY, other)]

    assert len(set(made)) == 4
    assert all(made_name.startswith(names[0]) for made_name in made[:2])


def test_long_name_is_truncated() -> None:
    first, second = (remote_name("a" * 250 + end, IDENTITY) for end in ("xyz", "xyy"))
    assert len(first) == 253
    assert first != second


@pytest.mark.parametrize("home", homes("endpointslice"), ids=lambda home: home["metadata"]["name"])
def test_slice_keeps_its_service(home: Object) -> None:
    assert service_name(home) == service_name(translate_endpoint_slice(home, IDENTITY)) != ""


def test_slice_without_service_has_no_service_name() -> None:
    assert service_name(_slice()) == ""
