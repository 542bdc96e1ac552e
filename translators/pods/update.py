"""Computes the patches of a running remote pod after changes of its home pod.

The API accepts each kind of change at another path, so a change results in up to three patches:

- the pod: images, tolerations (added ones, or another ``tolerationSeconds``), a shorter deadline,
  labels and annotations. A label or annotation that the home pod no longer has is removed if it was
  copied from home: the remote's own components set others;
- ``ephemeralcontainers``: added ones. Existing ones cannot change;
- ``resize``: CPU and memory of containers and sidecars, where the home pod specifies them.

The remote's admission may change a new pod: the image registry, requests (LimitRanges, GKE
Autopilot), tolerations, the deadline. Such a field is only updated if the home pod's value differs
from the last applied one (`translators.pods.last_applied_home_values`). Labels and annotations
always follow the home pod, because home's Services select pods by them.

A remote pod of an older bridge has no record of its resources. The current values are then recorded
without a resize if the home pod has not changed since its creation, or if the QoS classes differ:
those are immutable, so the remote's admission has changed the requests.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Literal

from translators.object_accessors import Object, metadata
from translators.ownership_labels import (
    ANNOTATION_CARRIED_IMAGES,
    ANNOTATION_CARRIED_KEYS,
    ANNOTATION_CARRIED_RESOURCES,
)
from translators.pods import downward_api, dropped_metadata
from translators.pods.last_applied_home_values import (
    RESIZABLE,
    last_applied_digests,
    last_applied_images,
    last_applied_keys,
    last_applied_resources,
    mutable_field_digests,
    resizable_resources,
)
from translators.pods.remote_pod import remote_pod_metadata, translate_ephemeral_containers
from translators.pods.scheduling_fields import toleration_text, translate_tolerations
from translators.quantity import QuantityError, parse_quantity
from translators.translation_options import Policy

Subresource = Literal["", "ephemeralcontainers", "resize"]


@dataclass(frozen=True, slots=True)
class PodPatch:
    """A strategic merge patch of the remote pod; ``subresource`` "" is the pod itself."""

    patch: Object
    subresource: Subresource = ""


def pod_patches(home: Object, remote: Object, policy: Policy) -> list[PodPatch]:
    """The patches that make a remote pod match its home pod; [] if it does."""
    resize = _resize(home, remote)
    patches = [
        PodPatch(_pod_patch(home, remote, policy, resized=not resize)),
        PodPatch(_ephemeral_containers(home, remote, policy), "ephemeralcontainers"),
        PodPatch(resize, "resize"),
    ]
    return [change for change in patches if change.patch]


def _pod_patch(home: Object, remote: Object, policy: Policy, *, resized: bool) -> Object:
    """``resized`` is true if no resize is necessary; then home's resources are recorded as
    applied."""
    meta = _metadata(home, remote, policy, resized=resized)
    # If the record of images does not change, no image of the home pod has changed.
    images = ANNOTATION_CARRIED_IMAGES in meta.get("annotations", {})
    parts = {"metadata": meta, "spec": _spec(home, remote, policy, images=images)}
    return {key: part for key, part in parts.items() if part}


def _metadata(home: Object, remote: Object, policy: Policy, *, resized: bool) -> Object:
    desired, current = remote_pod_metadata(home, policy), metadata(remote)
    annotations = desired["annotations"]
    if not resized:
        # Recorded after the resize, which is a separate request.
        annotations.pop(ANNOTATION_CARRIED_RESOURCES, None)
    dropped = functools.partial(dropped_metadata.dropped_values, home, policy)
    # A file reads the annotation only if the pod was created with it.
    current_annotations = current.get("annotations") or {}
    texts = {
        key: text
        for key, text in downward_api.file_texts(home, dropped).items()
        if key in current_annotations
    }
    if downward_api.fits_annotation_limit(annotations, texts):
        annotations |= texts
    patch: Object = {}
    record = ANNOTATION_CARRIED_KEYS
    same_keys = annotations.get(record) == current_annotations.get(record)
    for field_name in ("labels", "annotations"):
        present = current.get(field_name) or {}
        recorded = set() if same_keys else {*last_applied_keys(remote, field_name), record}
        changed = {k: v for k, v in desired[field_name].items() if present.get(k) != v}
        for key in present:
            is_dropped = dropped_metadata.is_dropped(key, policy)
            if key in recorded and not is_dropped and key not in desired[field_name]:
                changed[key] = None
        if changed:
            patch[field_name] = changed
    return patch


def _spec(home: Object, remote: Object, policy: Policy, *, images: bool) -> Object:
    home_spec, remote_spec = home.get("spec") or {}, remote.get("spec") or {}
    patch: Object = {}
    applied = last_applied_images(remote) if images else {}
    for field_name in ("containers", "initContainers") if images else ():
        wanted = {c["name"]: c.get("image") for c in home_spec.get(field_name) or ()}
        changed = [
            {"name": c["name"], "image": wanted[c["name"]]}
            for c in remote_spec.get(field_name) or ()
            if wanted.get(c["name"]) not in (None, "", c.get("image"), applied.get(c["name"]))
        ]
        if changed:
            patch[field_name] = changed
    digests, applied_digests = mutable_field_digests(home), last_applied_digests(remote)
    fields = {key for key, digest in digests.items() if applied_digests.get(key) != digest}
    deadline = home_spec.get("activeDeadlineSeconds")
    current = remote_spec.get("activeDeadlineSeconds")
    # The API does not allow a longer deadline.
    shorter = deadline is not None and (current is None or deadline < current)
    if shorter and "activeDeadlineSeconds" in fields:
        patch["activeDeadlineSeconds"] = deadline
    if "tolerations" in fields:
        existing = remote_spec.get("tolerations") or []
        translated = _tolerations(existing, translate_tolerations(home, policy))
        if translated != existing:
            patch["tolerations"] = translated
    return patch


def _tolerations(existing: list[Object], wanted: list[Object]) -> list[Object]:
    """The tolerations that the API allows: ``tolerationSeconds`` may change and entries may be
    added."""
    wanted_texts = {toleration_text(item) for item in wanted}
    # The first of those that only differ in ``tolerationSeconds``.
    similar: dict[str, Object] = {}
    for item in wanted:
        similar.setdefault(_text_without_seconds(item), item)
    updated = [
        item
        if toleration_text(item) in wanted_texts
        else similar.get(_text_without_seconds(item), item)
        for item in existing
    ]
    updated_texts = {toleration_text(item) for item in updated}
    return [*updated, *(item for item in wanted if toleration_text(item) not in updated_texts)]


def _text_without_seconds(toleration: Object) -> str:
    kept = {key: value for key, value in toleration.items() if key != "tolerationSeconds"}
    return toleration_text(kept)


def _ephemeral_containers(home: Object, remote: Object, policy: Policy) -> Object:
    existing = {c["name"] for c in (remote.get("spec") or {}).get("ephemeralContainers") or ()}
    wanted = (home.get("spec") or {}).get("ephemeralContainers") or ()
    if all(container["name"] in existing for container in wanted):
        return {}
    added = [c for c in translate_ephemeral_containers(home, policy) if c["name"] not in existing]
    return {"spec": {"ephemeralContainers": added}}


def _resize(home: Object, remote: Object) -> Object:
    applied = last_applied_resources(remote)
    if applied is None:
        if _is_unchanged_since_creation(home, remote):
            return {}
        applied = {}
    wanted, remote_spec = resizable_resources(home), remote.get("spec") or {}
    spec = {}
    for field_name in ("containers", "initContainers"):
        changed = [
            {"name": name, "resources": resources}
            for container in remote_spec.get(field_name) or ()
            if (name := container["name"]) in wanted
            and (
                resources := _resources(
                    wanted[name], container.get("resources") or {}, _map(applied.get(name))
                )
            )
        ]
        if changed:
            spec[field_name] = changed
    return {"spec": spec} if spec else {}


def _is_unchanged_since_creation(home: Object, remote: Object) -> bool:
    """Whether differing resources are a decision of the remote's admission."""
    home_class, remote_class = ((pod.get("status") or {}).get("qosClass") for pod in (home, remote))
    differs = home_class and remote_class and home_class != remote_class
    # API servers since 1.33 count changes of a pod's spec in its generation, starting at 1.
    return differs or metadata(home).get("generation") == 1


def _resources(wanted: Object, existing: Object, applied: Object) -> Object:
    """The amounts that differ both from the last applied ones and from the remote pod's."""
    changed = {}
    for field_name, named in wanted.items():
        current, recorded = existing.get(field_name) or {}, _map(applied.get(field_name))
        differing = {
            key: amount
            for key in RESIZABLE
            if (amount := named.get(key)) is not None
            and not _equal_quantities(amount, recorded.get(key))
            and not _equal_quantities(amount, current.get(key))
        }
        if differing:
            changed[field_name] = differing
    return changed


def _map(value: Any) -> Object:
    """A map of the record; {} if another writer changed it."""
    return value if isinstance(value, dict) else {}


def _equal_quantities(one: str, other: Any) -> bool:
    if one == other:
        return True
    try:
        return isinstance(other, str) and parse_quantity(one) == parse_quantity(other)
    except QuantityError:
        return False
