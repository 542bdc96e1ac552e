"""Lists the objects on which a pod depends, required and optional ones.

These are the copied objects (`translators.pods.references`), the service account,
PersistentVolumeClaims and classes. For ConfigMaps and Secrets, the result includes the keys that
the pod references individually. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from translators.object_accessors import Object
from translators.pods.references import Kind, Reference, references
from translators.pods.service_accounts import service_account_name

#: Fields that reference a ConfigMap or Secret and may be optional.
_SOURCES: dict[str, Kind] = {
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
    named = [it for part in _PARTS for it in _named(spec.get(part) or ())]
    pull_secrets = {it.get("name") for it in spec.get("imagePullSecrets") or ()}
    dependencies = []
    for ref in sorted(references(pod)):
        uses = [(required, keys) for used, required, keys in named if used == ref]
        # Without an explicit use: Secrets of volume drivers are required, pull secrets optional.
        required = ref.kind != "Secret" or ref.name not in pull_secrets
        if uses:
            required = any(is_required for is_required, _ in uses)
        keys = frozenset[str]().union(*(keys for is_required, keys in uses if is_required))
        dependencies.append(Dependency(ref.kind, ref.name, required, keys))
    dependencies.append(Dependency("ServiceAccount", service_account_name(pod)))
    dependencies += [
        Dependency("PersistentVolumeClaim", str(name))
        for volume in spec.get("volumes") or ()
        if (name := (volume.get("persistentVolumeClaim") or {}).get("claimName"))
    ]
    if name := spec.get("priorityClassName"):
        dependencies.append(Dependency("PriorityClass", str(name), required=False))
    if name := spec.get("runtimeClassName"):
        dependencies.append(Dependency("RuntimeClass", str(name)))
    return dependencies


def _named(value: Any) -> Iterator[tuple[Reference, bool, frozenset[str]]]:
    """References by name, whether each is required, and the keys that it uses."""
    if isinstance(value, list):
        for item in value:
            yield from _named(item)
    elif isinstance(value, dict):
        for field, inner in value.items():
            kind = _SOURCES.get(field)
            source = inner if isinstance(inner, dict) else {}
            name = source.get("name") or source.get("secretName")
            if kind and name:
                keys = [source.get("key"), *(it.get("key") for it in source.get("items") or ())]
                used = frozenset(str(key) for key in keys if key)
                yield Reference(kind, str(name)), not source.get("optional"), used
            else:
                yield from _named(inner)
