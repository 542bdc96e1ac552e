"""The CustomResourceDefinition of Remotes: joins that are objects of home.

The properties of ``spec.options`` are the options of `bridge join`, which the caller passes as
schemas, because their declarations belong to the command line. No field has a default in the
schema: the API server would write it into the object, and GitOps tools would see a difference.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bridge.crds.status_schema import OBSERVED_GENERATION, READY, conditions
from sync.kube.api_resources import CUSTOM_RESOURCE_DEFINITIONS, REMOTES
from translators.object_accessors import Object

#: The key of the Secret that holds the kubeconfig unless ``spec.kubeconfigSecret.key`` names one:
#: that of `bridge install`, and of Cluster API's and Flux's kubeconfig Secrets after it.
DEFAULT_KEYS = ("kubeconfig", "value")
#: Seconds of ``spec.leaveTimeout`` if it is absent.
DEFAULT_LEAVE_SECONDS = 600.0
#: Kept on a Remote until its node has left (`bridge.fleet.object_source`).
FINALIZER = f"{REMOTES.group}/leave"
#: A duration as the command line takes it.
_DURATION = "^([0-9]+(\\.[0-9]+)?(ms|s|m|h|d))+$|^[0-9]+$"
_SPEC_RULES = [
    {
        "rule": "(has(self.nodeName) ? self.nodeName : '') == "
        "(has(oldSelf.nodeName) ? oldSelf.nodeName : '')",
        "message": "nodeName cannot change: pods are bound to the node; delete this Remote, which "
        "leaves, and create another",
    }
]


def remote_definition(options: Mapping[str, Object]) -> Object:
    """The definition. ``options``: the structural schemas of ``spec.options``, by property."""
    return CUSTOM_RESOURCE_DEFINITIONS.manifest(
        {"name": f"{REMOTES.plural}.{REMOTES.group}"},
        spec={
            "group": REMOTES.group,
            "scope": "Namespaced",
            "names": {
                "kind": REMOTES.kind,
                "listKind": f"{REMOTES.kind}List",
                "plural": REMOTES.plural,
                "singular": "remote",
                "categories": ["cluster-bridge"],
            },
            "versions": [_version(options)],
        },
    )


def _version(options: Mapping[str, Object]) -> Object:
    return {
        "name": REMOTES.version,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": _COLUMNS,
        "schema": {
            "openAPIV3Schema": {
                "type": "object",
                "description": "A remote cluster that a bridge joins to this one as a virtual "
                "node. The bridge of `bridge run --remotes NAMESPACE` serves the Remotes of its "
                "namespace.",
                "required": ["spec"],
                "properties": {
                    "apiVersion": {"type": "string"},
                    "kind": {"type": "string"},
                    "metadata": {"type": "object"},
                    "spec": _spec(options),
                    "status": _STATUS,
                },
            }
        },
    }


def _spec(options: Mapping[str, Object]) -> Object:
    return {
        "type": "object",
        "required": ["kubeconfigSecret"],
        "x-kubernetes-validations": _SPEC_RULES,
        "properties": {
            "kubeconfigSecret": {
                "type": "object",
                "description": "The Secret in the same namespace with the kubeconfig of the remote "
                "cluster: one context, and credentials that are written in it. A changed Secret "
                "takes effect at once.",
                "required": ["name"],
                "properties": {
                    "name": _text("The Secret's name.", 253),
                    "key": _text(
                        "The key with the kubeconfig. Default: kubeconfig, or else value.", 253
                    ),
                },
            },
            "nodeName": _text(
                "Name of the virtual node. Default: the name of this object. Cannot change.",
                253,
                pattern="^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$",
            ),
            "leaveTimeout": _text(
                "Time after the deletion of this object until the bridge cleans up home alone if "
                "the remote does not answer, such as 10m or 1h. Default: 10m. At most 365d: a "
                "longer time counts as that.",
                32,
                pattern=_DURATION,
            ),
            "options": {
                "type": "object",
                "description": "The options of bridge join, with their defaults.",
                "properties": dict(options),
            },
        },
    }


def _text(description: str, longest: int, **more: Any) -> Object:
    return {
        "type": "string",
        "description": description,
        "minLength": 1,
        "maxLength": longest,
        **more,
    }


_STATUS: Object = {
    "type": "object",
    "description": "Written by the bridge.",
    "properties": {
        "observedGeneration": OBSERVED_GENERATION,
        "nodeName": {"type": "string", "description": "The virtual node."},
        "pods": {
            "type": "integer",
            "description": "The number of home's pods that are bound to the node; absent while no "
            "bridge serves it.",
        },
        "allocatable": {
            "type": "object",
            "description": "The resources that the node offers, as in its status.",
            "additionalProperties": {"type": "string"},
        },
        "conditions": conditions(
            "Accepted: the spec and the Secret are valid. Ready: a bridge serves the node. "
            "Stalled: present while the Remote cannot make progress by itself."
        ),
    },
}
_COLUMNS: list[Object] = [
    {"name": "Node", "type": "string", "jsonPath": ".status.nodeName"},
    {"name": "Ready", "type": "string", "jsonPath": f"{READY}.status"},
    {"name": "State", "type": "string", "jsonPath": f"{READY}.reason"},
    {"name": "Pods", "type": "integer", "jsonPath": ".status.pods"},
    {"name": "CPU", "type": "string", "jsonPath": ".status.allocatable.cpu"},
    {"name": "Memory", "type": "string", "jsonPath": ".status.allocatable.memory"},
    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    {"name": "Message", "type": "string", "jsonPath": f"{READY}.message"},
]
