"""The changes of a pod at home: its gate at creation, and its release to the decided place.

Only narrows the pod's node selection and adds tolerations, which the API server permits for a pod
with a scheduling gate (ValidatePodUpdate in pkg/apis/core/validation). A pod for a virtual node
selects its host name; a pod for home excludes virtual nodes.
"""

from __future__ import annotations

import json
from typing import Any

from translators.object_accessors import Object, is_daemonset_pod, metadata
from translators.ownership_labels import LABEL_PLACEMENT, LABEL_VIRTUAL
from translators.placement.decision import HOME, TOLERATION, Decision
from translators.placement.placement_policy import (
    ANNOTATION_PLACEMENT,
    GATE,
    PENDING,
    PLACED,
    RELEASED,
    PlacementPolicy,
    Tier,
)

HOSTNAME = "kubernetes.io/hostname"
#: The most characters of the annotation's reasons.
_MAX_REASON = 200
_LOCAL: Object = {"key": LABEL_VIRTUAL, "operator": "DoesNotExist"}
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def has_gate(pod: Object) -> bool:
    """Whether the pod waits for the placer."""
    gates = (pod.get("spec") or {}).get("schedulingGates") or ()
    return any(it.get("name") == GATE for it in gates)


def is_exempt(pod: Object) -> bool:
    """Whether no scheduler places the pod."""
    return is_daemonset_pod(pod) or bool((pod.get("spec") or {}).get("nodeName"))


def gated(pod: Object) -> Object:
    """The new pod as admission changes it."""
    if is_exempt(pod) or has_gate(pod):
        return pod
    meta, spec = dict(metadata(pod)), dict(pod.get("spec") or {})
    meta["labels"] = {**(meta.get("labels") or {}), LABEL_PLACEMENT: PENDING}
    spec["schedulingGates"] = [*(spec.get("schedulingGates") or ()), {"name": GATE}]
    return {**pod, "metadata": meta, "spec": spec}


def placed(pod: Object, decision: Decision) -> Object:
    """The pod with the decided place, and without the gate. ``decision.choice`` is not None."""
    choice = decision.choice
    spec = _without_gate(pod)
    if choice == HOME:
        spec["affinity"] = _narrowed(spec.get("affinity") or {}, [_LOCAL])
    else:
        spec["nodeSelector"] = {**(spec.get("nodeSelector") or {}), HOSTNAME: choice}
        spec["tolerations"] = _with_toleration(spec)
    return _labelled(pod, spec, PLACED, record(decision))


def released(pod: Object, policy: PlacementPolicy | None, reason: str) -> Object:
    """The pod without the gate, for home's scheduler to decide: among the tiers of the policy, or
    without one by the pod alone. A pod with alternatives in its own node affinity keeps these alone
    if the policy has several tiers, because they cannot be combined in a gated pod."""
    spec = _without_gate(pod)
    if policy is not None:
        if any(not it.home for it in policy.tiers):
            spec["tolerations"] = _with_toleration(spec)
        alternatives = [_expressions(it) for it in policy.tiers]
        terms = _required_terms(spec)
        if len(alternatives) == 1:
            spec["affinity"] = _narrowed(spec.get("affinity") or {}, alternatives[0])
        elif not terms:
            required = [{"matchExpressions": it} for it in alternatives]
            spec["affinity"] = _with_terms(spec.get("affinity") or {}, required)
    name = policy.name if policy is not None else ""
    return _labelled(pod, spec, RELEASED, {"policy": name, "reason": reason})


def record(decision: Decision) -> Object:
    """The content of the annotation."""
    reasons = {
        it.candidate: it.reason[:_MAX_REASON]
        for it in decision.verdicts
        if it.outcome != "excluded"
    }
    return {
        "policy": decision.policy,
        "tier": decision.tier,
        "choice": decision.choice,
        "reasons": reasons,
    }


def read_record(pod: Object) -> tuple[str, str] | None:
    """The policy and the choice that the annotation records; None without a valid one."""
    found = read_full_record(pod)
    return (found["policy"], found["choice"]) if found is not None else None


