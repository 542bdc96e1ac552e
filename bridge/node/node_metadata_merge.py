"""Merges the bridge's labels, annotations and taints into the live Node. Pure.

An annotation (`ANNOTATION_APPLIED`) records what the bridge set last, as in `kubectl apply`. So the
last applied, the live and the desired value of each key are known (`metadata_patch`):

- A new or changed desired value is set, unless a user set another value in the meantime.
- A key that is no longer desired is removed, unless a user set another value.
- While the desired value is unchanged, edits and removals by users stay.
- Keys that identify the node (`is_fixed`, architecture, operating system) are always restored.

So a taint that `kubectl taint` removed does not return with the next join, and a taint that the
next join adds takes effect.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from translators.object_accessors import Object, metadata
from translators.ownership_labels import DOMAIN, LABEL_COST, LABEL_TIER

#: Last applied values as JSON: ``labels``, ``annotations``, and ``taints`` as ``KEY:EFFECT`` to
#: value.
ANNOTATION_APPLIED = f"{DOMAIN}/applied"

LABEL_HOSTNAME = "kubernetes.io/hostname"
LABEL_ARCH, LABEL_OS = "kubernetes.io/arch", "kubernetes.io/os"
#: Deprecated names, which home's node controller copies and never removes (labelReconcileInfo in
#: pkg/controller/nodelifecycle).
LABEL_BETA_ARCH, LABEL_BETA_OS = f"beta.{LABEL_ARCH}", f"beta.{LABEL_OS}"
LABEL_TYPE = "type"
#: Keeps cloud controllers from adding the virtual node to load balancers.
LABEL_NO_BALANCER = "node.kubernetes.io/exclude-from-external-load-balancers"

_OF_USERS = frozenset({LABEL_TIER, LABEL_COST})
_FIXED = frozenset({LABEL_HOSTNAME, LABEL_TYPE, LABEL_NO_BALANCER})
#: Restored, as by a kubelet (updateDefaultLabels in pkg/kubelet/kubelet_node_status.go).
_PLATFORM = frozenset({LABEL_ARCH, LABEL_OS, LABEL_BETA_ARCH, LABEL_BETA_OS})
#: Labels of the domains of Kubernetes that a kubelet sets.
_KUBELET_LABELS = frozenset(
    {
        LABEL_HOSTNAME,
        *_PLATFORM,
        "topology.kubernetes.io/zone",
        "topology.kubernetes.io/region",
        "failure-domain.beta.kubernetes.io/zone",
        "failure-domain.beta.kubernetes.io/region",
        "beta.kubernetes.io/instance-type",
        "node.kubernetes.io/instance-type",
    }
)


@dataclass(frozen=True, slots=True)
class NodeMetadata:
    """Labels, annotations and taints of a Node."""

    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Object, ...] = ()
    """As in ``spec.taints``; key and effect are unique."""


def is_fixed(key: str) -> bool:
    """Whether the label or annotation is the bridge's own, so that no option may set it."""
    domain = key.rpartition("/")[0]
    is_own = domain == DOMAIN or domain.endswith(f".{DOMAIN}")
    return key in _FIXED or (is_own and key not in _OF_USERS)


def applied_annotation(wanted: NodeMetadata) -> dict[str, str]:
    """The annotation that records what is set, except keys that are always restored."""
    values = {
        "labels": {k: v for k, v in wanted.labels.items() if not is_fixed(k)},
        "annotations": {k: v for k, v in wanted.annotations.items() if not is_fixed(k)},
        "taints": _by_key(wanted.taints),
    }
    recorded = {kind: keys for kind, keys in values.items() if keys}
    return {ANNOTATION_APPLIED: json.dumps(recorded, sort_keys=True, separators=(",", ":"))}


