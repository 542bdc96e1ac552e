"""The free room of a cluster: its nodes, grouped by labels, taints and free resources.

A bridge publishes the groups of its remote at home, in a bounded JSON text: what exceeds the bound
is rounded down until more nodes are equal, and dropped last. Groups therefore never claim room that
the nodes do not have. `from_json` verifies every field, because a ConfigMap can be written by
others.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from translators.capacity.node_capacity import free_resources
from translators.capacity.pod_requests import PODS, Amounts, parse_resource_list, requests_of
from translators.object_accessors import Object, is_ready, metadata, name_of
from translators.ownership_labels import LABEL_VIRTUAL

#: Bytes of the published text.
MAX_BYTES = 200 * 1024
#: Limits of a text that another client could have written.
_MAX_READ_BYTES, _MAX_GROUPS, _MAX_AMOUNT = 1024 * 1024, 20_000, 2**63 - 1
#: Significant bits of an amount that are kept, one after the other until the text fits.
_BITS = (8, 6, 4, 3, 2, 1)


class RoomError(ValueError):
    """The text does not describe groups of nodes."""


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """Nodes with equal labels, taints and free resources."""

    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Mapping[str, str], ...] = ()
    """Each with ``key``, ``effect`` and optionally ``value``."""
    free: Mapping[str, int] = field(default_factory=dict)
    """By resource, what pods leave of *each* node's allocatable, in the units of
    `translators.capacity.pod_requests.Amounts`; without ``pods``."""
    pods: int = 0
    """How many more pods each node takes."""
    count: int = 1
    """The number of nodes."""
    elastic: bool = False
    """Whether the nodes do not exist yet: an autoscaler adds them for pods that wait."""

    @property
    def amounts(self) -> Amounts:
        """The free resources of each node, with ``pods``."""
        return {**self.free, PODS: self.pods}

    def with_amounts(self, amounts: Mapping[str, int], count: int) -> NodeGroup:
        """The same nodes with other free resources."""
        free = {key: amount for key, amount in amounts.items() if key != PODS}
        return replace(self, free=free, pods=amounts.get(PODS, 0), count=count)


def is_schedulable(node: Object) -> bool:
    """Whether a scheduler can bind a pod that tolerates the node's taints. A virtual node is no
    node with room of its own."""
    labels = metadata(node).get("labels") or {}
    cordoned = bool((node.get("spec") or {}).get("unschedulable"))
    return not cordoned and LABEL_VIRTUAL not in labels and is_ready(node)


def group_nodes(
    nodes: Iterable[Object],
    pods: Iterable[Object],
    *,
    counts: Callable[[Object], bool] = is_schedulable,
    label_keys: Collection[str] | None = None,
) -> tuple[NodeGroup, ...]:
    """The groups of a cluster's nodes. ``pods`` are its pods; those without a node and those that
    have ended use nothing. ``label_keys``: the labels to keep, by default all but the host name."""
    used: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for pod in pods:
        node = (pod.get("spec") or {}).get("nodeName")
        if node and (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed"):
            used[node].update(requests_of(pod))
    return merge_equal(
        node_group(
            node,
            free_resources(
                parse_resource_list((node.get("status") or {}).get("allocatable")),
                used.get(name_of(node), {}),
            ),
            label_keys=label_keys,
        )
        for node in nodes
        if counts(node)
    )


def node_group(
    node: Object, amounts: Mapping[str, int], *, label_keys: Collection[str] | None = None
) -> NodeGroup:
    """The group of one node with these free resources."""
    labels = {
        key: value
        for key, value in (metadata(node).get("labels") or {}).items()
        if (key in label_keys if label_keys is not None else key != "kubernetes.io/hostname")
    }
    taints = tuple(
        {key: str(it[key]) for key in ("key", "value", "effect") if it.get(key)}
        for it in (node.get("spec") or {}).get("taints") or ()
    )
    return NodeGroup(labels=labels, taints=taints).with_amounts(amounts, 1)


def merge_equal(groups: Iterable[NodeGroup]) -> tuple[NodeGroup, ...]:
    """Adds up the counts of groups that differ in nothing else; in a stable order, the elastic
    groups last."""
    merged: dict[tuple[Any, ...], NodeGroup] = {}
    for group in groups:
        if group.count <= 0:
            continue
        key = (*_class_of(group), group.pods, tuple(sorted(group.free.items())))
        known = merged.get(key)
        merged[key] = replace(group, count=group.count + (known.count if known else 0))
    return tuple(merged[key] for key in sorted(merged))


def to_json(groups: Iterable[NodeGroup], limit: int = MAX_BYTES) -> str:
    """The groups as JSON of at most ``limit`` bytes (at least 2). Rounds amounts down, and at last
    drops the groups with the fewest nodes, to stay below."""
    exact = merge_equal(groups)
    text = _encode(exact)
    rounded = exact
    for bits in _BITS:
        if len(text) <= limit:
            return text
        rounded = merge_equal(_rounded_down(it, bits) for it in exact)
        text = _encode(rounded)
    kept = sorted(rounded, key=lambda it: it.count, reverse=True)
    while len(text) > limit and kept:
        # In proportion, so that few rounds suffice.
        kept = kept[: min(len(kept) - 1, len(kept) * limit // len(text))]
        text = _encode(merge_equal(kept))
    return text


def from_json(text: str) -> tuple[NodeGroup, ...]:
    """The groups of a text that `to_json` wrote. Raises RoomError."""
    if len(text) > _MAX_READ_BYTES:
        raise RoomError("the text is too long")
    try:
        items = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RoomError(f"no JSON: {error}") from None
    if not isinstance(items, list) or len(items) > _MAX_GROUPS:
        raise RoomError(f"not a list of at most {_MAX_GROUPS} groups")
    return merge_equal(_read_group(it) for it in items)


def _class_of(group: NodeGroup) -> tuple[bool, tuple[Any, ...], tuple[Any, ...]]:
    taints = tuple(sorted(tuple(sorted(it.items())) for it in group.taints))
    return group.elastic, tuple(sorted(group.labels.items())), taints


def _rounded_down(group: NodeGroup, bits: int) -> NodeGroup:
    amounts = {
        key: amount >> shift << shift
        for key, amount in group.amounts.items()
        for shift in [max(0, amount.bit_length() - bits)]
    }
    return group.with_amounts(amounts, group.count)


def _encode(groups: Iterable[NodeGroup]) -> str:
    items = [
        {
            **({"labels": dict(sorted(it.labels.items()))} if it.labels else {}),
            **({"taints": [dict(sorted(t.items())) for t in it.taints]} if it.taints else {}),
            "free": dict(sorted(it.free.items())),
            "pods": it.pods,
            "count": it.count,
            **({"elastic": True} if it.elastic else {}),
        }
        for it in groups
    ]
    # Escaped, so that the length counts bytes.
    return json.dumps(items, separators=(",", ":"), ensure_ascii=True)


def _read_group(item: Any) -> NodeGroup:
    if not isinstance(item, dict):
        raise RoomError("a group is not an object")
    taints = item.get("taints", [])
    if not isinstance(taints, list) or not all(
        isinstance(it, dict) and isinstance(it.get("key"), str) for it in taints
    ):
        raise RoomError("taints is not a list of objects with a key")
    return NodeGroup(
        labels=_texts(item.get("labels", {}), "labels"),
        taints=tuple(_texts(it, "taints") for it in taints),
        free={
            _text(key, "free"): _amount(value, "free")
            for key, value in _mapping(item.get("free", {}), "free").items()
        },
        pods=_amount(item.get("pods"), "pods"),
        count=_amount(item.get("count"), "count"),
        elastic=item.get("elastic", False) is True,
    )


def _texts(value: Any, name: str) -> dict[str, str]:
    return {key: _text(it, name) for key, it in _mapping(value, name).items()}


def _mapping(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise RoomError(f"{name} is not an object")
    return value


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise RoomError(f"{name} has a value that is not text")
    return value


def _amount(value: Any, name: str) -> int:
    # A boolean is an int to isinstance.
    if type(value) is not int or not 0 <= value <= _MAX_AMOUNT:
        raise RoomError(f"{name} is not an amount")
    return value
