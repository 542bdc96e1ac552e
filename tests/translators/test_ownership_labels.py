"""Ownership by labels, granted namespaces, and the link to home objects."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.translators.strategies import dns_labels
from translators.handed_over_namespaces import is_usable_namespace, unusable_namespace_message
from translators.object_accessors import HomeNamespace, HomeUid, Object
from translators.ownership_labels import (
    Origin,
    copied_annotations,
    copied_labels,
    home_selector,
    is_owned,
    is_owned_by_node,
    origin_of,
    owner_labels,
    remote_metadata,
)
from translators.virtual_node_identity import Identity

_identity = Identity(home_id="0123456789abcdef", home_name="berlin", node="burst")


def _object(**labels: str) -> Object:
    return {
        "metadata": {"labels": {f"cluster-bridge.io/{key}": val for key, val in labels.items()}}
    }


@pytest.mark.parametrize(
    ("remote", "owned", "nodes_own"),
    [
        (_object(home="0123456789abcdef", node="burst"), True, True),
        (_object(home="0123456789abcdef", node="other"), True, False),
        (_object(home="fedcba9876543210", node="burst"), False, False),
        ({"metadata": {"labels": None}}, False, False),
        ({}, False, False),
    ],
    ids=[
        "made for this node",
        "made for another node of this home",
        "made for another home",
        "without labels",
        "without metadata",
    ],
)
def test_ownership_by_labels(remote: Object, owned: bool, nodes_own: bool) -> None:
    assert is_owned(remote, _identity) is owned
    assert is_owned_by_node(remote, _identity) is nodes_own


@pytest.mark.parametrize(
    ("value", "accepted"),
    [("*", True), ("berlin", True), ("0123456789abcdef", True), ("rome", False), (None, False)],
    ids=["any home", "by its name", "by its identity", "another home", "none"],
)
def test_annotation_grants_a_namespace(value: str | None, accepted: bool) -> None:
    meta = {"name": "team-a", "annotations": {"cluster-bridge.io/accepts-home": value}}
    identity = replace(_identity, accepted_namespaces=("team-*",))
    assert is_usable_namespace({"metadata": meta}, identity) is accepted


@pytest.mark.parametrize(
    ("names", "accepted"),
    [
        ((), False),
        (("shop",), True),
        (("sho",), False),
        (("other", "s*"), True),
        (("?hop",), True),
        (("SHOP",), False),
    ],
)
def test_granted_namespace_is_usable_if_home_accepts_it(
    names: tuple[str, ...], accepted: bool
) -> None:
    meta = {"name": "shop", "annotations": {"cluster-bridge.io/accepts-home": "*"}}
    identity = replace(_identity, accepted_namespaces=names)
    assert is_usable_namespace({"metadata": meta}, identity) is accepted
    message = unusable_namespace_message({"metadata": meta}, identity)
    assert accepted or "--accept-namespaces shop" in message


def test_message_names_the_steps_in_both_clusters() -> None:
    message = unusable_namespace_message({"metadata": {"name": "shop"}}, _identity)
    assert "kubectl annotate namespace shop cluster-bridge.io/accepts-home=berlin" in message
    assert "--accept-namespaces shop" in message


def test_managed_namespace_is_usable() -> None:
    assert is_usable_namespace(_object(home="0123456789abcdef"), _identity)


@given(dns_labels, dns_labels, st.uuids().map(str))
def test_origin_round_trip(namespace: str, name: str, uid: str) -> None:
    home = {"metadata": {"name": name, "namespace": namespace, "uid": uid}}
    remote = {"metadata": remote_metadata(home, _identity)}

    assert origin_of(remote) == Origin(HomeNamespace(namespace), name, HomeUid(uid))
    assert is_owned_by_node(remote, _identity)


@pytest.mark.parametrize("missing", ["home-namespace", "home-name", "home-uid"])
def test_incomplete_origin_is_none(missing: str) -> None:
    home = {"metadata": {"name": "a", "namespace": "b", "uid": "c"}}
    meta = remote_metadata(home, _identity)
    del meta["annotations"][f"cluster-bridge.io/{missing}"]

    assert origin_of({"metadata": meta}) is None


@pytest.mark.parametrize("part", ["home-namespace", "home-name", "home-uid"])
def test_origin_with_a_part_that_no_name_can_be_is_none(part: str) -> None:
    meta = remote_metadata({"metadata": {"name": "a", "namespace": "b", "uid": "c"}}, _identity)
    meta["annotations"][f"cluster-bridge.io/{part}"] = "x" * 253
    assert origin_of({"metadata": meta}) is not None
    meta["annotations"][f"cluster-bridge.io/{part}"] = "x" * 254
    assert origin_of({"metadata": meta}) is None


def test_labels_and_annotations_are_copied_except_the_bridges() -> None:
    found = {"app": "web", "cluster-bridge.io/home": "x", "sub.cluster-bridge.io/y": "z"}
    kept = {"notcluster-bridge.io/a": "b"}
    applied = {"kubectl.kubernetes.io/last-applied-configuration": "{}"}
    home = {"metadata": {"labels": {**found, **kept}, "annotations": {**found, **kept, **applied}}}

    assert copied_labels(home) == {"app": "web", **kept}
    assert copied_annotations(home) == {"app": "web", **kept}


def test_selectors_match_the_labels() -> None:
    key, _, value = home_selector(_identity).partition("=")

    assert owner_labels(_identity)[key] == value
