"""Labels, annotations and taints of the virtual node: which are the bridge's, and which people's.

What the bridge set last is remembered on the Node (`ANNOTATION_APPLIED`), so that three things are
known of each: what was set, what is there, and what is wanted. From that follows (`patch`):

- What is wanted anew, or otherwise than before, is set, unless somebody gave it another value.
- What is wanted no more goes, unless somebody gave it another value.
- As long as the same is wanted, what people change or remove stays as they have it.
- What says what the node is (`is_fixed`, architecture, operating system) is put right in any case.

So a taint that `kubectl taint` removed does not come back with the next join, and one that the next
join is asked for takes effect. All are pure functions.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from translators.identity import DOMAIN
from translators.objects import Object, metadata

#: What the bridge set last, as JSON: ``labels``, ``annotations``, and ``taints`` as ``KEY:EFFECT``
#: to value.
ANNOTATION_APPLIED = f"{DOMAIN}/applied"

LABEL_HOSTNAME = "kubernetes.io/hostname"
LABEL_ARCH, LABEL_OS = "kubernetes.io/arch", "kubernetes.io/os"
#: Their former names, which home's node controller copies and never takes back by itself
#: (labelReconcileInfo in pkg/controller/nodelifecycle).
LABEL_BETA_ARCH, LABEL_BETA_OS = f"beta.{LABEL_ARCH}", f"beta.{LABEL_OS}"
LABEL_TYPE = "type"
#: Cloud controllers and load balancers must not look for a machine behind the node.
LABEL_NO_BALANCER = "node.kubernetes.io/exclude-from-external-load-balancers"

_FIXED = frozenset({LABEL_HOSTNAME, LABEL_TYPE, LABEL_NO_BALANCER})
#: As by a kubelet (updateDefaultLabels in pkg/kubelet/kubelet_node_status.go).
_MACHINE = frozenset({LABEL_ARCH, LABEL_OS, LABEL_BETA_ARCH, LABEL_BETA_OS})


@dataclass(frozen=True, slots=True)
class NodeMetadata:
    """What schedulers and people select a Node by, and what they read on it."""

    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Object, ...] = ()
    """As in a Node's ``spec.taints``; no two have the same key and effect."""


def is_fixed(key: str) -> bool:
    """Whether the label or annotation is the bridge's own, and nobody else's to set."""
    domain = key.rpartition("/")[0]
    return key in _FIXED or domain == DOMAIN or domain.endswith(f".{DOMAIN}")


def applied_annotation(wanted: NodeMetadata) -> dict[str, str]:
    """The annotation that remembers what is set, but for what is always put right."""
    said = {
        "labels": {k: v for k, v in wanted.labels.items() if not is_fixed(k)},
        "annotations": {k: v for k, v in wanted.annotations.items() if not is_fixed(k)},
        "taints": _by_key(wanted.taints),
    }
    found = {kind: marks for kind, marks in said.items() if marks}
    return {ANNOTATION_APPLIED: json.dumps(found, sort_keys=True, separators=(",", ":"))}


def metadata_patch(node: Object, wanted: NodeMetadata) -> Object:
    """The merge patch that gives the Node what is wanted; {} where there is nothing to do.

    The list of taints is replaced whole: with one in it, the patch has the Node's version, so that
    the API server refuses it (Conflict) where somebody else has changed the Node since.
    """
    meta, last = metadata(node), _last(node)
    there = meta.get("annotations") or {}
    labels = _changes(meta.get("labels") or {}, last.get("labels", {}), wanted.labels, _put_right)
    notes = _changes(there, last.get("annotations", {}), wanted.annotations, _put_right)
    notes |= {
        key: value for key, value in applied_annotation(wanted).items() if there.get(key) != value
    }
    found: Object = {}
    if labels:
        found["labels"] = labels
    if notes:
        found["annotations"] = notes
    result: Object = {"metadata": found} if found else {}
    taints = (node.get("spec") or {}).get("taints") or []
    if changed := _changes(_by_key(taints), last.get("taints", {}), _by_key(wanted.taints)):
        result["spec"] = {"taints": _taints(taints, changed)}
        found["resourceVersion"] = meta.get("resourceVersion")
        result["metadata"] = found
    return result


def _changes(
    there: Mapping[str, str],
    last: Mapping[str, str],
    wanted: Mapping[str, str],
    put_right: Callable[[str], bool] = lambda _: False,
) -> dict[str, str | None]:
    """What to set, and what to remove (None), by the rules of the module."""
    changes: dict[str, str | None] = {}
    for key, value in wanted.items():
        before = there.get(key)
        if before == value:
            continue
        anew = last.get(key) != value
        if put_right(key) or (anew and before in (None, last.get(key))):
            changes[key] = value
    for key, value in last.items():
        if key not in wanted and there.get(key) == value:
            changes[key] = None
    return changes


def _put_right(key: str) -> bool:
    return is_fixed(key) or key in _MACHINE


def _last(node: Object) -> Object:
    """What `applied` remembered; {} where somebody made it unreadable."""
    text = (metadata(node).get("annotations") or {}).get(ANNOTATION_APPLIED) or "{}"
    try:
        found: Any = json.loads(text)
    except json.JSONDecodeError:
        return {}
    if not isinstance(found, dict):
        return {}
    return {kind: said for kind, said in found.items() if isinstance(said, dict)}


def _by_key(taints: Any) -> dict[str, str]:
    return {_name(taint): str(taint.get("value") or "") for taint in taints}


def _name(taint: Object) -> str:
    return f"{taint.get('key')}:{taint.get('effect')}"


def _taints(there: list[Object], changes: Mapping[str, str | None]) -> list[Object]:
    """The list with the changes in it; other people's taints as they are."""
    kept = [taint for taint in there if _name(taint) not in changes]
    for name, value in changes.items():
        if value is not None:
            key, _, effect = name.rpartition(":")
            kept.append({"key": key, "effect": effect} | ({"value": value} if value else {}))
    return kept
