"""The CustomResourceDefinition of PlacementPolicies (`translators.placement.placement_policy`).

The schema has no defaults: the API server would write them into the object, and GitOps tools would
see a difference.
"""

from __future__ import annotations

from typing import Any

from bridge.crds.status_schema import OBSERVED_GENERATION, READY, conditions
from sync.kube.api_resources import PLACEMENT_POLICIES
from translators.object_accessors import Object

_NAME = {"type": "string", "minLength": 1, "maxLength": 253}
_NAMES: Object = {"type": "array", "maxItems": 100, "items": _NAME}


def _selector(text: str) -> Object:
    requirement = {
        "type": "object",
        "required": ["key", "operator"],
        "properties": {
            "key": _NAME,
            "operator": {"type": "string", "enum": ["In", "NotIn", "Exists", "DoesNotExist"]},
            "values": {
                "type": "array",
                "maxItems": 100,
                "items": {"type": "string", "maxLength": 63},
            },
        },
    }
    return {
        "type": "object",
        "description": text,
        "properties": {
            "matchLabels": {
                "type": "object",
                "maxProperties": 50,
                "additionalProperties": {"type": "string", "maxLength": 63},
            },
            "matchExpressions": {"type": "array", "maxItems": 50, "items": requirement},
        },
    }


# Of a policy's selections, at least one must select, as `placement_policy.parse_policy` requires.
_NAME_LISTS, _SELECTORS = ("namespaces", "priorityClasses"), ("namespaceSelector", "podSelector")


def _has_names(field: str) -> str:
    """CEL: whether the list is not empty."""
    return f"(has(self.{field}) && size(self.{field}) > 0)"


def _has_terms(field: str) -> str:
    """CEL: whether the label selector is not empty."""
    terms = " || ".join(f"has(self.{field}.{it})" for it in ("matchLabels", "matchExpressions"))
    return f"(has(self.{field}) && ({terms}))"


def _integer(text: str, minimum: int | None, maximum: int, **more: Any) -> Object:
    least = {} if minimum is None else {"minimum": minimum}
    return {"type": "integer", "description": text, **least, "maximum": maximum, **more}


def _duration(text: str) -> Object:
    return {
        "type": "string",
        "description": text,
        "pattern": "^([0-9]+h)?([0-9]+m)?([0-9]+s)?$",
        "minLength": 2,
        "maxLength": 20,
    }


def _boolean(text: str, **more: Any) -> Object:
    return {"type": "boolean", "description": text, **more}


_TIER: Object = {
    "type": "object",
    "required": ["name"],
    "x-kubernetes-validations": [
        {
            "rule": "(has(self.home) && self.home) != has(self.remotes)",
            "message": "either home: true or remotes is required",
        }
    ],
    "properties": {
        "name": {**_NAME, "maxLength": 63, "description": "A name for messages."},
        "home": _boolean("The tier is home's own nodes."),
        "remotes": _selector("Labels of the virtual nodes of the tier; {} selects all."),
        "weights": {
            "type": "object",
            "description": "By name of the virtual node, its share among nodes of equal cost, or "
            "with spread among all; 1 for others. 0 excludes a node.",
            "maxProperties": 100,
            "additionalProperties": {"type": "integer", "minimum": 0, "maximum": 1000},
        },
        "spread": _boolean(
            "Spread pods over the tier's nodes by weight. Otherwise the node with the lowest "
            "label cluster-bridge.io/cost is filled first, which is the default.",
        ),
        "maxPods": _integer("The most pods of the policy on one node.", 1, 1_000_000),
        "maxShare": _integer(
            "The largest share of the policy's pods on one node, in percent. One pod is always "
            "allowed.",
            1,
            100,
        ),
    },
}
_SPEC: Object = {
    "type": "object",
    "required": ["tiers"],
    "x-kubernetes-validations": [
        {
            "rule": " || ".join((*map(_has_names, _NAME_LISTS), *map(_has_terms, _SELECTORS))),
            "message": "one of namespaces, namespaceSelector, podSelector and priorityClasses is "
            "required, and must not be empty",
        }
    ],
    "properties": {
        "priority": _integer(
            "Of several policies for a pod the one with the highest priority applies, then the "
            "first by name. Default: 0.",
            None,
            1_000_000,
        ),
        "namespaces": {**_NAMES, "description": "Namespaces of the pods."},
        "namespaceSelector": _selector("Labels of the pods' namespaces, beside namespaces."),
        "podSelector": _selector("Labels of the pods."),
        "priorityClasses": {**_NAMES, "description": "Priority classes of the pods."},
        "tiers": {
            "type": "array",
            "description": "The places for the pods, in order: the first tier with room is used.",
            "minItems": 1,
            "maxItems": 20,
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["name"],
            "items": _TIER,
        },
        "requireFit": _boolean(
            "Bind a pod to a virtual node only if one real node of the remote can take it: the "
            "default.",
        ),
        "maxWait": _duration(
            "Time such as 5m after which home's scheduler decides among all tiers. Default: the "
            "pod waits for room.",
        ),
        "failback": {
            "type": "object",
            "description": "Return pods of later tiers once an earlier tier has room, by evictions "
            "that respect PodDisruptionBudgets. Absent: pods stay where they are.",
            "properties": {
                "podsPerMinute": _integer("The most evictions in a minute. Default: 6.", 1, 1000),
                "readyFor": _duration(
                    "Time such as 5m for which a pod, and the virtual node to which it returns, "
                    "must have been ready. Default: 5m.",
                ),
            },
        },
    },
}


_STATUS: Object = {
    "type": "object",
    "description": "Written by the placer that holds the Lease.",
    "properties": {
        "observedGeneration": OBSERVED_GENERATION,
        "placedPods": {
            "type": "integer",
            "description": "Pods of the policy that are placed and have not ended. Numbers of pods "
            "are up to half a minute old.",
        },
        "waitingPods": {
            "type": "integer",
            "description": "Pods that the policy has no place for now.",
        },
        "conditions": conditions(
            "Ready: the placer places pods by the policy, and a tier is home or selects a virtual "
            "node. Stalled: present while the spec is invalid."
        ),
    },
}


def definition() -> Object:
    """The CustomResourceDefinition."""
    columns = [
        {"name": "Priority", "type": "integer", "jsonPath": ".spec.priority"},
        {"name": "Tiers", "type": "string", "jsonPath": ".spec.tiers[*].name"},
        {"name": "Ready", "type": "string", "jsonPath": f"{READY}.status"},
        {"name": "Reason", "type": "string", "jsonPath": f"{READY}.reason"},
        {"name": "Placed", "type": "integer", "jsonPath": ".status.placedPods"},
        {"name": "Waiting", "type": "integer", "jsonPath": ".status.waitingPods"},
        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
        {"name": "Message", "type": "string", "jsonPath": f"{READY}.message", "priority": 1},
    ]
    schema: Object = {
        "type": "object",
        "required": ["spec"],
        "description": "Decides where home's pods may run: at home, or on which virtual nodes.",
        "properties": {
            "spec": _SPEC,
            "status": _STATUS,
        },
    }
    resource = PLACEMENT_POLICIES
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": str(resource), "labels": {"app.kubernetes.io/name": "cluster-bridge"}},
        "spec": {
            "group": resource.group,
            "scope": "Cluster",
            "names": {
                "kind": resource.kind,
                "listKind": f"{resource.kind}List",
                "plural": resource.plural,
                "singular": "placementpolicy",
                "shortNames": ["plp"],
            },
            "versions": [
                {
                    "name": resource.version,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": columns,
                    "schema": {"openAPIV3Schema": schema},
                }
            ],
        },
    }
