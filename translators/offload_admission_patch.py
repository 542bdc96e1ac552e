"""The admission patch for new pods of an offloaded namespace.

The namespace's label `LABEL_OFFLOAD` is the policy. Three annotations are optional:
`ANNOTATION_NODE_SELECTOR` selects virtual nodes by their labels, `ANNOTATION_TIERS` orders nodes,
and `ANNOTATION_POD_SELECTOR` selects pods by their labels; other pods are not changed.

- ``burst``: the pod tolerates the taint of virtual nodes and prefers other nodes with the maximum
  weight.
- ``remote-only``: the pod tolerates the taint and requires a virtual node.
- ``local-only``: the pod requires another node; its tolerations and node selectors for virtual
  nodes are removed.

Each of the first `MAX_TIERS` tiers is a preference for the nodes with its labels. The weights fall
in equal steps from `PREFERENCE_WEIGHT` (`preference_weights`); under ``burst`` nodes that are not
virtual come first. The scheduler adds its other scores, which can outvote a preference.

DaemonSet pods, each of which is for one node, and pods with a node name are exempt: the scheduler
does not place them, and a kubelet rejects a pod that does not match its node. So are pods of
`bridge volume copy`, which run where their volume is, and pods with more node affinity than any
scheduler could evaluate (`MAX_EXPRESSIONS`), since a patch repeats it.

The patch is idempotent. `admission_patch` is the response of the webhook;
`bridge.offload.mutating_admission_policy` implements the same in CEL, and a test on a real API
server compares the two.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from translators.object_accessors import Object, is_daemonset_pod, metadata
from translators.ownership_labels import DOMAIN, LABEL_VIRTUAL, LABEL_VOLUME_COPY

OffloadPolicy = Literal["burst", "remote-only", "local-only"]
POLICIES: tuple[OffloadPolicy, ...] = get_args(OffloadPolicy)

#: On a namespace: the policy for its pods.
LABEL_OFFLOAD = f"{DOMAIN}/offload"
#: On a namespace: labels of the virtual nodes that its pods may run on, ``KEY=VALUE[,KEY=VALUE]``.
ANNOTATION_NODE_SELECTOR = f"{DOMAIN}/offload-node-selector"
#: On a namespace: labels of the nodes of each tier, the preferred first, separated by semicolons.
ANNOTATION_TIERS = f"{DOMAIN}/offload-tiers"
#: On a namespace: labels of the pods that the policy is for, ``KEY=VALUE[,KEY=VALUE]``.
ANNOTATION_POD_SELECTOR = f"{DOMAIN}/offload-pod-selector"
#: The maximum weight of a preferred scheduling term.
PREFERENCE_WEIGHT = 100
#: With more tiers, the weights of two adjacent preferences would differ by less than 10, and a
#: scheduler profile could no longer make them outvote all other scores.
MAX_TIERS = 9
#: Limit of a pod's required node selector terms and their expressions, times the labels of the
#: namespace's selector: bounds the time and the size of a patch to some MiB.
MAX_EXPRESSIONS = 20_000

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_REMOTE: Object = {"key": LABEL_VIRTUAL, "operator": "Exists"}
_LOCAL: Object = {"key": LABEL_VIRTUAL, "operator": "DoesNotExist"}
_TOLERATION: Object = {"key": LABEL_VIRTUAL, "operator": "Exists"}


def is_exempt(pod: Object) -> bool:
    """Whether admission does not change the pod."""
    return (
        is_daemonset_pod(pod)
        or LABEL_VOLUME_COPY in (metadata(pod).get("labels") or {})
        or bool((pod.get("spec") or {}).get("nodeName"))
    )


@dataclass(frozen=True, slots=True)
class Offloading:
    """How the new pods of a namespace are changed."""

    policy: OffloadPolicy
    nodes: Mapping[str, str] = field(default_factory=dict)
    """Labels of the virtual nodes that pods may run on; empty for all of them."""
    tiers: tuple[Mapping[str, str], ...] = ()
    """Labels of the nodes of each tier, the preferred first."""
    pods: Mapping[str, str] = field(default_factory=dict)
    """Labels of the pods that are changed; empty for all pods."""

    def selects(self, pod: Object) -> bool:
        """Whether the policy is for the pod."""
        labels = (pod.get("metadata") or {}).get("labels") or {}
        return self.pods.items() <= labels.items()

    @property
    def annotations(self) -> dict[str, str]:
        """The namespace's annotations, without empty ones."""
        found = {
            ANNOTATION_NODE_SELECTOR: selector_text(self.nodes),
            ANNOTATION_TIERS: ";".join(map(selector_text, self.tiers)),
            ANNOTATION_POD_SELECTOR: selector_text(self.pods),
        }
        return {key: text for key, text in found.items() if text}


#: All annotations of an offloaded namespace.
ANNOTATIONS = (ANNOTATION_NODE_SELECTOR, ANNOTATION_TIERS, ANNOTATION_POD_SELECTOR)


def offloading_of(namespace: Object) -> Offloading | None:
    """The offloading of the namespace; None if it has no policy, or an invalid one."""
    meta = metadata(namespace)
    label = (meta.get("labels") or {}).get(LABEL_OFFLOAD)
    policy = next((known for known in POLICIES if known == label), None)
    if policy is None:
        return None
    annotations = meta.get("annotations") or {}
    nodes, tiers, pods = (str(annotations.get(key) or "") for key in ANNOTATIONS)
    parsed = filter(None, map(_parse_selector, tiers.split(";")))
    return Offloading(
        policy,
        nodes=_parse_selector(nodes),
        tiers=tuple(itertools.islice(parsed, MAX_TIERS)),
        pods=_parse_selector(pods),
    )


