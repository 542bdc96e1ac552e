"""PlacementPolicies: for which pods, and in which order of tiers, they may run where.

A policy is for the pods that match all of its selections: namespaces (by name or by label), labels
and priority class. Of several policies for a pod the one with the highest ``priority`` applies,
then the first by name. Pods of DaemonSets, pods with a node name, and those of home's system
namespaces have no policy.

The CustomResourceDefinition validates policies; `parse_policy` validates again, because a policy
can also come from a file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from translators.label_selectors import selects
from translators.object_accessors import (
    Object,
    is_daemonset_pod,
    metadata,
    name_of,
    namespace_of,
    text_or_empty,
)
from translators.ownership_labels import DOMAIN, LABEL_PLACEMENT

API_VERSION, KIND = DOMAIN + "/v1alpha1", "PlacementPolicy"
#: On a pod: its gate while no place is decided, and the label by which the placer finds it.
GATE = LABEL_PLACEMENT
PENDING, PLACED, RELEASED = "pending", "placed", "released"
#: On a pod: the decision, as JSON.
ANNOTATION_PLACEMENT = f"{DOMAIN}/placement"
#: Pods that return to an earlier tier in a minute, if a policy lets them.
FAILBACK_PER_MINUTE = 6
#: Seconds that a pod, and the virtual node to which it returns, must have been ready before.
FAILBACK_READY_FOR = 300.0
#: Namespaces of the cluster's own components, which must start even without a placer.
SYSTEM_NAMESPACES = ("kube-system", "kube-public", "kube-node-lease", "cluster-bridge")

_DURATION = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?")


class PolicyError(ValueError):
    """A PlacementPolicy is invalid; the message names the field."""


@dataclass(frozen=True, slots=True)
class Tier:
    """One choice of the policy: home's own nodes, or some virtual nodes."""

    name: str
    home: bool = False
    remotes: Object = field(default_factory=dict)
    """Label selector of virtual nodes, unless ``home``."""
    weights: Mapping[str, int] = field(default_factory=dict)
    """By name of the virtual node; 1 for others. 0 excludes a node."""
    spread: bool = False
    """Whether pods are spread by the weights; otherwise the cheapest node is filled first."""
    max_pods: int | None = None
    """The most pods of the policy on one node."""
    max_share: int | None = None
    """The largest share of the policy's pods on one node, in percent; one pod is always allowed."""


@dataclass(frozen=True, slots=True)
class PlacementPolicy:
    """A parsed policy."""

    name: str
    tiers: tuple[Tier, ...]
    priority: int = 0
    namespaces: tuple[str, ...] = ()
    namespace_selector: Object | None = None
    pod_selector: Object = field(default_factory=dict)
    priority_classes: tuple[str, ...] = ()
    require_fit: bool = True
    """Whether a pod is bound only where one real node can take it."""
    max_wait: float | None = None
    """Seconds after which home's scheduler decides among all tiers; None is never."""
    failback_per_minute: int | None = None
    """The most pods a minute that return to an earlier tier with room; None for none."""
    failback_ready_for: float = FAILBACK_READY_FOR
    """Seconds that a pod, and the virtual node to which it returns, must have been ready."""

    def matches(self, pod: Object, namespace_labels: Mapping[str, str]) -> bool:
        """Whether the policy is for the pod. ``namespace_labels``: of the pod's namespace."""
        priority_class = text_or_empty((pod.get("spec") or {}).get("priorityClassName"))
        return (
            self.selects_namespace(namespace_of(pod), namespace_labels)
            and selects(self.pod_selector, metadata(pod).get("labels") or {})
            and (not self.priority_classes or priority_class in self.priority_classes)
        )

    def selects_namespace(self, name: str, labels: Mapping[str, str]) -> bool:
        """Whether the policy can be for pods of the namespace."""
        named = self.namespaces or self.namespace_selector is not None
        return not named or (
            name in self.namespaces
            or (self.namespace_selector is not None and selects(self.namespace_selector, labels))
        )


def policy_for(
    pod: Object, policies: Iterable[PlacementPolicy], namespace_labels: Mapping[str, str]
) -> PlacementPolicy | None:
    """The policy that applies to the pod; None if none does."""
    if namespace_of(pod) in SYSTEM_NAMESPACES or is_daemonset_pod(pod):
        return None
    matching = [it for it in policies if it.matches(pod, namespace_labels)]
    return min(matching, key=lambda it: (-it.priority, it.name), default=None)


