"""The objects that a pod depends on, required and optional ones.

These are the copied objects (`translators.pods.references`), the service account,
PersistentVolumeClaims and classes. For ConfigMaps and Secrets, the result includes the keys that
the pod references individually. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from translators.objects import Object
from translators.pods.references import Reference, references
from translators.pods.service_accounts import service_account_name

#: Fields that reference a ConfigMap or Secret and may be optional.
_SOURCES = {
    "configMapRef": "ConfigMap",
    "configMapKeyRef": "ConfigMap",
    "configMap": "ConfigMap",
    "secretRef": "Secret",
    "secretKeyRef": "Secret",
    "secret": "Secret",
}
_PARTS = ("initContainers", "containers", "ephemeralContainers", "volumes")


@dataclass(frozen=True, slots=True)
class Dependency:
    """An object that the pod references."""

    kind: str
    name: str
    required: bool = True
    """Whether the pod waits while the object is missing."""
    keys: frozenset[str] = frozenset()
    """Keys that the object must contain."""


def dependencies_of(pod: Object) -> list[Dependency]:
    """The pod's dependencies, each once, in a stable order."""
    spec = pod.get("spec") or {}
    found = {it: Dependency(it.kind, it.name, required=False) for it in references(pod)}
    named = [it for part in _PARTS for it in _named(spec.get(part) or ())]
    explicit = {Reference(_kind(it), it.name) for it in named}
    pull_secrets = {
        Reference("Secret", it["name"]) for it in spec.get("imagePullSecrets") or () if it
    }
    for ref, known in found.items():
        # Secrets of volume drivers are required; image pull secrets are optional.
        if ref not in explicit and ref not in pull_secrets:
            found[ref] = replace(known, required=True)
    for it in named:
        ref = Reference(_kind(it), it.name)
        if ref in found and it.required:
            found[ref] = replace(found[ref], required=True, keys=found[ref].keys | it.keys)
    copied = sorted(found.values(), key=lambda it: (it.kind, it.name))
    return [
        *copied,
        Dependency("ServiceAccount", service_account_name(pod)),
        *_claims(spec),
        *_classes(spec),
    ]


def _kind(it: Dependency) -> Any:
    return it.kind


def _named(value: Any) -> Iterator[Dependency]:
    if isinstance(value, list):
        for item in value:
            yield from _named(item)
    elif isinstance(value, dict):
        for key, inner in value.items():
            kind = _SOURCES.get(key)
            name = (inner.get("name") or inner.get("secretName")) if _is_map(inner) else None
            if kind and name:
                yield Dependency(
                    kind, str(name), not inner.get("optional"), frozenset(_keys(inner))
                )
            else:
                yield from _named(inner)


def _is_map(value: Any) -> bool:
    return isinstance(value, dict)


def _keys(source: Object) -> Iterator[str]:
    if source.get("key"):
        yield str(source["key"])
    for item in source.get("items") or ():
        yield str(item.get("key"))


def _claims(spec: Object) -> Iterator[Dependency]:
    for volume in spec.get("volumes") or ():
        if name := (volume.get("persistentVolumeClaim") or {}).get("claimName"):
            yield Dependency("PersistentVolumeClaim", str(name))


def _classes(spec: Object) -> Iterator[Dependency]:
    if spec.get("priorityClassName"):
        yield Dependency("PriorityClass", str(spec["priorityClassName"]), required=False)
    if spec.get("runtimeClassName"):
        yield Dependency("RuntimeClass", str(spec["runtimeClassName"]))
