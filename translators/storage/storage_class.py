"""Reads StorageClasses: home's, which the bridge serves, and those of the remote.

Parameters of home's class:

- `remoteStorageClass`: the remote's StorageClass; without it, the remote's default class.
- `accessModes`: access modes that PVCs may have, separated by commas; without it, all modes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from translators.object_accessors import Object, metadata, name_of
from translators.ownership_labels import LABEL_REMOTE
from translators.storage.identifiers import DRIVER

#: Parameters of a class that the bridge serves.
PARAMETER_CLASS, PARAMETER_MODES = "remoteStorageClass", "accessModes"
ACCESS_MODES = ("ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod")
#: Marks the default class of a cluster.
ANNOTATION_DEFAULT = "storageclass.kubernetes.io/is-default-class"
_ANNOTATION_DEFAULT_BETA = "storageclass.beta.kubernetes.io/is-default-class"
#: A binding mode: the class provisions a PVC when a pod that uses it has a node.
WAIT_FOR_FIRST_CONSUMER = "WaitForFirstConsumer"


class StorageClassError(ValueError):
    """The class cannot be served; the message states why, and what to change."""


@dataclass(frozen=True, slots=True)
class ServedClass:
    """A StorageClass of home that the bridge serves."""

    name: str
    remote_class: str = ""
    """The remote's class; "" is its default class."""
    access_modes: tuple[str, ...] = ()
    """The access modes that PVCs may have; () permits all."""
    reclaim_policy: str = "Delete"
    mount_options: tuple[str, ...] = ()
    waits_for_consumer: bool = True
    remotes: tuple[str, ...] | None = None
    """The remotes that ``allowedTopologies`` permits; None permits all."""


def is_served(storage_class: Object) -> bool:
    """Whether the class names the bridge as its provisioner."""
    return bool(storage_class.get("provisioner") == DRIVER)


def parse_served_class(storage_class: Object) -> ServedClass:
    """The settings of a class for which `is_served` is true. Raises StorageClassError."""
    name = name_of(storage_class)
    parameters: Object = storage_class.get("parameters") or {}
    if unknown := sorted(parameters.keys() - {PARAMETER_CLASS, PARAMETER_MODES}):
        raise StorageClassError(
            f"StorageClass {name} has the unknown parameter {unknown[0]}; use {PARAMETER_CLASS} "
            f"and {PARAMETER_MODES}"
        )
    listed = str(parameters.get(PARAMETER_MODES) or "").split(",")
    modes = tuple(filter(None, (it.strip() for it in listed)))
    if wrong := [it for it in modes if it not in ACCESS_MODES]:
        raise StorageClassError(
            f"StorageClass {name} has the unknown access mode {wrong[0]}; use "
            f"{', '.join(ACCESS_MODES)}"
        )
    return ServedClass(
        name,
        remote_class=str(parameters.get(PARAMETER_CLASS) or ""),
        access_modes=modes,
        reclaim_policy=str(storage_class.get("reclaimPolicy") or "Delete"),
        mount_options=tuple(storage_class.get("mountOptions") or ()),
        waits_for_consumer=storage_class.get("volumeBindingMode") == WAIT_FOR_FIRST_CONSUMER,
        remotes=permitted_remotes(storage_class),
    )


def find_remote_class(served: ServedClass, remote_classes: Iterable[Object]) -> Object:
    """The remote's class for PVCs of home's class. Raises StorageClassError."""
    classes = {name_of(it): it for it in remote_classes}
    if not served.remote_class:
        if default := _default_class(classes.values()):
            return default
        raise StorageClassError(
            f"the remote has no default StorageClass, on which StorageClass {served.name} relies; "
            f"set its parameter {PARAMETER_CLASS} to {_choice(classes)}, or mark one of the "
            "remote's classes as the default"
        )
    if served.remote_class not in classes:
        raise StorageClassError(
            f"the remote has no StorageClass {served.remote_class}, which StorageClass "
            f"{served.name} names; set its parameter {PARAMETER_CLASS} to {_choice(classes)}"
        )
    return classes[served.remote_class]


def waits_for_consumer(remote_class: Object | None) -> bool:
    """Whether a PVC of the class may be unbound until a pod uses it; also if the class is
    unknown."""
    mode = (remote_class or {}).get("volumeBindingMode")
    return remote_class is None or mode == WAIT_FOR_FIRST_CONSUMER


def permitted_remotes(storage_class: Object) -> tuple[str, ...] | None:
    """The remotes that ``allowedTopologies`` of a class permits; None if it permits all."""
    terms = storage_class.get("allowedTopologies") or ()
    expressions = [it for term in terms for it in term.get("matchLabelExpressions") or ()]
    named = [it for it in expressions if it.get("key") == LABEL_REMOTE]
    if not named:
        return None
    return tuple(str(value) for it in named for value in it.get("values") or ())


def _default_class(classes: Iterable[Object]) -> Object | None:
    """The newest of the classes that are marked as default, as kube-apiserver selects it
    (plugin/pkg/admission/storage/storageclass/setdefault)."""
    marked = [it for it in classes if is_default(it)]
    marked.sort(key=name_of)
    return max(marked, key=lambda it: str(metadata(it).get("creationTimestamp")), default=None)


def is_default(storage_class: Object) -> bool:
    """Whether the class is marked as a default class of its cluster."""
    annotations = metadata(storage_class).get("annotations") or {}
    return "true" in (
        annotations.get(ANNOTATION_DEFAULT),
        annotations.get(_ANNOTATION_DEFAULT_BETA),
    )


def _choice(classes: Iterable[str]) -> str:
    return ", ".join(sorted(classes)[:5]) or "a StorageClass of the remote (it has none)"
