"""Patches have the desired result, and are empty afterwards."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakeapi.patching import strategic
from tests.translators.patch_formats import apply_merge_patch
from tests.translators.strategies import json_maps
from translators.merge_patch import delete_condition, merge_patch, status_patch
from translators.object_accessors import Object

_KINDS = ("Ready", "Initialized", "example.com/gate")
_amounts = st.dictionaries(st.sampled_from(["cpu", "memory"]), st.sampled_from(["1", "2"]))


def _conditions() -> st.SearchStrategy[list[Object]]:
    words = st.sampled_from(["True", "False"])
    extra = st.dictionaries(st.sampled_from(["reason", "message"]), st.text("xy", min_size=1))
    each = st.builds(lambda status, more: {"status": status, **more}, words, extra)
    return st.dictionaries(st.sampled_from(_KINDS), each).map(
        lambda found: [{"type": kind, **rest} for kind, rest in found.items()]
    )


def _addresses() -> st.SearchStrategy[list[Object]]:
    texts = st.lists(st.sampled_from(["10.0.0.1", "10.0.0.2", "fd00::1"]), unique=True, min_size=1)
    return texts.map(lambda found: [{"ip": text} for text in found])


def _statuses() -> st.SearchStrategy[Object]:
    return st.fixed_dictionaries(
        {},
        optional={
            "phase": st.sampled_from(["Pending", "Running"]),
            "podIPs": _addresses(),
            "conditions": _conditions(),
            "containerStatuses": st.lists(json_maps, min_size=1, max_size=2),
            "allocatedResources": _amounts,
            "resources": st.dictionaries(st.sampled_from(["limits", "requests"]), _amounts),
        },
    )


@given(json_maps, json_maps)
def test_applied_merge_patch_has_the_desired_fields(current: Object, desired: Object) -> None:
    before = copy.deepcopy((current, desired))
    patch = merge_patch(current, desired)
    patched = apply_merge_patch(current, patch)

    assert merge_patch(patched, desired) == {}
    assert {key: patched[key] for key in current if key not in desired} == {
        key: value for key, value in current.items() if key not in desired
    }, "what the desired object does not name stays"
    assert (current, desired) == before


@given(json_maps)
def test_patch_to_itself_is_empty(current: Object) -> None:
    assert merge_patch(current, copy.deepcopy(current), exact=frozenset("abcd")) == {}
    assert status_patch(current, copy.deepcopy(current)) == {}


@given(json_maps, json_maps)
def test_maps_under_an_exact_key_become_equal(current: Object, desired: Object) -> None:
    whole, wanted = {"labels": current, "kept": 1}, {"labels": desired}
    patched = apply_merge_patch(
        whole, merge_patch(whole, wanted, exact=frozenset({"labels", *"abcd"}))
    )

    assert patched == {"labels": desired, "kept": 1}


def test_none_removes_a_key_once() -> None:
    assert merge_patch({"a": 1}, {"a": None, "b": None}) == {"a": None}


def test_missing_exact_map_is_removed() -> None:
    copied = {"data": {"a": "1"}, "immutable": False}

    assert merge_patch(copied, {"binaryData": {"b": "AA=="}}, exact=frozenset({"data"})) == {
        "data": None,
        "binaryData": {"b": "AA=="},
    }


def test_list_is_replaced() -> None:
    assert merge_patch({"ports": [1, 2]}, {"ports": [2]}) == {"ports": [2]}


@given(_statuses(), _statuses())
def test_applied_status_patch_is_complete(current: Object, desired: Object) -> None:
    before = copy.deepcopy((current, desired))
    patched = strategic(current, status_patch(current, desired))

    assert status_patch(patched, desired) == {}
    for key in set(desired) - {"conditions"}:
        assert patched[key] == desired[key]
    found = {item["type"]: item for item in patched.get("conditions", [])}
    for item in desired.get("conditions", []):
        assert found[item["type"]] == item
    assert (current, desired) == before


def test_only_differing_conditions_are_sent() -> None:
    same = {"type": "Initialized", "status": "True"}
    current = {"conditions": [same, {"type": "Ready", "status": "False"}]}

    assert status_patch(current, {"conditions": [same, {"type": "Ready", "status": "True"}]}) == {
        "conditions": [{"type": "Ready", "status": "True"}]
    }


def test_removed_condition_field_is_null() -> None:
    current = {"conditions": [{"type": "Ready", "status": "False", "reason": "X", "message": "y"}]}

    assert status_patch(current, {"conditions": [{"type": "Ready", "status": "True"}]}) == {
        "conditions": [{"type": "Ready", "status": "True", "reason": None, "message": None}]
    }


def test_null_equals_a_missing_field() -> None:
    current = {"conditions": [{"type": "Ready", "status": "True", "lastProbeTime": None}]}

    assert status_patch(current, {"conditions": [{"type": "Ready", "status": "True"}]}) == {}


@pytest.mark.parametrize(
    ("current", "patch"),
    [
        ([{"type": "Ready", "status": "True"}], {"conditions": [delete_condition("Ready")]}),
        ([{"type": "Other", "status": "True"}], {}),
        (None, {}),
    ],
    ids=["one that is there is deleted", "one that is not there is not", "nor where none is"],
)
def test_deleted_condition(current: list[Object] | None, patch: Object) -> None:
    status: Object = {} if current is None else {"conditions": current}

    assert status_patch(status, {"conditions": [delete_condition("Ready")]}) == patch


def test_addresses_are_replaced() -> None:
    current = {"podIPs": [{"ip": "10.0.0.1"}]}

    assert status_patch(current, {"podIPs": [{"ip": "10.0.0.2"}]}) == {
        "podIPs": [{"$patch": "replace"}, {"ip": "10.0.0.2"}]
    }


def test_removed_resource_is_null() -> None:
    current = {"allocatedResources": {"cpu": "1", "memory": "1Gi"}}

    assert status_patch(current, {"allocatedResources": {"cpu": "2"}}) == {
        "allocatedResources": {"cpu": "2", "memory": None}
    }
