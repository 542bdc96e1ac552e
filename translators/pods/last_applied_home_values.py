"""The values of the home pod that were last applied, recorded in annotations of the remote pod.

The remote's admission may change a pod. Only this record shows whether a difference between the two
pods is the remote's decision or a change of the home pod (`translators.pods.update`).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator

from translators.derived_names import short_hash
from translators.object_accessors import Object, metadata
from translators.ownership_labels import (
    ANNOTATION_CARRIED_FIELDS,
    ANNOTATION_CARRIED_IMAGES,
    ANNOTATION_CARRIED_KEYS,
    ANNOTATION_CARRIED_RESOURCES,
    copied_annotations,
    copied_labels,
)
from translators.pods.scheduling_fields import own_tolerations

#: The resources that can be resized in place (ValidatePodResize in pkg/apis/core/validation).
RESIZABLE = ("cpu", "memory")

#: `json.dumps` with an option makes an encoder at each call, which costs more than its work here.
_compact = json.JSONEncoder(separators=(",", ":")).encode
_sorted = json.JSONEncoder(sort_keys=True).encode


def record_annotations(home: Object) -> dict[str, str]:
    """The annotations that record the current values of the home pod; empty values are omitted."""
    spec = home.get("spec") or {}
    images = {
        container["name"]: container["image"]
        for field_name in ("containers", "initContainers")
        for container in spec.get(field_name) or ()
        if container.get("image")
    }
    values = {
        ANNOTATION_CARRIED_IMAGES: images,
        ANNOTATION_CARRIED_RESOURCES: resizable_resources(home),
        ANNOTATION_CARRIED_FIELDS: mutable_field_digests(home),
    }
    keys = record_keys(labels=copied_labels(home), annotations=copied_annotations(home))
    return keys | {annotation: _compact(value) for annotation, value in values.items() if value}


def record_keys(**fields: Collection[str]) -> dict[str, str]:
    """The annotation that records which keys of ``labels`` and ``annotations`` were copied: only
    these are removed again. The remote's own components (admission, CNI, scheduler) set others, of
    any form, and a NetworkPolicy may select by them."""
    keys = {name: sorted(found) for name, found in sorted(fields.items()) if found}
    return {ANNOTATION_CARRIED_KEYS: _compact(keys)} if keys else {}


def record_resources_patch(home: Object) -> Object:
    """The strategic merge patch that records the home pod's resources as applied."""
    text = _compact(resizable_resources(home))
    return {"metadata": {"annotations": {ANNOTATION_CARRIED_RESOURCES: text}}}


def resizable_resources(home: Object) -> Object:
    """CPU and memory of each container that can be resized in place, by container name: ``{"web":
    {"requests": {"cpu": "1"}}}``."""
    found: Object = {}
    for container in _resizable_containers(home):
        resources = container.get("resources") or {}
        amounts = {
            field_name: {key: resources[field_name][key] for key in RESIZABLE if key in values}
            for field_name in ("requests", "limits")
            if (values := resources.get(field_name))
        }
        if amounts := {field_name: values for field_name, values in amounts.items() if values}:
            found[container["name"]] = amounts
    return found


def _resizable_containers(home: Object) -> Iterator[Object]:
    spec = home.get("spec") or {}
    yield from spec.get("containers") or ()
    # Of the init containers, only sidecars keep running.
    for container in spec.get("initContainers") or ():
        if container.get("restartPolicy") == "Always":
            yield container


def mutable_field_digests(home: Object) -> Object:
    """Digests, by field name, of the other fields that may change while the pod runs and that the
    remote's admission may change."""
    deadline = (home.get("spec") or {}).get("activeDeadlineSeconds")
    values = {"activeDeadlineSeconds": deadline, "tolerations": own_tolerations(home)}
    return {key: short_hash(_sorted(value)) for key, value in values.items() if value}


def last_applied_keys(remote: Object, field_name: str) -> set[str]:
    """The keys in the remote object's ``labels`` or ``annotations`` that were copied from home."""
    keys = _read(remote, ANNOTATION_CARRIED_KEYS).get(field_name)
    return {key for key in keys if isinstance(key, str)} if isinstance(keys, list) else set()


def last_applied_images(remote: Object) -> Object:
    """The last applied image of each container, by container name."""
    return _read(remote, ANNOTATION_CARRIED_IMAGES)


def last_applied_resources(remote: Object) -> Object | None:
    """The last applied `resizable_resources`; None if an older bridge created the pod, without a
    record."""
    if ANNOTATION_CARRIED_RESOURCES not in (metadata(remote).get("annotations") or {}):
        return None
    return _read(remote, ANNOTATION_CARRIED_RESOURCES)


def last_applied_digests(remote: Object) -> Object:
    """The last applied `mutable_field_digests`."""
    return _read(remote, ANNOTATION_CARRIED_FIELDS)


def _read(remote: Object, annotation: str) -> Object:
    text = (metadata(remote).get("annotations") or {}).get(annotation) or ""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None  # Another writer changed the annotation: nothing is recorded.
    return value if isinstance(value, dict) else {}
