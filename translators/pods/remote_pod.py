"""A home pod as it runs in the remote.

The rule is: carry everything, also fields that this version does not know, and change only what
would mean something else there. `translators.pods.field_rules` decides each field; what is dropped of
what the pod's owner asked for is listed, so that it can be told.

- Identity (namespace, UID, node, service account) in the downward API stays home's.
- What home's admission and scheduler decided for home's cluster goes.
- Of node selectors, affinity and priority stays what means something there
  (`translators.pods.placement`).
- One that must not run twice is made with a gate of ours (`translators.pods.run_once`).

What follows later, when the pod runs, is `translators.pods.update`'s.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

from translators.fieldpaths import FieldMessage, replace_containers, set_or_remove
from translators.identity import (
    ANNOTATION_CARRIED_FIELDS,
    ANNOTATION_CARRIED_IMAGES,
    ANNOTATION_CARRIED_KEYS,
    ANNOTATION_CARRIED_RESOURCES,
    ANNOTATION_NODE_NAME,
    DOMAIN,
    Identity,
    copied_annotations,
    copied_labels,
    may_be_set_by_remote,
    remote_metadata,
)
from translators.names import short_hash
from translators.objects import Object, metadata
from translators.pods import (
    downward_api,
    field_rules,
    placement,
    references,
    run_once,
    unresolved_references,
)
from translators.pods.downward_api import translate_env, translate_volume
from translators.pods.references import Reference
from translators.pods.service_accounts import apply_service_account, service_account_name
from translators.translation_policy import Policy

#: The resources that may change in place (ValidatePodResize in pkg/apis/core/validation).
RESIZABLE = ("cpu", "memory")
#: Why a reference to a token Secret of the bridge's is rejected.
RESERVED_SECRET_MESSAGE = (
    f"names that begin with {references.TOKEN_PREFIX} are reserved for the tokens that the bridge "
    "writes for each pod: give the Secret another name"
)


@dataclass(frozen=True, slots=True)
class TranslatedPod:
    """A remote pod, and what of the home pod is not in it."""

    pod: Object
    dropped: list[FieldMessage] = field(default_factory=list)


def rejection_message(home: Object) -> str:
    """Why the pod cannot run in the remote, in words for its owner; "" where it can."""
    return "; ".join(map(str, rejections(home)))


def rejections(home: Object) -> list[FieldMessage]:
    """The fields for which the pod cannot run in the remote, each with what to do about it."""
    spec = home.get("spec") or {}
    # An ephemeral container comes to a pod that runs, and must not end it (`sync.pods.update`).
    fixed = {key: value for key, value in spec.items() if key != "ephemeralContainers"}
    return field_rules.rejected_fields(home) + [
        FieldMessage(f"Secret {name}", RESERVED_SECRET_MESSAGE)
        for name in references.reserved_secrets(fixed)
    ]


def translate_pod(
    home: Object, policy: Policy, *, priority_classes: frozenset[str] = frozenset()
) -> TranslatedPod:
    """The pod to create in the remote for a home pod that is bound to the virtual node.

    ``priority_classes`` are the names of those that the remote has. Ephemeral containers are left
    out: a new pod may have none, they are added to it (`podupdate`).
    """
    translated = _translated(home, policy, priority_classes)
    spec = translated.pod["spec"]
    spec.pop("ephemeralContainers", None)
    run_once.add_gate(spec)
    return translated


def without_optional_references(
    translated: TranslatedPod, refs: Collection[Reference]
) -> TranslatedPod:
    """The remote pod without these optional references (`translators.pods.unresolved_references`)."""
    spec, dropped = unresolved_references.remove_optional_references(translated.pod["spec"], refs)
    return TranslatedPod({**translated.pod, "spec": spec}, [*translated.dropped, *dropped])


def translate_ephemeral_containers(home: Object, policy: Policy) -> list[Object]:
    """The pod's ephemeral containers as they are in the remote."""
    found: list[Object] = (
        _translated(home, policy, frozenset()).pod["spec"].get("ephemeralContainers", [])
    )
    return found


def _translated(home: Object, policy: Policy, priority_classes: frozenset[str]) -> TranslatedPod:
    identity = policy.identity
    less, dropped = field_rules.drop_fields(home)
    spec: Object = dict(less.get("spec") or {})
    set_or_remove(spec, "nodeSelector", placement.translate_node_selector(spec.get("nodeSelector")))
    set_or_remove(
        spec, "affinity", placement.translate_affinity(spec.get("affinity"), identity, dropped)
    )
    placement.restrict_to_nodes(spec, policy.node_selector)
    if spec.get("topologySpreadConstraints"):
        spec["topologySpreadConstraints"] = [
            placement.remove_merged_label_keys(constraint)
            for constraint in spec["topologySpreadConstraints"]
        ]
    set_or_remove(spec, "tolerations", translate_tolerations(home))
    without_class = placement.dropped_priority_class(
        spec.get("priorityClassName"), priority_classes
    )
    if without_class is not None:
        del spec["priorityClassName"]
        dropped.append(without_class)
    apply_service_account(spec, home, policy, dropped)
    name, address = service_account_name(home), policy.node_address
    replace_containers(spec, lambda c: translate_env(c, account=name, address=address))
    meta = remote_pod_metadata(home, identity)
    texts = downward_api.map_files(home)
    if downward_api.fits_annotation_limit(meta["annotations"], texts):
        meta["annotations"] |= texts
    else:
        dropped += downward_api.oversized_map_files(home)
        texts = {}
    set_or_remove(
        spec, "volumes", [translate_volume(item, texts) for item in spec.get("volumes") or ()]
    )
    pod = {key: value for key, value in less.items() if key != "status"}
    return TranslatedPod(pod={**pod, "metadata": meta, "spec": spec}, dropped=dropped)


