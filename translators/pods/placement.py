"""Where a remote pod may run: what of home's placement still means something in the remote.

- Home's scheduler has matched node selectors and node affinity against the virtual node's labels,
  so that they are obeyed already. They are kept where they speak of what a machine *is*
  (`_KEPT_KEYS`), so that a remote of several kinds of machines places the pod right. All else
  goes, without a word: node names and hostnames, labels that people put on the virtual node, and
  its zone, region and instance type, which say where the remote is and nothing of its nodes.
- Where the virtual node stands for some of the remote's nodes (``--node-selector``), the pod is
  confined to them. A pod that wants a machine that is not among them waits, as the scheduler says.
- Pod affinity, anti-affinity and spread hold among the remote's nodes and pods. Namespaces are
  renamed; the labels of home's namespaces are not in the remote, so that a term that selects by
  them is left out, and told.
- Priority is carried by the name of a class that the remote has; the numbers are each cluster's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from translators.fieldpaths import FieldMessage, set_or_remove
from translators.identity import LABEL_HOME, Identity
from translators.objects import HomeNamespace, Object

#: Labels that every kubelet sets to what its machine is, so they mean the same in any cluster.
_KEPT_KEYS = frozenset(
    {"kubernetes.io/arch", "kubernetes.io/os", "node.kubernetes.io/windows-build"}
)
#: The label by which every API server names each namespace.
_NAMESPACE_NAME = "kubernetes.io/metadata.name"
#: Classes of the components of a cluster (SystemPriorityClassPrefix in pkg/apis/scheduling).
_SYSTEM_CLASS = "system-"

#: The lists of terms in pod affinity and anti-affinity.
_WHEN = (
    "requiredDuringSchedulingIgnoredDuringExecution",
    "preferredDuringSchedulingIgnoredDuringExecution",
)


def translate_node_selector(selector: Object | None) -> Object:
    """The node selector less what can only mean home's nodes."""
    return {key: value for key, value in (selector or {}).items() if key in _KEPT_KEYS}


def restrict_to_nodes(spec: Object, selector: Mapping[str, str]) -> None:
    """Confines the remote pod of this spec to the nodes with these labels, and to those that it
    selects itself: a label that it wants otherwise is demanded beside, not instead."""
    own = spec.get("nodeSelector") or {}
    set_or_remove(spec, "nodeSelector", {**selector, **own})
    demanded = [
        {"key": key, "operator": "In", "values": [value]}
        for key, value in selector.items()
        if own.get(key, value) != value
    ]
    if not demanded:
        return
    affinity = spec.get("affinity") or {}
    nodes = affinity.get("nodeAffinity") or {}
    required = nodes.get(_WHEN[0]) or {"nodeSelectorTerms": [{}]}
    # Terms are alternatives: the demand is part of each.
    terms = [
        {**term, "matchExpressions": [*(term.get("matchExpressions") or ()), *demanded]}
        for term in required["nodeSelectorTerms"]
    ]
    nodes = {**nodes, _WHEN[0]: {**required, "nodeSelectorTerms": terms}}
    spec["affinity"] = {**affinity, "nodeAffinity": nodes}


def dropped_priority_class(name: str | None, known: frozenset[str]) -> FieldMessage | None:
    """Why the priority class is not carried; None where it is. ``known``: the remote's classes."""
    if not name or (name in known and not name.startswith(_SYSTEM_CLASS)):
        return None
    why = (
        "is for components of the cluster itself"
        if name.startswith(_SYSTEM_CLASS)
        else "is no PriorityClass of the remote cluster"
    )
    return FieldMessage("spec.priorityClassName", f"{name} {why}; the pod has the default priority")


def translate_affinity(
    wanted: Object | None, identity: Identity, dropped: list[FieldMessage]
) -> Object:
    """Affinity among the remote's nodes and pods; namespaces are renamed to the remote's."""
    result = dict(wanted or {})
    set_or_remove(result, "nodeAffinity", _node_affinity(result.get("nodeAffinity")))
    for kind in ("podAffinity", "podAntiAffinity"):
        if not result.get(kind):
            continue
        terms = dict(result[kind])
        for when in _WHEN:
            if when in terms:
                at = f"spec.affinity.{kind}.{when}"
                set_or_remove(terms, when, _pod_terms(terms[when] or (), identity, at, dropped))
        set_or_remove(result, kind, terms)
    return result