def permitted_at_registration(wanted: NodeMetadata) -> NodeMetadata:
    """The part of the metadata with which a node's own credential may create the Node, by the rules
    of the NodeRestriction admission plugin. The labels that are missing are set afterwards."""
    labels = {key: value for key, value in wanted.labels.items() if _may_register(key)}
    return NodeMetadata(labels, wanted.annotations, wanted.taints)


def _may_register(label: str) -> bool:
    """IsKubeletLabel in k8s.io/kubelet/pkg/apis/well_known_labels.go; labels outside the domains of
    Kubernetes are free."""
    domain = label.rpartition("/")[0]
    if not any(domain == it or domain.endswith(f".{it}") for it in ("kubernetes.io", "k8s.io")):
        return True
    of_kubelets = ("kubelet.kubernetes.io", "node.kubernetes.io")
    return label in _KUBELET_LABELS or any(
        domain == it or domain.endswith(f".{it}") for it in of_kubelets
    )


def metadata_patch(node: Object, wanted: NodeMetadata) -> Object:
    """The merge patch from the Node to ``wanted``; {} if nothing changes.

    A merge patch replaces the list of taints. So with taints the patch has the Node's
    resourceVersion, and the API server rejects it (Conflict) if the Node has changed since.
    """
    meta, last = metadata(node), _last_applied(node)
    live_annotations = meta.get("annotations") or {}
    labels = _changes(meta.get("labels") or {}, last.get("labels", {}), wanted.labels, _is_enforced)
    annotations = _changes(
        live_annotations, last.get("annotations", {}), wanted.annotations, _is_enforced
    )
    annotations |= {
        key: value
        for key, value in applied_annotation(wanted).items()
        if live_annotations.get(key) != value
    }
    changes = {"labels": labels, "annotations": annotations}
    changed_metadata: Object = {kind: values for kind, values in changes.items() if values}
    patch: Object = {"metadata": changed_metadata} if changed_metadata else {}
    taints = (node.get("spec") or {}).get("taints") or []
    if changed := _changes(_by_key(taints), last.get("taints", {}), _by_key(wanted.taints)):
        patch["spec"] = {"taints": _taints(taints, changed)}
        changed_metadata["resourceVersion"] = meta.get("resourceVersion")
        patch["metadata"] = changed_metadata
    return patch


def _changes(
    live: Mapping[str, str],
    last_applied: Mapping[str, str],
    wanted: Mapping[str, str],
    is_enforced: Callable[[str], bool] = lambda _: False,
) -> dict[str, str | None]:
    """The values to set, and those to remove (None), by the rules of the module docstring."""
    changes: dict[str, str | None] = {}
    for key, value in wanted.items():
        before = live.get(key)
        if before == value:
            continue
        is_new = last_applied.get(key) != value
        if is_enforced(key) or (is_new and before in (None, last_applied.get(key))):
            changes[key] = value
    for key, value in last_applied.items():
        if key not in wanted and live.get(key) == value:
            changes[key] = None
    return changes


def _is_enforced(key: str) -> bool:
    return is_fixed(key) or key in _PLATFORM


def _last_applied(node: Object) -> Object:
    """What `applied_annotation` recorded; {} if it is unreadable."""
    text = (metadata(node).get("annotations") or {}).get(ANNOTATION_APPLIED) or "{}"
    try:
        record: Any = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(record, dict):
        return {}
    return {kind: values for kind, values in record.items() if isinstance(values, dict)}


def _by_key(taints: Any) -> dict[str, str]:
    return {_name(taint): str(taint.get("value") or "") for taint in taints}


def _name(taint: Object) -> str:
    return f"{taint.get('key')}:{taint.get('effect')}"


def _taints(live: list[Object], changes: Mapping[str, str | None]) -> list[Object]:
    """The live list with the changes applied; unmanaged taints stay."""
    kept = [taint for taint in live if _name(taint) not in changes]
    for name, value in changes.items():
        if value is not None:
            key, _, effect = name.rpartition(":")
            kept.append({"key": key, "effect": effect} | ({"value": value} if value else {}))
    return kept