def remote_pod_metadata(home: Object, identity: Identity) -> Object:
    """As `identity.remote_metadata`, and the node's name where the downward API finds it, and what
    `podupdate` is to know of home later: the images, and which keys came from there that could as
    well be the remote's own (`identity.may_be_set_by_remote`)."""
    meta = remote_metadata(home, identity)
    meta["annotations"][ANNOTATION_NODE_NAME] = identity.node
    carried = {
        "annotations": sorted(filter(may_be_set_by_remote, copied_annotations(home))),
        "labels": sorted(filter(may_be_set_by_remote, copied_labels(home))),
    }
    some = {field_name: keys for field_name, keys in carried.items() if keys}
    if some:
        meta["annotations"][ANNOTATION_CARRIED_KEYS] = _compact(some)
    spec = home.get("spec") or {}
    images = {
        container["name"]: container["image"]
        for field_name in ("containers", "initContainers")
        for container in spec.get(field_name) or ()
        if container.get("image")
    }
    if images:
        meta["annotations"][ANNOTATION_CARRIED_IMAGES] = _compact(images)
    if resources := resizable_resources(home):
        meta["annotations"][ANNOTATION_CARRIED_RESOURCES] = _compact(resources)
    if fields := mutable_field_digests(home):
        meta["annotations"][ANNOTATION_CARRIED_FIELDS] = _compact(fields)
    return meta


def resizable_resources(home: Object) -> Object:
    """The CPU and memory of each container that can be resized in place, by its name; {} where no
    container names any."""
    found: Object = {}
    for container in _resizable(home):
        its = container.get("resources") or {}
        named = {
            field_name: {key: its[field_name][key] for key in RESIZABLE if key in its[field_name]}
            for field_name in ("requests", "limits")
            if its.get(field_name)
        }
        if named := {field_name: amounts for field_name, amounts in named.items() if amounts}:
            found[container["name"]] = named
    return found


def _resizable(home: Object) -> Iterator[Object]:
    spec = home.get("spec") or {}
    yield from spec.get("containers") or ()
    # Of init containers only sidecars run on.
    for container in spec.get("initContainers") or ():
        if container.get("restartPolicy") == "Always":
            yield container


def mutable_field_digests(home: Object) -> Object:
    """A digest of each field of the pod that may change while it runs and that the remote's
    admission may change, but for those that have a record of their own; {} where it has none."""
    deadline = (home.get("spec") or {}).get("activeDeadlineSeconds")
    values = {"activeDeadlineSeconds": deadline, "tolerations": translate_tolerations(home)}
    return {key: _digest(value) for key, value in values.items() if value}


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True)
    return short_hash(text)


_compact = json.JSONEncoder(separators=(",", ":")).encode


def last_applied_keys(remote: Object, field_name: str) -> set[str]:
    """The keys with a domain that a remote pod's ``labels`` or ``annotations`` have of home's."""
    keys = _recorded(remote, ANNOTATION_CARRIED_KEYS).get(field_name)
    return set(map(str, keys)) if isinstance(keys, list) else set()


def last_applied_images(remote: Object) -> Object:
    """The image that home's container of each name had when it was last carried."""
    return _recorded(remote, ANNOTATION_CARRIED_IMAGES)


def last_applied_resources(remote: Object) -> Object | None:
    """What `resources_of` gave for home's pod when its resources were last carried; None where
    that is not recorded, as of a pod that an older bridge made."""
    if ANNOTATION_CARRIED_RESOURCES not in (metadata(remote).get("annotations") or {}):
        return None
    return _recorded(remote, ANNOTATION_CARRIED_RESOURCES)


def last_applied_fields(remote: Object) -> Object:
    """What `fields_of` gave for home's pod when these fields were last carried."""
    return _recorded(remote, ANNOTATION_CARRIED_FIELDS)


def record_resources_patch(home: Object) -> Object:
    """The strategic merge patch that records home's resources as carried."""
    text = _compact(resizable_resources(home))
    return {"metadata": {"annotations": {ANNOTATION_CARRIED_RESOURCES: text}}}


def _recorded(remote: Object, annotation: str) -> Object:
    text = (metadata(remote).get("annotations") or {}).get(annotation) or ""
    try:
        found = json.loads(text)
    except ValueError:
        found = None  # Somebody wrote something else there: then nothing is known.
    return found if isinstance(found, dict) else {}


def translate_tolerations(home: Object) -> list[Object]:
    """The pod's tolerations, less those that can only mean the virtual node's taint."""
    found = (home.get("spec") or {}).get("tolerations") or ()
    return [item for item in found if not str(item.get("key", "")).startswith(DOMAIN + "/")]
