"""Hypothesis strategies and hostile values for the tests of the translators."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from translators.object_accessors import Object

#: A namespace's name, or another DNS label.
dns_labels: st.SearchStrategy[str] = st.from_regex(
    r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", fullmatch=True
)

_plain = st.booleans() | st.integers(-5, 5) | st.text("ab", max_size=2)

#: Any JSON value except null, which API servers drop.
json_values: st.SearchStrategy[Any] = st.recursive(
    _plain,
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abcd"), inner, max_size=3)
    ),
    max_leaves=6,
)

#: Maps with few keys, so that two maps share some.
json_maps: st.SearchStrategy[Object] = st.dictionaries(
    st.sampled_from("abcd"), json_values, max_size=4
)

#: JSON lists within lists, up to more levels than the parser reads.
NESTED = ["[" * levels + "]" * levels for levels in (300, 900, 1100)]