def _node_affinity(affinity: Object | None) -> Object:
    found = dict(affinity or {})
    required = found.pop("requiredDuringSchedulingIgnoredDuringExecution", None) or {}
    terms = [_node_term(term) for term in required.get("nodeSelectorTerms") or ()]
    # Terms are alternatives: one that says nothing any more allows every node.
    if terms and all(terms):
        found["requiredDuringSchedulingIgnoredDuringExecution"] = {
            **required,
            "nodeSelectorTerms": terms,
        }
    preferred = found.pop("preferredDuringSchedulingIgnoredDuringExecution", None) or ()
    wishes = [{**wish, "preference": _node_term(wish.get("preference"))} for wish in preferred]
    set_or_remove(
        found,
        "preferredDuringSchedulingIgnoredDuringExecution",
        [wish for wish in wishes if wish["preference"]],
    )
    return found


def _node_term(term: Object | None) -> Object:
    """The term less what names home's nodes: their names (matchFields) and their own labels."""
    expressions = [
        e for e in (term or {}).get("matchExpressions") or () if e.get("key") in _KEPT_KEYS
    ]
    return {"matchExpressions": expressions} if expressions else {}


# -- other pods ----------------------------------------------------------------------------


def _pod_terms(
    terms: Any, identity: Identity, at: str, dropped: list[FieldMessage]
) -> list[Object]:
    """The (weighted) terms, less those that no namespace of the remote is known for."""
    kept = []
    for number, term in enumerate(terms):
        inner = "podAffinityTerm" if "podAffinityTerm" in term else ""
        changed = _pod_term(term[inner] if inner else term, identity)
        if changed is None:
            path = ".".join(
                part for part in (f"{at}[{number}]", inner, "namespaceSelector") if part
            )
            why = "labels of home's namespaces are not in the remote; name the namespaces instead"
            dropped.append(FieldMessage(path, why))
        else:
            kept.append({**term, inner: changed} if inner else changed)
    return kept


def _pod_term(term: Object, identity: Identity) -> Object | None:
    """The term with its namespaces renamed; None where the remote cannot know which they are.

    Listed and selected namespaces are added up, so that of both the list can stand alone.
    """
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
    """The selector of the same namespaces in the remote: all of this home, or some by name; None
    where it goes by other labels. (A namespace that was handed over is found by its name alone.)"""
    labels = selector.get("matchLabels") or {}
    expressions = selector.get("matchExpressions") or ()
    if {*labels, *(e.get("key") for e in expressions)} - {_NAMESPACE_NAME}:
        return None

    def renamed(name: str) -> str:
        return identity.remote_namespace(HomeNamespace(name))

    found = {key: renamed(name) for key, name in labels.items()}
    if not labels and not any(e.get("operator") == "In" for e in expressions):
        found[LABEL_HOME] = identity.home_id
    result: Object = {**selector}
    set_or_remove(result, "matchLabels", found)
    named = [
        {**e, "values": [renamed(name) for name in e["values"]]} if e.get("values") else e
        for e in expressions
    ]
    set_or_remove(result, "matchExpressions", named)
    return result


def remove_merged_label_keys(term: Object) -> Object:
    """A term or a spread constraint without ``matchLabelKeys`` that its selector has already.

    The API server writes the pod's own values of these labels into the label selector of a new
    pod, keeps the keys, and refuses a new pod whose selector names one of them beforehand.
    """
    expressions = (term.get("labelSelector") or {}).get("matchExpressions") or ()
    changed = dict(term)
    for field_name, operator in (("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn")):
        merged = {e.get("key") for e in expressions if e.get("operator") == operator}
        kept = [key for key in term.get(field_name) or () if key not in merged]
        set_or_remove(changed, field_name, kept)
    return changed
