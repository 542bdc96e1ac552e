"""Where a remote pod may run: what of home's placement still means something in the remote.

Node selectors and node affinity are kept where they speak of what a machine *is* (`_KEPT_KEYS`) and
dropped where they can only mean home's nodes; home's scheduler has already obeyed them. Pod
affinity, anti-affinity and spread hold among the remote's nodes.
"""

from __future__ import annotations

from translators.naming import Identity
from translators.spec import put
from translators.types import HomeNamespace, Object

#: Labels that every kubelet sets to what its machine is, so they mean the same in any cluster.
_KEPT_KEYS = frozenset({"kubernetes.io/arch", "kubernetes.io/os"})

#: The lists of terms in pod affinity and anti-affinity.
_WHEN = (
    "requiredDuringSchedulingIgnoredDuringExecution",
    "preferredDuringSchedulingIgnoredDuringExecution",
)


def kept_selector(selector: Object | None) -> Object:
    """The node selector less what can only mean home's nodes."""
    return {key: value for key, value in (selector or {}).items() if key in _KEPT_KEYS}


def affinity(wanted: Object | None, identity: Identity) -> Object:
    """Affinity among the remote's nodes and pods; namespaces are renamed to the remote's."""
    found = dict(wanted or {})
    put(found, "nodeAffinity", _node_affinity(found.get("nodeAffinity")))
    for kind in ("podAffinity", "podAntiAffinity"):
        if found.get(kind):
            found[kind] = {
                when: [_pod_term(term, identity) for term in terms] if when in _WHEN else terms
                for when, terms in found[kind].items()
            }
    return found


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
    put(
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


def _pod_term(term: Object, identity: Identity) -> Object:
    """A (weighted) pod affinity term with the namespaces that it lists renamed."""
    if "podAffinityTerm" in term:
        return {**term, "podAffinityTerm": _pod_term(term["podAffinityTerm"], identity)}
    term = without_merged_keys(term)
    if not term.get("namespaces"):
        return term
    renamed = [identity.remote_namespace(HomeNamespace(name)) for name in term["namespaces"]]
    return {**term, "namespaces": renamed}


def without_merged_keys(term: Object) -> Object:
    """A term or a spread constraint without ``matchLabelKeys`` that its selector has already.

    The API server writes the pod's own values of these labels into the label selector of a new
    pod, keeps the keys, and refuses a new pod whose selector names one of them beforehand.
    """
    expressions = (term.get("labelSelector") or {}).get("matchExpressions") or ()
    changed = dict(term)
    for field_name, operator in (("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn")):
        merged = {e.get("key") for e in expressions if e.get("operator") == operator}
        kept = [key for key in term.get(field_name) or () if key not in merged]
        put(changed, field_name, kept)
    return changed