def parse_policy(obj: Object) -> PlacementPolicy:
    """The policy of an API object. Raises PolicyError."""
    name, spec = name_of(obj), _mapping(obj.get("spec"), "spec")
    tiers = [
        _tier(it, f"spec.tiers[{n}]") for n, it in enumerate(_list(spec.get("tiers"), "spec.tiers"))
    ]
    if not tiers:
        raise PolicyError("spec.tiers: at least one tier is required")
    if len({it.name for it in tiers}) < len(tiers):
        raise PolicyError("spec.tiers: the names must be unique")
    selections = ("namespaces", "namespaceSelector", "podSelector", "priorityClasses")
    if not any(spec.get(it) for it in selections):
        raise PolicyError(f"spec: one of {', '.join(selections)} is required")
    selector = spec.get("namespaceSelector")
    selector = None if selector is None else _selector(selector, "spec.namespaceSelector")
    failback = spec.get("failback")
    failback = None if failback is None else _mapping(failback, "spec.failback")
    return PlacementPolicy(
        name=name,
        tiers=tuple(tiers),
        priority=_integer(spec.get("priority", 0), "spec.priority", minimum=None),
        namespaces=_texts(spec.get("namespaces"), "spec.namespaces"),
        namespace_selector=selector,
        pod_selector=_selector(spec.get("podSelector"), "spec.podSelector"),
        priority_classes=_texts(spec.get("priorityClasses"), "spec.priorityClasses"),
        require_fit=_boolean(spec.get("requireFit", True), "spec.requireFit"),
        max_wait=_seconds(spec.get("maxWait"), "spec.maxWait"),
        failback_per_minute=None if failback is None else _pace(failback),
        failback_ready_for=_ready_for(failback or {}),
    )


def _pace(failback: Object) -> int:
    pace = failback.get("podsPerMinute", FAILBACK_PER_MINUTE)
    return _integer(pace, "spec.failback.podsPerMinute", minimum=1)


def _ready_for(failback: Object) -> float:
    seconds = _seconds(failback.get("readyFor"), "spec.failback.readyFor")
    return FAILBACK_READY_FOR if seconds is None else seconds


def _tier(value: Any, at: str) -> Tier:
    tier = _mapping(value, at)
    name = tier.get("name")
    if not isinstance(name, str) or not name:
        raise PolicyError(f"{at}.name: a name is required")
    home = _boolean(tier.get("home", False), f"{at}.home")
    if home == ("remotes" in tier):
        raise PolicyError(f"{at}: either home: true or remotes is required")
    max_pods, max_share = tier.get("maxPods"), tier.get("maxShare")
    if max_share is not None and _integer(max_share, f"{at}.maxShare", minimum=1) > 100:
        raise PolicyError(f"{at}.maxShare: a percentage of 1 to 100 is required")
    weights = _mapping(tier.get("weights"), f"{at}.weights")
    return Tier(
        name=name,
        home=home,
        remotes=_selector(tier.get("remotes"), f"{at}.remotes"),
        weights={
            str(it): _integer(weight, f"{at}.weights[{it}]") for it, weight in weights.items()
        },
        spread=_boolean(tier.get("spread", False), f"{at}.spread"),
        max_pods=None if max_pods is None else _integer(max_pods, f"{at}.maxPods", minimum=1),
        max_share=max_share,
    )


def _selector(value: Any, at: str) -> Object:
    selector = _mapping(value, at)
    _mapping(selector.get("matchLabels"), f"{at}.matchLabels")
    for number, it in enumerate(_list(selector.get("matchExpressions"), f"{at}.matchExpressions")):
        operator = _mapping(it, at).get("operator")
        if operator not in ("In", "NotIn", "Exists", "DoesNotExist"):
            raise PolicyError(f"{at}.matchExpressions[{number}].operator: unknown: {operator}")
    return selector


def _mapping(value: Any, at: str) -> Object:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise PolicyError(f"{at}: an object is required")
    return value


def _list(value: Any, at: str) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise PolicyError(f"{at}: a list is required")
    return value


def _texts(value: Any, at: str) -> tuple[str, ...]:
    found = _list(value, at)
    if not all(isinstance(it, str) for it in found):
        raise PolicyError(f"{at}: a list of names is required")
    return tuple(found)


def _integer(value: Any, at: str, minimum: int | None = 0) -> int:
    if type(value) is not int or (minimum is not None and value < minimum):
        least = "" if minimum is None else f" of at least {minimum}"
        raise PolicyError(f"{at}: an integer{least} is required")
    return value


def _boolean(value: Any, at: str) -> bool:
    if not isinstance(value, bool):
        raise PolicyError(f"{at}: true or false is required")
    return value


def _seconds(value: Any, at: str) -> float | None:
    if value is None:
        return None
    match = _DURATION.fullmatch(value) if isinstance(value, str) and value else None
    if match is None or not any(match.groups()):
        raise PolicyError(f"{at}: a duration such as 90s, 5m or 1h30m is required")
    hours, minutes, seconds = (int(it or 0) for it in match.groups())
    return float(hours * 3600 + minutes * 60 + seconds)
