"""Checks a manifest from a file, before any API server has.

The check covers the fields that `bridge explain` reads: those of `translators.remote_shapes`, and
those that only the translation of a pod reads. Other fields need only be JSON. As for an API
server, a field that is null is absent.
"""

from __future__ import annotations

from typing import Any

import orjson

from translators import remote_shapes
from translators.object_accessors import Object
from translators.value_shapes import Fields, ListOf, MapOf

_REQUIREMENTS = ListOf(Fields({"key": str, "operator": str, "values": ListOf(str)}))
_LABEL_SELECTOR = Fields({"matchLabels": MapOf(str), "matchExpressions": _REQUIREMENTS})
_NODE_TERM = Fields({"matchExpressions": _REQUIREMENTS, "matchFields": _REQUIREMENTS})
_POD_TERM = Fields(
    {
        "topologyKey": str,
        "labelSelector": _LABEL_SELECTOR,
        "namespaceSelector": _LABEL_SELECTOR,
        "namespaces": ListOf(str),
        "matchLabelKeys": ListOf(str),
        "mismatchLabelKeys": ListOf(str),
    }
)
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_POD_AFFINITY = Fields(
    {
        _REQUIRED: ListOf(_POD_TERM),
        _PREFERRED: ListOf(Fields({"podAffinityTerm": _POD_TERM}, required=("podAffinityTerm",))),
    }
)
_AFFINITY = Fields(
    {
        "nodeAffinity": Fields(
            {
                _REQUIRED: Fields({"nodeSelectorTerms": ListOf(_NODE_TERM)}),
                _PREFERRED: ListOf(Fields({"preference": _NODE_TERM})),
            }
        ),
        "podAffinity": _POD_AFFINITY,
        "podAntiAffinity": _POD_AFFINITY,
    }
)
_FIELD_REF = Fields({"fieldPath": str})
_CONTAINERS = ListOf(
    Fields(
        {
            "env": ListOf(
                Fields({"valueFrom": Fields({"fieldRef": _FIELD_REF})}, required=("name",))
            ),
            "volumeMounts": ListOf(Fields({"name": str, "mountPath": str})),
        }
    )
)
_WITH_ITEMS = Fields({"items": ListOf(Fields({"key": str, "path": str}))})
_DOWNWARD_API = Fields({"items": ListOf(Fields({"fieldRef": _FIELD_REF}))})
_SOURCES = {
    "configMap": _WITH_ITEMS,
    "secret": _WITH_ITEMS,
    "downwardAPI": _DOWNWARD_API,
    "serviceAccountToken": Fields(
        {"path": str, "audience": str, "expirationSeconds": int}, required=("path",)
    ),
}
_VOLUME = Fields(
    {**_SOURCES, "projected": Fields({"sources": ListOf(Fields(_SOURCES))})}, required=("name",)
)
#: The parts of a pod that `remote_shapes` does not have.
_POD = Fields(
    {
        "metadata": Fields({"generateName": str}),
        "spec": Fields(
            {
                "affinity": _AFFINITY,
                "topologySpreadConstraints": ListOf(_POD_TERM),
                "containers": _CONTAINERS,
                "initContainers": _CONTAINERS,
                "ephemeralContainers": _CONTAINERS,
                "volumes": ListOf(_VOLUME),
                "priorityClassName": str,
                "runtimeClassName": str,
                "securityContext": Fields({}),
            }
        ),
    }
)
#: The parts of another object that lead to its pod template.
_OBJECT = Fields(
    {
        "metadata": Fields({"name": str, "namespace": str}),
        "spec": Fields({"jobTemplate": Fields({"spec": Fields({})})}),
    }
)


class ManifestError(Exception):
    """A part of a manifest is wrong; the message names its path and what to do."""

    def __init__(self, path: str) -> None:
        hint = "`kubectl explain` describes the field"
        super().__init__(f"{path}: the key, or the type of its value, is invalid; {hint}")


def checked_manifest(obj: Object) -> Object:
    """The object without fields that are null. Raises ManifestError if a part that leads to its
    pod, or a part of its pod, is wrong; an object without a pod template passes."""
    obj = _without_nulls(obj)
    pod, at = obj, ""
    if obj.get("kind") != "Pod":
        if (path := _OBJECT.wrong(obj, None)) is not None:
            raise ManifestError(path.removeprefix("."))
        spec, at = obj.get("spec", {}), "spec.template."
        if job := spec.get("jobTemplate", {}).get("spec"):
            spec, at = job, "spec.jobTemplate.spec.template."
        pod = spec.get("template")
        if not isinstance(pod, dict) or "spec" not in pod:
            return obj
    if (path := _not_json(obj, "")) is not None:
        raise ManifestError(path.removeprefix("."))
    if path := _wrong_part_of_pod(pod):
        raise ManifestError(at + path)
    return obj


def _wrong_part_of_pod(pod: Object) -> str:
    meta = pod.get("metadata", {})
    if isinstance(meta, dict):  # A template, and a pod with a generateName, have no name.
        pod = {**pod, "metadata": {"name": "x", **meta}}
    return remote_shapes.wrong_part("Pod", pod) or (_POD.wrong(pod, None) or "").removeprefix(".")


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nulls(part) for name, part in value.items() if part is not None}
    return [*map(_without_nulls, value)] if isinstance(value, list) else value


def _not_json(value: Any, at: str) -> str | None:
    """The path of the first part that JSON cannot contain; None if there is none."""
    if _is_json(value):
        return None
    if isinstance(value, dict):
        for name, part in value.items():
            path = f"{at}.{name}"
            if not _is_json({name: None}):
                return path
            if (found := _not_json(part, path)) is not None:
                return found
    elif isinstance(value, list):
        for number, part in enumerate(value):
            if (found := _not_json(part, f"{at}[{number}]")) is not None:
                return found
    return at


def _is_json(value: Any) -> bool:
    try:
        orjson.dumps(value)
    except orjson.JSONEncodeError:
        return False
    return True
