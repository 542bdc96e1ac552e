"""References of a pod to ConfigMaps and Secrets that must not be resolved in the remote.

The remote resolves a reference by name alone. Where home has no object of the name, an unmanaged
object of the remote would be mounted or read into the environment in its place. A pod waits for a
*required* reference; `without` takes optional ones out of a pod. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from translators.fieldpaths import CONTAINERS, FieldMessage
from translators.objects import Object
from translators.pods.references import Kind, Reference, references

_WHY = "home has no such object, and an unmanaged one of the remote must not stand in for it"


def required_references(pod: Object) -> frozenset[Reference]:
    """The ConfigMaps and Secrets without which a kubelet does not start the pod: those that the pod
    refers to once all optional references are taken out."""
    spec, _ = remove_optional_references(pod.get("spec") or {}, references(pod))
    return references({"spec": spec})


def remove_optional_references(
    spec: Object, missing: Collection[Reference]
) -> tuple[Object, list[FieldMessage]]:
    """A pod's spec without its optional references to ``absent``, and what was dropped.

    What remains is what a kubelet makes of an optional reference to an object that does not exist:
    no environment variable, an empty volume, no pull secret.
    """
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
    container: Object, at: str, absent: Collection[Reference], dropped: list[FieldMessage]
) -> Object:
    changed = dict(container)
    if container.get("env"):
        changed["env"] = _kept(
            container["env"],
            lambda it: _names(it.get("valueFrom"), "KeyRef", absent),
            f"{at}.env",
            dropped,
        )
    if container.get("envFrom"):
        changed["envFrom"] = _kept(
            container["envFrom"], lambda it: _names(it, "Ref", absent), f"{at}.envFrom", dropped
        )
    return changed


def _volume(volume: Object, absent: Collection[Reference], dropped: list[FieldMessage]) -> Object:
    at = f"spec.volumes[{volume.get('name')}]"
    if _names(volume, "", absent):
        dropped.append(FieldMessage(at, _WHY))
        # An optional volume whose object does not exist is an empty directory.
        return {"name": volume["name"], "emptyDir": {}}
    projected = volume.get("projected") or {}
    if projected.get("sources"):
        sources = _kept(
            projected["sources"],
            lambda it: _names(it, "", absent),
            f"{at}.projected.sources",
            dropped,
        )
        return {**volume, "projected": {**projected, "sources": sources}}
    return volume


def _names(source: Object | None, suffix: str, absent: Collection[Reference]) -> bool:
    """Whether the source is an object that is absent: ``secretKeyRef`` for the suffix KeyRef."""
    kinds: tuple[tuple[str, Kind], ...] = (("configMap", "ConfigMap"), ("secret", "Secret"))
    for field_name, kind in kinds:
        named = (source or {}).get(field_name + suffix) or {}
        name = named.get("name") or named.get("secretName")
        if name and named.get("optional") and Reference(kind, str(name)) in absent:
            return True
    return False


def _kept(
    items: list[Object], is_absent: Callable[[Object], object], at: str, dropped: list[FieldMessage]
) -> list[Object]:
    kept = [it for it in items if not is_absent(it)]
    if len(kept) < len(items):
        dropped.append(FieldMessage(at, _WHY))
    return kept
