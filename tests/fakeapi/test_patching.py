"""The rules of the three kinds of patches, by table."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakeapi.api_errors import ApiErrorResponse
from tests.fakeapi.patching import json_patch, merge, strategic

A1, A2, B = {"name": "a", "v": 1}, {"name": "a", "v": 2}, {"name": "b"}


@pytest.mark.parametrize(
    ("target", "patch", "expected"),
    [
        ({"a": 1, "b": 2}, {"a": None, "c": 3}, {"b": 2, "c": 3}),
        ({"a": {"b": 1}}, {"a": {"c": {"d": None, "e": 1}}}, {"a": {"b": 1, "c": {"e": 1}}}),
        ({"a": [1, 2]}, {"a": [3]}, {"a": [3]}),
        ({"a": "x"}, {"a": {"b": 1}}, {"a": {"b": 1}}),
    ],
)
def test_merge(target: Any, patch: Any, expected: Any) -> None:
    assert merge(target, patch) == expected


@pytest.mark.parametrize(
    ("target", "patch", "expected"),
    [
        ({"containers": [A1, B]}, {"containers": [A2]}, {"containers": [A2, B]}),
        ({"containers": [B]}, {"containers": [A1]}, {"containers": [B, A1]}),
        (
            {"containers": [A1, B]},
            {"containers": [{"name": "a", "$patch": "delete"}]},
            {"containers": [B]},
        ),
        (
            {"containers": [A1, B]},
            {"containers": [A2, {"$patch": "replace"}]},
            {"containers": [A2]},
        ),
        (
            {"containers": [B, A1]},
            {"$setElementOrder/containers": [{"name": "a"}, {"name": "b"}], "containers": [A2]},
            {"containers": [A2, B]},
        ),
        (
            {"containers": [B, A1]},
            {"$setElementOrder/containers": [{"name": "a"}, {"name": "b"}]},
            {"containers": [A1, B]},
        ),
        ({"tolerations": [{"key": "a"}]}, {"tolerations": [B]}, {"tolerations": [B]}),
        (
            {"podIPs": [{"ip": "1"}]},
            {"podIPs": [{"ip": "2"}]},
            {"podIPs": [{"ip": "1"}, {"ip": "2"}]},
        ),
        ({"finalizers": ["a"]}, {"finalizers": ["b", "a"]}, {"finalizers": ["a", "b"]}),
        ({"finalizers": ["a"]}, {"$deleteFromPrimitiveList/finalizers": ["a"]}, {"finalizers": []}),
        (
            {"ports": [{"containerPort": 1, "name": "x"}]},
            {"ports": [{"containerPort": 1, "name": "y"}]},
            {"ports": [{"containerPort": 1, "name": "y"}]},
        ),
        ({"ports": [{"port": 1}]}, {"ports": [{"port": 2}]}, {"ports": [{"port": 1}, {"port": 2}]}),
        ({"a": {"b": 1}}, {"a": {"$patch": "replace", "c": 2}}, {"a": {"c": 2}}),
        ({"a": {"b": 1}}, {"a": {"$patch": "delete"}}, {"a": {}}),
        ({"a": {"b": 1, "c": 2}}, {"a": {"$retainKeys": ["c"]}}, {"a": {"c": 2}}),
        ({"a": 1}, {"a": None, "b": {"c": None}}, {"b": {}}),
    ],
)
def test_strategic(target: Any, patch: Any, expected: Any) -> None:
    assert strategic(target, patch) == expected


def test_strategic_needs_the_key() -> None:
    with pytest.raises(ApiErrorResponse, match="merge key: type"):
        strategic({}, {"conditions": [{"status": "True"}]})


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        ({"op": "add", "path": "/b", "value": 1}, {"a": {"x/y": [1, 2]}, "b": 1}),
        ({"op": "add", "path": "/a/x~1y/-", "value": 3}, {"a": {"x/y": [1, 2, 3]}}),
        ({"op": "add", "path": "/a/x~1y/0", "value": 0}, {"a": {"x/y": [0, 1, 2]}}),
        ({"op": "replace", "path": "/a/x~1y/1", "value": 9}, {"a": {"x/y": [1, 9]}}),
        ({"op": "remove", "path": "/a/x~1y/0"}, {"a": {"x/y": [2]}}),
        ({"op": "test", "path": "/a/x~1y/0", "value": 1}, {"a": {"x/y": [1, 2]}}),
    ],
)
def test_json_patch(operation: Any, expected: Any) -> None:
    target = {"a": {"x/y": [1, 2]}}
    assert json_patch(target, [operation]) == expected
    assert target == {"a": {"x/y": [1, 2]}}


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "test", "path": "/a", "value": 2},
        {"op": "remove", "path": "/b"},
        {"op": "replace", "path": "/b", "value": 1},
        {"op": "add", "path": "/b/c", "value": 1},
        {"op": "copy", "path": "/a"},
    ],
)
def test_json_patch_fails(operation: Any) -> None:
    with pytest.raises(ApiErrorResponse):
        json_patch({"a": 1}, [operation])