def selector_text(selector: Mapping[str, str]) -> str:
    """Writes a selector as ``KEY=VALUE[,KEY=VALUE]``, sorted by key."""
    return ",".join(f"{key}={value}" for key, value in sorted(selector.items()))


def _parse_selector(text: str) -> dict[str, str]:
    pairs = (part.split("=") for part in text.split(",") if part)
    return {pair[0]: pair[1] for pair in pairs if len(pair) > 1}


def preference_weights(count: int) -> list[int]:
    """The weights of ``count`` preferences (at most 100), from `PREFERENCE_WEIGHT` down."""
    return [PREFERENCE_WEIGHT - PREFERENCE_WEIGHT * index // count for index in range(count)]


def admission_patch(pod: Object, offloading: Offloading) -> list[Object]:
    """The JSON patch (RFC 6902) for a new pod; [] if nothing has to change."""
    spec = pod.get("spec") or {}
    if not offloading.selects(pod) or is_exempt(pod) or _is_oversized(spec, offloading.nodes):
        return []
    policy = offloading.policy
    patch: list[Object] = []
    if policy == "local-only" and LABEL_VIRTUAL in (spec.get("nodeSelector") or {}):
        path = f"/spec/nodeSelector/{LABEL_VIRTUAL.replace('/', '~1')}"
        patch.append({"op": "remove", "path": path})
    return [*patch, *_tolerations(spec, policy), *_affinity(spec, offloading)]


def _is_oversized(spec: Object, selector: Mapping[str, str]) -> bool:
    nodes = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    terms = (nodes.get(_REQUIRED) or {}).get("nodeSelectorTerms") or []
    size = sum(1 + len(term.get("matchExpressions") or []) for term in terms)
    return size * (1 + len(selector)) > MAX_EXPRESSIONS


def _tolerations(spec: Object, policy: OffloadPolicy) -> list[Object]:
    existing = spec.get("tolerations") or []
    for_virtual_nodes = [it for it in existing if it.get("key") == LABEL_VIRTUAL]
    if policy == "local-only":
        kept = [it for it in existing if it.get("key") != LABEL_VIRTUAL]
        return [_set("/spec/tolerations", kept)] if for_virtual_nodes else []
    if any(it.get("operator") == "Exists" and not it.get("effect") for it in for_virtual_nodes):
        return []
    return [_set("/spec/tolerations", [*existing, _TOLERATION])]


def _affinity(spec: Object, offloading: Offloading) -> list[Object]:
    nodes: Object = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = _required(nodes, offloading.policy, offloading.nodes)
    operations: list[Object] = []
    preferred = nodes.get(_PREFERRED) or []
    if missing := [term for term in _preferences(offloading) if term not in preferred]:
        path = f"/spec/affinity/nodeAffinity/{_PREFERRED}"
        operations.append(_set(path, [*preferred, *missing]))
    if required is not None and required != (nodes.get(_REQUIRED) or {}).get("nodeSelectorTerms"):
        value = {"nodeSelectorTerms": required}
        operations.append(_set(f"/spec/affinity/nodeAffinity/{_REQUIRED}", value))
    if operations and not spec.get("affinity"):
        operations.insert(0, _set("/spec/affinity", {"nodeAffinity": {}}))
    elif operations and "nodeAffinity" not in spec["affinity"]:
        operations.insert(0, _set("/spec/affinity/nodeAffinity", {}))
    return operations


def _preferences(offloading: Offloading) -> list[Object]:
    """The preferred scheduling terms."""
    if offloading.policy == "local-only":
        return []
    home = [[_LOCAL]] if offloading.policy == "burst" else []
    wanted = [*home, *map(_expressions, offloading.tiers)]
    return [
        {"weight": weight, "preference": {"matchExpressions": expressions}}
        for weight, expressions in zip(preference_weights(len(wanted)), wanted, strict=True)
    ]


def _expressions(selector: Mapping[str, str]) -> list[Object]:
    return [{"key": k, "operator": "In", "values": [v]} for k, v in sorted(selector.items())]


def _required(
    nodes: Object, policy: OffloadPolicy, selector: Mapping[str, str]
) -> list[Object] | None:
    """The node selector terms, each restricted to the nodes that the policy allows; None to keep
    them."""
    chosen = _expressions(selector)
    terms = (nodes.get(_REQUIRED) or {}).get("nodeSelectorTerms") or [{}]
    # These policies override the pod's own expressions about virtual nodes.
    if policy == "remote-only":
        return [_narrowed(term, [_REMOTE, *chosen], override=True) for term in terms]
    if policy == "local-only":
        return [_narrowed(term, [_LOCAL], override=True) for term in terms]
    demands = [term.get("matchExpressions") or [] for term in terms]
    has_alternatives = all(_LOCAL in it or all(one in it for one in chosen) for it in demands)
    if not chosen or has_alternatives:
        return None
    # Terms are alternatives: nodes of home, or the selected virtual nodes.
    return [_narrowed(term, extra) for extra in ([_LOCAL], chosen) for term in terms]


def _narrowed(term: Object, more: list[Object], *, override: bool = False) -> Object:
    """The term with ``more`` expressions; ``override`` removes its other expressions about virtual
    nodes. A term that already has ``more`` is unchanged."""
    own = term.get("matchExpressions") or []
    if override:
        kept = [it for it in own if it.get("key") != LABEL_VIRTUAL or it in more]
        own = kept if all(it in kept for it in more) else [it for it in kept if it not in more]
    return {**term, "matchExpressions": [*own, *(it for it in more if it not in own)]}


def _set(path: str, value: Any) -> Object:
    """An "add" operation, which in a JSON patch also replaces an existing value."""
    return {"op": "add", "path": path, "value": value}
