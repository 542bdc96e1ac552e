"""Names, mapped namespaces and ownership."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.translators.strategies import dns_labels
from translators.identity import (
    Identity,
    NamespaceTemplateError,
    Origin,
    copied_annotations,
    copied_labels,
    home_id_from_uid,
    is_owned,
    is_owned_by_node,
    is_usable_namespace,
    origin_of,
    owner_labels,
    remote_metadata,
    unusable_namespace_message,
    validate_namespace_template,
)
from translators.names import dns_label, label_value
from translators.objects import HomeNamespace, HomeUid, Object

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_TEMPLATES = (
    "{namespace}-{home}",
    "{namespace}",
    "{home}-{namespace}",
    "x-{namespace}-{namespace}",
)

_identity = Identity(home_id="0123456789abcdef", home_name="berlin", node="burst")


def _named(template: str, home: str = "berlin") -> Identity:
    return Identity(home_id="0", home_name=home, node="burst", namespace_template=template)


# -- namespaces ----------------------------------------------------------------------------


@given(dns_labels, dns_labels, st.sampled_from(_TEMPLATES))
def test_mapped_namespace_is_a_valid_name(namespace: str, home: str, template: str) -> None:
    name = _named(template, home).remote_namespace(HomeNamespace(namespace))

    assert _LABEL.fullmatch(name)


@given(dns_labels, dns_labels, dns_labels, st.sampled_from(_TEMPLATES))
def test_mapped_namespaces_are_distinct(first: str, second: str, home: str, template: str) -> None:
    assume(first != second)
    identity = _named(template, home)

    assert identity.remote_namespace(HomeNamespace(first)) != identity.remote_namespace(
        HomeNamespace(second)
    )


@given(
    st.text("ab", min_size=1, max_size=62),
    st.sampled_from(["{namespace}", "edge-{namespace}", "{home}-{namespace}", "{namespace}-x"]),
    st.integers(0, 3),
)
def test_name_like_a_truncated_one_is_hashed(start: str, template: str, more: int) -> None:
    """A namespace that is named like the truncated form of another one gets a third name."""
    identity = _named(template)
    victim = HomeNamespace((start + "c" * 63)[:63])
    name = str(identity.remote_namespace(victim))
    for _ in range(more + 1):
        before, _, after = template.format(namespace="*", home="h").partition("*")
        chosen = HomeNamespace(name.removeprefix(before).removesuffix(after))
        if chosen == victim or not _LABEL.fullmatch(chosen):
            return
        name = str(identity.remote_namespace(chosen))
        assert name != identity.remote_namespace(victim)


def test_long_names_with_a_common_prefix_are_distinct() -> None:
    identity = _named("{namespace}-{home}")
    names = {identity.remote_namespace(HomeNamespace("a" * 60 + end)) for end in ("", "b", "cc")}

    assert len(names) == 3
    assert all(_LABEL.fullmatch(name) for name in names)


def test_truncated_name_does_not_end_with_a_dash() -> None:
    name = _named("{namespace}-{home}").remote_namespace(HomeNamespace("a" + "-" * 60 + "b"))

    assert re.fullmatch(r"a-[0-9a-f]{16}", name)


def test_default_template() -> None:
    assert _identity.remote_namespace(HomeNamespace("shop")) == "shop-berlin"


@pytest.mark.parametrize("template", _TEMPLATES)
def test_valid_template_is_accepted(template: str) -> None:
    validate_namespace_template(template, home_name="berlin")


@pytest.mark.parametrize(
    "template",
    [
        "{home}",
        "fixed",
        "{namespace}-{cluster}",
        "{namespace",
        "{}",
        "{0}{namespace}",
        "-{namespace}",
        "{namespace}_x",
        "{Namespace}",
        "X{namespace}",
        "{namespace}.{home}",
        "{namespace.x}",
        "{namespace:.3}",
        "{namespace:x>5}",
        "{namespace!r}",
        "{home:{namespace}}",
    ],
)
def test_invalid_template_is_rejected(template: str) -> None:
    with pytest.raises(NamespaceTemplateError, match=re.escape(repr(template))):
        validate_namespace_template(template, home_name="berlin")


# -- labels --------------------------------------------------------------------------------


@given(st.text(max_size=300))
def test_any_text_is_converted_to_a_dns_label(text: str) -> None:
    assert _LABEL.fullmatch(dns_label(text))


@given(dns_labels)
def test_dns_label_is_unchanged(text: str) -> None:
    assert dns_label(text) == text


def test_context_name_is_converted() -> None:
    assert dns_label("admin@Prod_1") == "admin-prod-1"
    assert dns_label("@") == "cluster"


_node_names = st.lists(dns_labels, min_size=1, max_size=4).map(".".join)


@given(_node_names, _node_names)
def test_label_values_of_node_names_are_distinct(first: str, second: str) -> None:
    assert _LABEL_VALUE.fullmatch(label_value(first))
    assert (label_value(first) == label_value(second)) == (first == second)
    assert len(first) > 62 or label_value(first) == first


def test_home_id_is_a_hash() -> None:
    first, second = home_id_from_uid("5f0f3ac1"), home_id_from_uid("5f0f3ac2")

    assert first != second
    assert re.fullmatch(r"[0-9a-f]{16}", first)


# -- ownership -----------------------------------------------------------------------------


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
    said = unusable_namespace_message({"metadata": meta}, identity)
    assert accepted or "--accept-namespaces shop" in said


def test_message_names_the_steps_in_both_clusters() -> None:
    said = unusable_namespace_message({"metadata": {"name": "shop"}}, _identity)
    assert "kubectl annotate namespace shop cluster-bridge.io/accepts-home=berlin" in said
    assert "--accept-namespaces shop" in said


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


def test_labels_and_annotations_are_copied_except_the_bridges() -> None:
    found = {"app": "web", "cluster-bridge.io/home": "x", "sub.cluster-bridge.io/y": "z"}
    kept = {"notcluster-bridge.io/a": "b"}
    applied = {"kubectl.kubernetes.io/last-applied-configuration": "{}"}
    home = {"metadata": {"labels": {**found, **kept}, "annotations": {**found, **kept, **applied}}}

    assert copied_labels(home) == {"app": "web", **kept}
    assert copied_annotations(home) == {"app": "web", **kept}


def test_selectors_match_the_labels() -> None:
    key, _, value = _identity.home_selector.partition("=")

    assert owner_labels(_identity)[key] == value
