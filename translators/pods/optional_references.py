"""References of a pod to ConfigMaps and Secrets that must not be resolved in the remote.

The remote resolves references by name: if home has no object of the name, an unmanaged one would be
read in its place. The bridge does not create a pod while a *required* reference is unresolved; it
removes *optional* references from the pod.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from translators.field_paths import CONTAINERS, FieldMessage
from translators.object_accessors import Object
from translators.pods.references import Kind, Reference, references

_MESSAGE = "home has no such object, and an unmanaged one of the remote must not replace it"


def required_references(pod: Object) -> frozenset[Reference]:
    """The references that remain when all optional ones are removed."""
    spec, _ = remove_optional_references(pod.get("spec") or {}, references(pod))
    return references({"spec": spec})


def remove_optional_references(
    spec: Object, missing: Collection[Reference]
) -> tuple[Object, list[FieldMessage]]:
    """A pod's spec without its optional references to ``missing`` objects, and what was dropped.
    The result is what a kubelet makes of an optional reference to a missing object: no environment
    variable, an empty volume, no pull secret."""
    if not missing:
        return spec, []
    dropped: list[FieldMessage] = []
    changed = dict(spec)
    for field_name in CONTAINERS:
        if spec.get(field_name):
            changed[field_name] = [
                _container(it, f"spec.{field_name}[{it.get('name')}]", missing, dropped)
                for it in spec[field_name]
            ]
    if spec.get("volumes"):
        changed["volumes"] = [_volume(it, missing, dropped) for it in spec["volumes"]]
    if spec.get("imagePullSecrets"):
        changed["imagePullSecrets"] = _kept(
            spec["imagePullSecrets"],
            lambda it: it.get("name") and Reference("Secret", it["name"]) in missing,
            "spec.imagePullSecrets",
            dropped,
        )
    return changed, dropped


def _container(
    container: Object, location: str, missing: Collection[Reference], dropped: list[FieldMessage]
) -> Object:
    changed = dict(container)
    if container.get("env"):
        changed["env"] = _kept(
            container["env"],
            lambda it: _references_missing(it.get("valueFrom"), "KeyRef", missing),
            f"{location}.env",
            dropped,
        )
    if container.get("envFrom"):
        changed["envFrom"] = _kept(
            container["envFrom"],
            lambda it: _references_missing(it, "Ref", missing),
            f"{location}.envFrom",
            dropped,
        )
    return changed


def _volume(volume: Object, missing: Collection[Reference], dropped: list[FieldMessage]) -> Object:
    location = f"spec.volumes[{volume.get('name')}]"
    if _references_missing(volume, "", missing):
        dropped.append(FieldMessage(location, _MESSAGE))
        # A kubelet mounts an optional volume without an object as an empty directory.
        return {"name": volume["name"], "emptyDir": {}}
    projected = volume.get("projected") or {}
    if projected.get("sources"):
        sources = _kept(
            projected["sources"],
            lambda it: _references_missing(it, "", missing),
            f"{location}.projected.sources",
            dropped,
        )
        return {**volume, "projected": {**projected, "sources": sources}}
    return volume


def _references_missing(source: Object | None, suffix: str, missing: Collection[Reference]) -> bool:
    """Whether the source references a missing object (``secretKeyRef`` with suffix ``KeyRef``)."""
    kinds: tuple[tuple[str, Kind], ...] = (("configMap", "ConfigMap"), ("secret", "Secret"))
    for field_name, kind in kinds:
        named = (source or {}).get(field_name + suffix) or {}
        name = named.get("name") or named.get("secretName")
        if name and named.get("optional") and Reference(kind, str(name)) in missing:
            return True
    return False


def _kept(
    items: list[Object],
    is_absent: Callable[[Object], object],
    location: str,
    dropped: list[FieldMessage],
) -> list[Object]:
    kept = [it for it in items if not is_absent(it)]
    if len(kept) < len(items):
        dropped.append(FieldMessage(location, _MESSAGE))
    return kept
