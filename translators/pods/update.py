"""What follows at a remote pod that runs when its home pod changes.

The API takes each kind of change on a path of its own, so that `changes` gives up to three patches:

- the pod itself: images, tolerations (more of them, or for other times), a shorter deadline, labels
  and annotations. A label or annotation that home's pod lost is removed, but never one that the
  remote's own machinery set;
- ``ephemeralcontainers``: those that are added, as `kubectl debug` does. None is ever changed;
- ``resize``: CPU and memory of containers and sidecars, where home names them.

The remote's admission may change a pod when it is made: an image's registry, requests (LimitRanges,
GKE Autopilot, ClusterResourceOverride), tolerations, a deadline. That is the remote's decision and
stays. So annotations of the remote pod record what home's pod asked for when it was last carried,
and a field of these is sent only where home's differs from the record. Labels and annotations have
no such record: home's values count, because home's Services select pods by them.

Of a pod that an older bridge made there is no record of its resources. It begins with what home
asks for now, without a resize, where home's pod has not changed since it was made, or where the QoS
classes differ: those are immutable, so the remote's admission has changed the requests.

All are strategic merge patches, which name the containers and fields that differ and no others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from translators.identity import (
    ANNOTATION_CARRIED_IMAGES,
    ANNOTATION_CARRIED_KEYS,
    ANNOTATION_CARRIED_RESOURCES,
    may_be_set_by_remote,
)
from translators.objects import Object, metadata
from translators.pods import downward_api
from translators.pods.remote_pod import (
    RESIZABLE,
    last_applied_fields,
    last_applied_images,
    last_applied_keys,
    last_applied_resources,
    mutable_field_digests,
    remote_pod_metadata,
    resizable_resources,
    translate_ephemeral_containers,
    translate_tolerations,
)
from translators.quantity import QuantityError, parse_quantity
from translators.translation_policy import Policy

Subresource = Literal["", "ephemeralcontainers", "resize"]


@dataclass(frozen=True, slots=True)
class PodPatch:
    """A strategic merge patch of the remote pod; ``subresource`` "" is the pod itself."""

    patch: Object
    subresource: Subresource = ""


def pod_patches(home: Object, remote: Object, policy: Policy) -> list[PodPatch]:
    """What makes a remote pod follow its home pod; nothing if it does."""
    resize = _resized(home, remote)
    found = [
        PodPatch(_of_pod(home, remote, policy, resized=not resize)),
        PodPatch(_debugged(home, remote, policy), "ephemeralcontainers"),
        PodPatch(resize, "resize"),
    ]
    return [change for change in found if change.patch]


# -- the pod itself ------------------------------------------------------------------------


def _of_pod(home: Object, remote: Object, policy: Policy, *, resized: bool) -> Object:
    """``resized``: no resize is to be sent, so that home's resources are recorded as carried."""
    patch: Object = {}
    meta = _metadata(home, remote, policy, resized=resized)
    if meta:
        patch["metadata"] = meta
    # Home's images are written down at the remote pod: where that is true, none has changed.
    images = ANNOTATION_CARRIED_IMAGES in meta.get("annotations", {})
    spec = _spec(home, remote, images=images)
    if spec:
        patch["spec"] = spec
    return patch


def _metadata(home: Object, remote: Object, policy: Policy, *, resized: bool) -> Object:
    wanted, has = remote_pod_metadata(home, policy.identity), metadata(remote)
    notes = wanted["annotations"]
    if not resized:
        # True only once the resize is made, and the API server takes that on another path.
        notes.pop(ANNOTATION_CARRIED_RESOURCES, None)
    # A file that reads its text from an annotation does so since the pod was made.
    read = has.get("annotations") or {}
    texts = {key: text for key, text in downward_api.map_files(home).items() if key in read}
    if downward_api.fits_annotation_limit(notes, texts):
        notes |= texts
    patch: Object = {}
    record = ANNOTATION_CARRIED_KEYS
    same_keys = notes.get(record) == read.get(record)
    for field_name in ("labels", "annotations"):
        present = has.get(field_name) or {}
        known = set() if same_keys else {*last_applied_keys(remote, field_name), record}
        changed = {k: v for k, v in wanted[field_name].items() if present.get(k) != v}
        for key in present:
            ours = key in known or not may_be_set_by_remote(key)
            if ours and key not in wanted[field_name]:
                changed[key] = None
        if changed:
            patch[field_name] = changed
    return patch


