"""What admission does to a new pod of a namespace that is offloaded.

The namespace says it itself: its label `LABEL` is the policy, and its annotation
`ANNOTATION_SELECTOR` may narrow the virtual nodes by their labels.

- ``burst``: local first. The pod tolerates virtual nodes' taint and prefers other nodes, with all
  the weight that a preference can have.
- ``remote-only``: it tolerates the taint and requires a virtual node.
- ``local-only``: it requires another node; a toleration of ours, and a selector of virtual nodes,
  go.

Left alone are pods of DaemonSets, which are each for one node, and pods that name their node
already: no scheduler looks at these, and a kubelet refuses what does not match its node.

A pod that is changed already is not changed again. `patch` is what the webhook answers, and
`bridge.offload.admission_policy` says the same in CEL; a test on a real API server holds one against the
other. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

from translators.identity import DOMAIN, LABEL_VIRTUAL
from translators.objects import Object, is_daemonset_pod, metadata

OffloadPolicy = Literal["burst", "remote-only", "local-only"]
POLICIES: tuple[OffloadPolicy, ...] = get_args(OffloadPolicy)

#: On a namespace: the policy of its pods.
LABEL_OFFLOAD = f"{DOMAIN}/offload"
#: On a namespace: labels of the virtual nodes that its pods may come to, ``KEY=VALUE[,KEY=VALUE]``.
ANNOTATION_NODE_SELECTOR = f"{DOMAIN}/offload-node-selector"
#: The most that one preference can weigh among others.
PREFERENCE_WEIGHT = 100

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_REMOTE: Object = {"key": LABEL_VIRTUAL, "operator": "Exists"}
_LOCAL: Object = {"key": LABEL_VIRTUAL, "operator": "DoesNotExist"}
_TOLERATION: Object = {"key": LABEL_VIRTUAL, "operator": "Exists"}


def is_exempt(pod: Object) -> bool:
    """Whether admission has nothing to do with the pod."""
    return is_daemonset_pod(pod) or bool((pod.get("spec") or {}).get("nodeName"))


def policy_of(namespace: Object) -> OffloadPolicy | None:
    """What the namespace says; None where it says nothing, or what is no policy."""
    said = (metadata(namespace).get("labels") or {}).get(LABEL_OFFLOAD)
    return next((it for it in POLICIES if it == said), None)


def selector_of(namespace: Object) -> dict[str, str]:
    """The labels by which the namespace narrows the virtual nodes."""
    text = str((metadata(namespace).get("annotations") or {}).get(ANNOTATION_NODE_SELECTOR) or "")
    pairs = (part.split("=") for part in text.split(",") if part)
    return {pair[0]: pair[1] for pair in pairs if len(pair) > 1}


def admission_patch(
    pod: Object, policy: OffloadPolicy, selector: Mapping[str, str]
) -> list[Object]:
    """The JSON patch (RFC 6902) of a new pod; [] where there is nothing to do."""
    if is_exempt(pod):
        return []
    spec = pod.get("spec") or {}
    found = _selector_undone(spec) if policy == "local-only" else []
    return [*found, *_tolerations(spec, policy), *_affinity(spec, policy, selector)]


def _selector_undone(spec: Object) -> list[Object]:
    if LABEL_VIRTUAL not in (spec.get("nodeSelector") or {}):
        return []
    return [{"op": "remove", "path": f"/spec/nodeSelector/{_escaped(LABEL_VIRTUAL)}"}]


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def _tolerations(spec: Object, policy: OffloadPolicy) -> list[Object]:
    there = spec.get("tolerations") or []
    ours = [it for it in there if it.get("key") == LABEL_VIRTUAL]
    if policy == "local-only":
        kept = [it for it in there if it not in ours]
        return [_put("/spec/tolerations", kept)] if ours else []
    if any(_is_all(it) for it in ours):
        return []
    return [_put("/spec/tolerations", [*there, _TOLERATION])]


def _is_all(toleration: Object) -> bool:
    return toleration.get("operator") == "Exists" and not toleration.get("effect")


def _affinity(spec: Object, policy: OffloadPolicy, selector: Mapping[str, str]) -> list[Object]:
    nodes: Object = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required, preferred = _required(nodes, policy, selector), nodes.get(_PREFERRED) or []
    found: list[Object] = []
    if policy == "burst":
        wish = {"weight": PREFERENCE_WEIGHT, "preference": {"matchExpressions": [_LOCAL]}}
        if wish not in preferred:
            found.append(_put(f"/spec/affinity/nodeAffinity/{_PREFERRED}", [*preferred, wish]))
    if required is not None and required != (nodes.get(_REQUIRED) or {}).get("nodeSelectorTerms"):
        value = {"nodeSelectorTerms": required}
        found.append(_put(f"/spec/affinity/nodeAffinity/{_REQUIRED}", value))
    if found and not spec.get("affinity"):
        found.insert(0, _put("/spec/affinity", {"nodeAffinity": {}}))
    elif found and "nodeAffinity" not in spec["affinity"]:
        found.insert(0, _put("/spec/affinity/nodeAffinity", {}))
    return found


def _required(
    nodes: Object, policy: OffloadPolicy, selector: Mapping[str, str]
) -> list[Object] | None:
    """The alternatives, each narrowed to the nodes that the policy allows; None as they are."""
    chosen = [{"key": k, "operator": "In", "values": [v]} for k, v in sorted(selector.items())]
    there = (nodes.get(_REQUIRED) or {}).get("nodeSelectorTerms") or [{}]
    # Must they go one way, what the pod itself says of virtual nodes does not count.
    if policy == "remote-only":
        return [_narrowed(term, [_REMOTE, *chosen], freed=True) for term in there]
    if policy == "local-only":
        return [_narrowed(term, [_LOCAL], freed=True) for term in there]
    if not chosen or _has_alternatives(there, chosen):
        return None
    # Alternatives: other nodes, or such virtual ones.
    return [_narrowed(term, more) for more in ([_LOCAL], chosen) for term in there]


def _has_alternatives(terms: list[Object], chosen: list[Object]) -> bool:
    """Whether each term is for other nodes, or for such virtual ones, already."""
    demands = [term.get("matchExpressions") or [] for term in terms]
    return all(_LOCAL in it or all(one in it for one in chosen) for it in demands)


def _narrowed(term: Object, more: list[Object], *, freed: bool = False) -> Object:
    """The term with these demands; if ``freed`` without its others of whether the node is virtual.
    One that has them already is as it was."""
    own = term.get("matchExpressions") or []
    if freed:
        kept = [it for it in own if it.get("key") != LABEL_VIRTUAL or it in more]
        own = kept if all(it in kept for it in more) else [it for it in kept if it not in more]
    return {**term, "matchExpressions": [*own, *(it for it in more if it not in own)]}


def _put(path: str, value: Any) -> Object:
    """In a JSON patch "add" replaces what is there."""
    return {"op": "add", "path": path, "value": value}
