"""What follows at a remote pod that runs when its home pod changes.

The API takes each kind of change on a path of its own, so that `changes` gives up to three patches:

- the pod itself: images that changed at home (one that a webhook of the remote put in the place of
  home's stays until then), tolerations (more of them, or for other times), a deadline, labels and
  annotations. A label or annotation that home's pod lost is removed, but never one that the
  remote's own machinery set;
- ``ephemeralcontainers``: those that are added, as `kubectl debug` does. None is ever changed;
- ``resize``: CPU and memory of containers and sidecars, where home names them and differs. What
  only the remote names (its LimitRanges' defaults) stays.

All are strategic merge patches, which name the containers and fields that differ and no others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from translators import downward, naming
from translators.pod import (
    carried_images,
    carried_keys,
    ephemeral_containers,
    pod_metadata,
    tolerations,
)
from translators.policy import Policy
from translators.quantity import QuantityError, parse
from translators.types import Object, metadata

Subresource = Literal["", "ephemeralcontainers", "resize"]

#: The resources that may change in place (ValidatePodResize in pkg/apis/core/validation).
_RESIZED = ("cpu", "memory")


@dataclass(frozen=True, slots=True)
class Change:
    """A strategic merge patch of the remote pod; ``subresource`` "" is the pod itself."""

    patch: Object
    subresource: Subresource = ""


def changes(home: Object, remote: Object, policy: Policy) -> list[Change]:
    """What makes a remote pod follow its home pod; nothing if it does."""
    found = [
        Change(_of_pod(home, remote, policy)),
        Change(_debugged(home, remote, policy), "ephemeralcontainers"),
        Change(_resized(home, remote), "resize"),
    ]
    return [change for change in found if change.patch]


# -- the pod itself ------------------------------------------------------------------------


def _of_pod(home: Object, remote: Object, policy: Policy) -> Object:
    patch: Object = {}
    meta = _metadata(home, remote, policy)
    if meta:
        patch["metadata"] = meta
    # Home's images are written down at the remote pod: where that is true, none has changed.
    images = naming.ANNOTATION_CARRIED_IMAGES in meta.get("annotations", {})
    spec = _spec(home, remote, images=images)
    if spec:
        patch["spec"] = spec
    return patch


def _metadata(home: Object, remote: Object, policy: Policy) -> Object:
    wanted, has = pod_metadata(home, policy.identity), metadata(remote)
    notes = wanted["annotations"]
    # A file that reads its text from an annotation does so since the pod was made.
    read = has.get("annotations") or {}
    texts = {key: text for key, text in downward.files(home).items() if key in read}
    if downward.fit(notes, texts):
        notes |= texts
    patch: Object = {}
    record = naming.ANNOTATION_CARRIED_KEYS
    same_keys = notes.get(record) == read.get(record)
    for field_name in ("labels", "annotations"):
        present = has.get(field_name) or {}
        known = set() if same_keys else {*carried_keys(remote, field_name), record}
        changed = {k: v for k, v in wanted[field_name].items() if present.get(k) != v}
        for key in present:
            ours = key in known or not naming.set_by_remote(key)
            if ours and key not in wanted[field_name]:
                changed[key] = None
        if changed:
            patch[field_name] = changed
    return patch


def _spec(home: Object, remote: Object, *, images: bool) -> Object:
    ours, theirs = home.get("spec") or {}, remote.get("spec") or {}
    patch: Object = {}
    carried = carried_images(remote) if images else {}
    for field_name in ("containers", "initContainers") if images else ():
        wanted = {c["name"]: c.get("image") for c in ours.get(field_name) or ()}
        moved = [
            {"name": c["name"], "image": wanted[c["name"]]}
            for c in theirs.get(field_name) or ()
            if wanted.get(c["name"]) not in (None, "", c.get("image"), carried.get(c["name"]))
        ]
        if moved:
            patch[field_name] = moved
    deadline = ours.get("activeDeadlineSeconds")
    if deadline is not None and deadline != theirs.get("activeDeadlineSeconds"):
        patch["activeDeadlineSeconds"] = deadline
    has = theirs.get("tolerations") or []
    followed = _tolerations(has, tolerations(home))
    if followed != has:
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
    added = [c for c in ephemeral_containers(home, policy) if c["name"] not in there]
    return {"spec": {"ephemeralContainers": added}}


# -- resize --------------------------------------------------------------------------------


def _resized(home: Object, remote: Object) -> Object:
    ours, theirs = home.get("spec") or {}, remote.get("spec") or {}
    spec = {}
    for field_name in ("containers", "initContainers"):
        current = {c["name"]: c.get("resources") or {} for c in theirs.get(field_name) or ()}
        changed = [
            {"name": container["name"], "resources": resources}
            for container in _resizable(ours, field_name)
            if container["name"] in current
            and (resources := _resources(container, current[container["name"]]))
        ]
        if changed:
            spec[field_name] = changed
    return {"spec": spec} if spec else {}


def _resizable(spec: Object, field_name: str) -> Iterator[Object]:
    for container in spec.get(field_name) or ():
        # Of init containers only sidecars run on.
        if field_name == "containers" or container.get("restartPolicy") == "Always":
            yield container


def _resources(container: Object, has: Object) -> Object:
    wanted = container.get("resources") or {}
    changed = {}
    for field_name in ("requests", "limits"):
        named, current = wanted.get(field_name) or {}, has.get(field_name) or {}
        differing = {
            key: named[key]
            for key in _RESIZED
            if key in named and not _same(named[key], current.get(key))
        }
        if differing:
            changed[field_name] = differing
    return changed


def _same(one: str, other: str | None) -> bool:
    if one == other:
        return True
    try:
        return other is not None and parse(one) == parse(other)
    except QuantityError:
        return one == other
