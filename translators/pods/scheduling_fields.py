"""Translates node selection, affinity, tolerations and priority of pods.

- Home's scheduler has already matched node selectors and node affinity against the labels of the
  virtual node. Only the labels that every kubelet sets to its platform are kept, for a remote with
  several platforms. All others are dropped silently: they do not describe the remote's nodes.
- If the virtual node stands for some of the remote's nodes (``--node-selector``), the pod is
  restricted to them. A pod that selects other nodes stays Pending as unschedulable.
- Pod affinity, anti-affinity and topology spread apply to the remote's nodes and pods. Namespaces
  are translated. A term that selects namespaces by other labels than the name is dropped, with an
  Event: the remote lacks the labels of home's namespaces.
- The priority class is kept if the remote has a PriorityClass of that name.
- Tolerations of virtual nodes are dropped silently. With ``--control-plane-nodes deny``, the
  default, pods do not tolerate the taints of the remote's control plane nodes either: such a
  toleration is dropped, and one without a key, which tolerates every taint, is replaced by
  tolerations of the taints by which Kubernetes reports the conditions of a node. Nodes with other
  taints then need a toleration by key. A control plane node without a taint runs pods like any
  other.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from translators.field_paths import FieldMessage, set_or_remove
from translators.object_accessors import HomeNamespace, Object
from translators.ownership_labels import DOMAIN, LABEL_HOME
from translators.translation_options import Policy
from translators.virtual_node_identity import Identity

#: Labels that every kubelet sets to its platform, with the same meaning in any cluster.
PLATFORM_LABELS = frozenset(
    {"kubernetes.io/arch", "kubernetes.io/os", "node.kubernetes.io/windows-build"}
)
#: The label with the namespace's name, set by every API server.
_NAMESPACE_NAME = "kubernetes.io/metadata.name"
#: Prefix of the PriorityClasses of cluster components (SystemPriorityClassPrefix in
#: pkg/apis/scheduling).
_SYSTEM_CLASS = "system-"

#: Keys of the taints of control plane nodes: kubeadm's, and those of older and other distributions.
CONTROL_PLANE_TAINTS = tuple(
    f"node-role.kubernetes.io/{role}"
    for role in ("control-plane", "master", "controlplane", "etcd")
)
#: Keys of the taints that Kubernetes itself sets by a node's conditions (TaintNode* in
#: k8s.io/api/core/v1), except for a node out of service.
CONDITION_TAINTS = tuple(
    f"node.kubernetes.io/{condition}"
    for condition in (
        "not-ready",
        "unreachable",
        "unschedulable",
        "memory-pressure",
        "disk-pressure",
        "pid-pressure",
        "network-unavailable",
    )
)
_ALLOW = "--control-plane-nodes allow keeps it"

#: The lists of terms in pod affinity and anti-affinity.
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"

#: A toleration as a text that is the same for equal ones only, so that thousands are compared in
#: linear time.
toleration_text = json.JSONEncoder(sort_keys=True).encode


def translate_node_selector(selector: Object | None) -> Object:
    """The node selector without labels that only describe home's nodes."""
    return {key: value for key, value in (selector or {}).items() if key in PLATFORM_LABELS}


def restrict_to_nodes(spec: Object, selector: Mapping[str, str]) -> None:
    """Restricts a remote pod to nodes with these labels. A different value that the pod selects
    itself is kept beside them, so that the pod matches no node."""
    own = spec.get("nodeSelector") or {}
    set_or_remove(spec, "nodeSelector", {**selector, **own})
    expressions = [
        {"key": key, "operator": "In", "values": [value]}
        for key, value in selector.items()
        if own.get(key, value) != value
    ]
    if not expressions:
        return
    affinity = spec.get("affinity") or {}
    nodes = affinity.get("nodeAffinity") or {}
    required = nodes.get(_REQUIRED) or {"nodeSelectorTerms": [{}]}
    # Terms are alternatives: each needs the additional expressions.
    terms = [
        {**term, "matchExpressions": [*(term.get("matchExpressions") or ()), *expressions]}
        for term in required["nodeSelectorTerms"]
    ]
    nodes = {**nodes, _REQUIRED: {**required, "nodeSelectorTerms": terms}}
    spec["affinity"] = {**affinity, "nodeAffinity": nodes}


def own_tolerations(home: Object) -> list[Object]:
    """The home pod's tolerations, except those for the taints of virtual nodes."""
    tolerations = (home.get("spec") or {}).get("tolerations") or ()
    return [it for it in tolerations if not str(it.get("key", "")).startswith(DOMAIN + "/")]


def translate_tolerations(home: Object, policy: Policy) -> list[Object]:
    """The tolerations of the remote pod."""
    if policy.control_plane_nodes == "allow":
        return own_tolerations(home)
    translated: dict[str, Object] = {}
    for toleration in own_tolerations(home):
        replacements = [toleration]
        if not toleration.get("key"):
            replacements = [{**toleration, "key": key} for key in CONDITION_TAINTS]
        elif toleration["key"] in CONTROL_PLANE_TAINTS:
            continue
        for replacement in replacements:
            translated.setdefault(toleration_text(replacement), replacement)
    return list(translated.values())


def dropped_tolerations(home: Object, policy: Policy) -> Iterator[FieldMessage]:
    """The messages for tolerations that `translate_tolerations` drops or replaces."""
    if policy.control_plane_nodes == "allow":
        return
    for number, toleration in enumerate((home.get("spec") or {}).get("tolerations") or ()):
        field, key = f"spec.tolerations[{number}]", toleration.get("key")
        if not key:
            message = "tolerates every taint; replaced by tolerations of node conditions"
            yield FieldMessage(field, f"{message} ({_ALLOW})")
        elif key in CONTROL_PLANE_TAINTS:
            yield FieldMessage(field, f"tolerates control plane nodes of the remote ({_ALLOW})")