def read_full_record(pod: Object) -> Object | None:
    """The content of the annotation, with ``policy``, ``choice`` and ``reasons``; None without a
    valid one."""
    if (found := _annotation(pod)) is None:
        return None
    texts = [found.get("policy"), found.get("choice")]
    reasons = found.get("reasons", {})
    valid = all(isinstance(it, str) for it in texts) and isinstance(reasons, dict)
    return {**found, "reasons": reasons} if valid else None


def release_reason(pod: Object) -> str:
    """Why the pod was released to home's scheduler; "" if it was not."""
    if (metadata(pod).get("labels") or {}).get(LABEL_PLACEMENT) != RELEASED:
        return ""
    reason = (_annotation(pod) or {}).get("reason")
    return reason if isinstance(reason, str) else "the reason is not recorded"


def _annotation(pod: Object) -> Object | None:
    text = (metadata(pod).get("annotations") or {}).get(ANNOTATION_PLACEMENT)
    try:
        found: Any = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _without_gate(pod: Object) -> Object:
    spec = dict(pod.get("spec") or {})
    gates = [it for it in spec.get("schedulingGates") or () if it.get("name") != GATE]
    if gates:
        spec["schedulingGates"] = gates
    else:
        spec.pop("schedulingGates", None)
    return spec


def _with_toleration(spec: Object) -> list[Object]:
    existing = spec.get("tolerations") or []
    tolerated = any(
        it.get("operator") == "Exists"
        and it.get("key") in (None, "", LABEL_VIRTUAL)
        and not it.get("effect")
        for it in existing
    )
    return list(existing) if tolerated else [*existing, TOLERATION]


def _expressions(tier: Tier) -> list[Object]:
    """The node selector requirements of a tier."""
    if tier.home:
        return [_LOCAL]
    by_value = (tier.remotes.get("matchLabels") or {}).items()
    return [
        {"key": LABEL_VIRTUAL, "operator": "Exists"},
        *({"key": key, "operator": "In", "values": [value]} for key, value in by_value),
        *(tier.remotes.get("matchExpressions") or ()),
    ]


def _required_terms(spec: Object) -> list[Object]:
    nodes = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    terms: list[Object] = (nodes.get(_REQUIRED) or {}).get("nodeSelectorTerms") or []
    return terms


def _narrowed(affinity: Object, more: list[Object]) -> Object:
    """The affinity with these expressions added to each of its alternatives."""
    terms = _required_terms({"affinity": affinity}) or [{}]
    return _with_terms(
        affinity,
        [
            {**term, "matchExpressions": [*(term.get("matchExpressions") or ()), *more]}
            for term in terms
        ],
    )


def widened(affinity: Object) -> Object:
    """The affinity without the expression by which `placed` excludes virtual nodes."""
    terms = []
    for term in _required_terms({"affinity": affinity}):
        others = {key: value for key, value in term.items() if key != "matchExpressions"}
        kept = [it for it in term.get("matchExpressions") or () if it != _LOCAL]
        terms.append({**others, "matchExpressions": kept} if kept else others)
    if all(terms):
        return _with_terms(affinity, terms) if terms else affinity
    # An alternative without a requirement is every node.
    nodes = {k: v for k, v in (affinity.get("nodeAffinity") or {}).items() if k != _REQUIRED}
    return {**affinity, "nodeAffinity": nodes}


def _with_terms(affinity: Object, terms: list[Object]) -> Object:
    nodes = affinity.get("nodeAffinity") or {}
    return {**affinity, "nodeAffinity": {**nodes, _REQUIRED: {"nodeSelectorTerms": terms}}}


def _labelled(pod: Object, spec: Object, state: str, annotation: Object) -> Object:
    meta = dict(metadata(pod))
    meta["labels"] = {**(meta.get("labels") or {}), LABEL_PLACEMENT: state}
    text = json.dumps(annotation, sort_keys=True)
    meta["annotations"] = {**(meta.get("annotations") or {}), ANNOTATION_PLACEMENT: text}
    return {**pod, "metadata": meta, "spec": spec}
