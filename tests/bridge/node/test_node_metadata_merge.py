"""Merge of last applied, live and desired labels, annotations and taints."""

from __future__ import annotations

import pytest

from bridge.node import node_metadata_merge
from bridge.node.node_metadata_merge import ANNOTATION_APPLIED, NodeMetadata
from tests.fakeapi.patching import merge
from translators.object_accessors import Object


def _node(
    there: dict[str, str], applied: NodeMetadata | None, taints: tuple[Object, ...] | None = None
) -> Object:
    meta: Object = {"labels": there, "resourceVersion": "7"}
    if applied is not None:
        meta["annotations"] = node_metadata_merge.applied_annotation(applied)
    return {"metadata": meta, "spec": {"taints": list(taints)} if taints else {}}


def _labels(key: str, last: str | None, there: str | None, wanted: str | None) -> str | None:
    """The value of the label after the merge."""
    last_set = NodeMetadata({key: last} if last is not None else {})
    node = _node({key: there} if there is not None else {}, last_set)
    wishes = NodeMetadata({key: wanted} if wanted is not None else {})
    after = merge(node, node_metadata_merge.metadata_patch(node, wishes))
    assert node_metadata_merge.metadata_patch(after, wishes) == {}, "once is enough"
    found: str | None = after["metadata"]["labels"].get(key)
    return found


@pytest.mark.parametrize(
    ("last", "there", "wanted", "then"),
    [
        (None, None, "a", "a"),
        ("a", "a", "b", "b"),
        ("a", "a", None, None),
        ("a", "a", "a", "a"),
        ("a", "x", "a", "x"),
        ("a", "x", "b", "x"),
        ("a", "x", None, "x"),
        ("a", None, "a", None),
        ("a", None, "b", "b"),
        ("a", None, None, None),
        (None, "x", "a", "x"),
        (None, "x", None, "x"),
        (None, "a", "a", "a"),
        ("a", "b", "b", "b"),
        (None, None, "", ""),
    ],
)
def test_label_follows_desired_value_unless_changed_by_others(
    last: str | None, there: str | None, wanted: str | None, then: str | None
) -> None:
    assert _labels("team", last, there, wanted) == then
    assert _labels("topology.kubernetes.io/zone", last, there, wanted) == then


@pytest.mark.parametrize(
    "key", ["kubernetes.io/hostname", "type", "cluster-bridge.io/remote", "kubernetes.io/arch"]
)
@pytest.mark.parametrize("there", ["x", None])
def test_fixed_labels_are_restored(key: str, there: str | None) -> None:
    assert _labels(key, "a", there, "a") == "a"


def test_label_of_no_longer_shared_architecture_is_removed() -> None:
    assert _labels("kubernetes.io/arch", "arm64", "arm64", None) is None
    assert _labels("kubernetes.io/arch", "arm64", "amd64", None) == "amd64"


def test_unmanaged_taints_are_left_unchanged() -> None:
    ours = {"key": "a", "value": "1", "effect": "NoSchedule"}
    theirs = {"key": "a", "effect": "NoExecute", "timeAdded": "2030-01-01T00:00:00Z"}
    node = _node({}, NodeMetadata(taints=(ours,)), (theirs, ours))
    changed = node_metadata_merge.metadata_patch(
        node, NodeMetadata(taints=({**ours, "value": "2"},))
    )

    assert changed["spec"] == {"taints": [theirs, {**ours, "value": "2"}]}
    assert changed["metadata"]["resourceVersion"] == "7"
    assert node_metadata_merge.metadata_patch(node, NodeMetadata())["spec"] == {"taints": [theirs]}
    assert node_metadata_merge.metadata_patch(node, NodeMetadata(taints=(ours,))) == {}


def test_patch_without_taints_has_no_resource_version() -> None:
    patch = node_metadata_merge.metadata_patch(_node({}, NodeMetadata()), NodeMetadata({"a": "b"}))
    assert "resourceVersion" not in patch["metadata"]
    assert "spec" not in patch


NESTED, DIGITS = "[" * 100_000, f'{{"labels":{"9" * 5000}}}'


@pytest.mark.parametrize(
    "text",
    ["", "nonsense", "[]", '{"labels":["a"]}', NESTED, DIGITS, None],
    ids=["empty", "nonsense", "list", "list of labels", "nested", "digits", "none"],
)
def test_without_applied_annotation_unmanaged_values_stay(text: str | None) -> None:
    node = _node({"a": "x"}, None)
    if text is not None:
        node["metadata"]["annotations"] = {ANNOTATION_APPLIED: text}
    after = merge(
        node, node_metadata_merge.metadata_patch(node, NodeMetadata({"a": "1", "b": "2"}))
    )
    assert after["metadata"]["labels"] == {"a": "x", "b": "2"}


@pytest.mark.parametrize(
    ("key", "fixed"),
    [
        ("cluster-bridge.io/x", True),
        ("cluster-bridge.io/tier", False),
        ("cluster-bridge.io/cost", False),
        ("sub.cluster-bridge.io/x", True),
        ("type", True),
        ("kubernetes.io/hostname", True),
        ("kubernetes.io/arch", False),
        ("mycluster-bridge.io/x", False),
        ("team", False),
    ],
)
def test_fixed_keys_include_kubernetes_prefixes(key: str, fixed: bool) -> None:
    assert node_metadata_merge.is_fixed(key) is fixed
