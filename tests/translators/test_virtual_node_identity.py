"""Names and mapped namespaces."""

from __future__ import annotations

import re
import tracemalloc

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.translators.strategies import dns_labels
from translators.derived_names import dns_label, label_value
from translators.object_accessors import HomeNamespace
from translators.virtual_node_identity import (
    Identity,
    NamespaceTemplateError,
    home_id_from_uid,
    validate_namespace_template,
)

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


def test_texts_that_are_no_namespace_are_not_kept() -> None:
    tracemalloc.start()
    try:
        for number in range(100):
            _identity.remote_namespace(HomeNamespace(str(number) * 10_000))
        assert tracemalloc.get_traced_memory()[0] < 500_000
    finally:
        tracemalloc.stop()