def dropped_priority_class(
    name: str | None, known: frozenset[str], *, are_known: bool = True
) -> FieldMessage | None:
    """The message for a dropped priority class; None if it is kept. ``known`` are the remote's,
    unless ``are_known`` is false."""
    if not name:
        return None
    if name.startswith(_SYSTEM_CLASS):
        reason = "is reserved for cluster components"
    elif not are_known:
        reason = "is unknown: the bridge may not list the remote cluster's PriorityClasses"
    elif name not in known:
        reason = "is not a PriorityClass of the remote cluster"
    else:
        return None
    return FieldMessage(
        "spec.priorityClassName", f"{name} {reason}; the pod has the default priority"
    )


def translate_affinity(
    wanted: Object | None, identity: Identity, dropped: list[FieldMessage]
) -> Object:
    """Affinity for the remote's nodes and pods, with translated namespaces."""
    result = dict(wanted or {})
    set_or_remove(result, "nodeAffinity", translate_node_affinity(result.get("nodeAffinity")))
    for kind in ("podAffinity", "podAntiAffinity"):
        if not result.get(kind):
            continue
        terms = dict(result[kind])
        for when in (_REQUIRED, _PREFERRED):
            if when in terms:
                location = f"spec.affinity.{kind}.{when}"
                set_or_remove(
                    terms, when, _pod_terms(terms[when] or (), identity, location, dropped)
                )
        set_or_remove(result, kind, terms)
    return result


def translate_node_affinity(affinity: Object | None) -> Object:
    """Node affinity without node names and labels that only describe home's nodes."""
    translated = dict(affinity or {})
    required = translated.pop(_REQUIRED, None) or {}
    terms = [_node_term(term) for term in required.get("nodeSelectorTerms") or ()]
    # Terms are alternatives: an empty term matches every node.
    if terms and all(terms):
        translated[_REQUIRED] = {**required, "nodeSelectorTerms": terms}
    preferences = [
        {**preference, "preference": _node_term(preference.get("preference"))}
        for preference in translated.get(_PREFERRED) or ()
    ]
    set_or_remove(translated, _PREFERRED, [it for it in preferences if it["preference"]])
    return translated


def _node_term(term: Object | None) -> Object:
    """The term without node names (matchFields) and labels of home's nodes."""
    expressions = [
        e for e in (term or {}).get("matchExpressions") or () if e.get("key") in PLATFORM_LABELS
    ]
    return {"matchExpressions": expressions} if expressions else {}


def _pod_terms(
    terms: Any, identity: Identity, location: str, dropped: list[FieldMessage]
) -> list[Object]:
    """The (weighted) terms, without those whose namespaces are unknown in the remote."""
    kept = []
    for number, term in enumerate(terms):
        inner = "podAffinityTerm" if "podAffinityTerm" in term else ""
        changed = _pod_term(term[inner] if inner else term, identity)
        if changed is None:
            path = ".".join(filter(None, (f"{location}[{number}]", inner, "namespaceSelector")))
            message = "the remote lacks the labels of home's namespaces; list them instead"
            dropped.append(FieldMessage(path, message))
        else:
            kept.append({**term, inner: changed} if inner else changed)
    return kept


def _pod_term(term: Object, identity: Identity) -> Object | None:
    """The term with translated namespaces; None if the remote cannot determine the namespaces.
    Listed and selected namespaces are combined, so the list remains valid without the selector."""
    term = remove_merged_label_keys(term)
    if term.get("namespaces"):
        names = [identity.remote_namespace(HomeNamespace(name)) for name in term["namespaces"]]
        term = {**term, "namespaces": names}
    if term.get("namespaceSelector") is None:
        return term
    selector = _namespace_selector(term["namespaceSelector"], identity)
    if selector is not None:
        return {**term, "namespaceSelector": selector}
    if term.get("namespaces"):
        return {key: value for key, value in term.items() if key != "namespaceSelector"}
    return None


def _namespace_selector(selector: Object, identity: Identity) -> Object | None:
    """The selector of the same namespaces in the remote: all mapped namespaces of this home, or
    some by name; None if it selects other labels."""
    labels = selector.get("matchLabels") or {}
    expressions = selector.get("matchExpressions") or ()
    if {*labels, *(e.get("key") for e in expressions)} - {_NAMESPACE_NAME}:
        return None

    def renamed(name: str) -> str:
        return identity.remote_namespace(HomeNamespace(name))

    match_labels = {key: renamed(name) for key, name in labels.items()}
    if not labels and not any(e.get("operator") == "In" for e in expressions):
        match_labels[LABEL_HOME] = identity.home_id
    result: Object = {**selector}
    set_or_remove(result, "matchLabels", match_labels)
    named = [
        {**e, "values": [renamed(name) for name in e["values"]]} if e.get("values") else e
        for e in expressions
    ]
    set_or_remove(result, "matchExpressions", named)
    return result


def remove_merged_label_keys(term: Object) -> Object:
    """Removes the ``matchLabelKeys`` that the selector already contains: the API server has merged
    the pod's values into it, keeps the keys, and rejects a new pod with both."""
    expressions = (term.get("labelSelector") or {}).get("matchExpressions") or ()
    changed = dict(term)
    for field_name, operator in (("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn")):
        merged = {e.get("key") for e in expressions if e.get("operator") == operator}
        kept = [key for key in term.get(field_name) or () if key not in merged]
        set_or_remove(changed, field_name, kept)
    return changed