def _spec(home: Object, remote: Object, *, images: bool) -> Object:
    ours, theirs = home.get("spec") or {}, remote.get("spec") or {}
    patch: Object = {}
    carried = last_applied_images(remote) if images else {}
    for field_name in ("containers", "initContainers") if images else ():
        wanted = {c["name"]: c.get("image") for c in ours.get(field_name) or ()}
        moved = [
            {"name": c["name"], "image": wanted[c["name"]]}
            for c in theirs.get(field_name) or ()
            if wanted.get(c["name"]) not in (None, "", c.get("image"), carried.get(c["name"]))
        ]
        if moved:
            patch[field_name] = moved
    wanted_fields, known = mutable_field_digests(home), last_applied_fields(remote)
    fields = {key for key, digest in wanted_fields.items() if known.get(key) != digest}
    deadline, current = ours.get("activeDeadlineSeconds"), theirs.get("activeDeadlineSeconds")
    # The API takes no longer one.
    shorter = deadline is not None and (current is None or deadline < current)
    if shorter and "activeDeadlineSeconds" in fields:
        patch["activeDeadlineSeconds"] = deadline
    has = theirs.get("tolerations") or []
    followed = _tolerations(has, translate_tolerations(home))
    if followed != has and "tolerations" in fields:
        patch["tolerations"] = followed
    return patch


def _tolerations(has: list[Object], wanted: list[Object]) -> list[Object]:
    """What the API allows: the seconds of a toleration may change, and more may be added."""

    def lasting(toleration: Object) -> Object:
        return {key: value for key, value in toleration.items() if key != "tolerationSeconds"}

    followed = [
        item
        if item in wanted
        else next((other for other in wanted if lasting(other) == lasting(item)), item)
        for item in has
    ]
    return [*followed, *(item for item in wanted if item not in followed)]


# -- ephemeral containers ------------------------------------------------------------------


def _debugged(home: Object, remote: Object, policy: Policy) -> Object:
    there = {c["name"] for c in (remote.get("spec") or {}).get("ephemeralContainers") or ()}
    wanted = (home.get("spec") or {}).get("ephemeralContainers") or ()
    if all(container["name"] in there for container in wanted):
        return {}
    added = [c for c in translate_ephemeral_containers(home, policy) if c["name"] not in there]
    return {"spec": {"ephemeralContainers": added}}


# -- resize --------------------------------------------------------------------------------


def _resized(home: Object, remote: Object) -> Object:
    known = last_applied_resources(remote)
    if known is None:
        if _is_as_made(home, remote):
            return {}
        known = {}
    wanted, theirs = resizable_resources(home), remote.get("spec") or {}
    spec = {}
    for field_name in ("containers", "initContainers"):
        changed = [
            {"name": name, "resources": resources}
            for container in theirs.get(field_name) or ()
            if (name := container["name"]) in wanted
            and (
                resources := _resources(
                    wanted[name], container.get("resources") or {}, _map(known.get(name))
                )
            )
        ]
        if changed:
            spec[field_name] = changed
    return {"spec": spec} if spec else {}


def _is_as_made(home: Object, remote: Object) -> bool:
    """Whether resources that differ are the decision of the remote's admission when the pod was
    made, and not a change of home's pod since."""
    ours, theirs = ((pod.get("status") or {}).get("qosClass") for pod in (home, remote))
    # An API server counts changes of a pod's spec since 1.33, from 1 on.
    return (ours and theirs and ours != theirs) or metadata(home).get("generation") == 1


def _resources(wanted: Object, has: Object, known: Object) -> Object:
    """What home names, has changed since it was last carried, and the remote does not have yet."""
    changed = {}
    for field_name, named in wanted.items():
        current, recorded = has.get(field_name) or {}, _map(known.get(field_name))
        differing = {
            key: amount
            for key in RESIZABLE
            if (amount := named.get(key)) is not None
            and not _same(amount, recorded.get(key))
            and not _same(amount, current.get(key))
        }
        if differing:
            changed[field_name] = differing
    return changed


def _map(value: Any) -> Object:
    """A map of a record; {} where somebody wrote something else there."""
    return value if isinstance(value, dict) else {}


def _same(one: str, other: Any) -> bool:
    if one == other:
        return True
    try:
        return isinstance(other, str) and parse_quantity(one) == parse_quantity(other)
    except QuantityError:
        return False
