"""Evaluates label selectors (LabelSelector in k8s.io/apimachinery/pkg/apis/meta/v1), and the
requirements that node selectors share with them."""

from __future__ import annotations

from collections.abc import Mapping

from translators.object_accessors import Object


def selects(selector: Object, labels: Mapping[str, str]) -> bool:
    """Whether the selector selects an object with these labels; an empty one selects every object,
    an unknown operator none."""
    by_value = (selector.get("matchLabels") or {}).items()
    return all(labels.get(key) == value for key, value in by_value) and all(
        holds(it, labels) for it in selector.get("matchExpressions") or ()
    )


def holds(expression: Object, labels: Mapping[str, str]) -> bool:
    """Whether labels meet one requirement; an unknown operator is met by none."""
    value, values = labels.get(str(expression.get("key"))), expression.get("values") or ()
    match expression.get("operator"):
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case _:
            return False
