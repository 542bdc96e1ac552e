"""Schemas of the status that the custom resources have in common. Pure."""

from __future__ import annotations

from translators.object_accessors import Object

OBSERVED_GENERATION: Object = {
    "type": "integer",
    "description": "The generation of the spec that the status describes.",
}
#: Of a printer column.
READY = '.status.conditions[?(@.type=="Ready")]'
_CONDITION: Object = {
    "type": "object",
    "required": ["type", "status", "lastTransitionTime", "reason", "message"],
    "properties": {
        "type": {"type": "string", "maxLength": 316},
        "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
        "observedGeneration": {"type": "integer", "minimum": 0},
        "lastTransitionTime": {"type": "string", "format": "date-time"},
        "reason": {"type": "string", "minLength": 1, "maxLength": 1024},
        "message": {"type": "string", "maxLength": 32768},
    },
}


def conditions(description: str) -> Object:
    """The list of conditions."""
    return {
        "type": "array",
        "description": description,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": _CONDITION,
    }
