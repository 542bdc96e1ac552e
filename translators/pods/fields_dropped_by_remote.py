"""Detects fields of a pod that the remote's API server did not keep at creation.

An API server drops fields that its version does not know or whose feature gate is off; admission
may remove fields too. `pruned_fields` compares the response of the creation with the request. Added
fields and changed values are defaults and decisions of admission, not pruned fields.

Without some fields a pod would run with less isolation than requested, or run again when it must
not (`PrunedField.restricts`); such a pod must not run. If a restricting field is recent or guarded
by a feature gate, a dry run before the creation is worth a request (`needs_dry_run`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from translators.field_paths import CONTAINERS, LIST_KEYS, FieldMessage, items_by_key
from translators.object_accessors import Object

#: Why a field is missing, for the owner of the pod.
MESSAGE = (
    "the remote cluster's API server did not keep it: its version does not know the field, its "
    "feature gate is off, or its admission removed it"
)

#: Paths of fields that restrict what a pod may do, or when its containers restart.
_RESTRICTING = re.compile(
    r"(^spec|ontainers\[\])\.securityContext(\.|$)"
    r"|^spec\.(automountServiceAccountToken|hostUsers|runtimeClassName)$"
    r"|ontainers\[\]\.(restartPolicy|restartPolicyRules)(\.|\[|$)"
    r"|^spec\.volumes\[\]\.image(\.|$)"
    r"|ontainers\[\]\.volumeMounts\[\]\.(readOnly|recursiveReadOnly)$"
)
#: Fields for which false has a meaning; the API omits other fields that are false.
_FALSE = frozenset({"allowPrivilegeEscalation", "automountServiceAccountToken", "hostUsers"})
#: Values that equal an absent field.
_DEFAULTS = (
    ("hostUsers", True),
    ("procMount", "Default"),
    ("recursiveReadOnly", "Disabled"),
    ("supplementalGroupsPolicy", "Merge"),
)
#: Recent fields of a security context, which not all supported servers (from 1.27, BRG106) keep.
_RECENT = ("appArmorProfile", "procMount", "seLinuxChangePolicy", "supplementalGroupsPolicy")
#: Not compared: a list that admission replaces, and the bridge's own scheduling gate.
_NOT_COMPARED = frozenset({"spec.tolerations", "spec.schedulingGates"})


@dataclass(frozen=True, slots=True)
class PrunedField:
    """A field that was sent and that the created pod does not have."""

    path: str
    """As in `translators.field_paths`."""
    location: str
    """For messages: ``spec.containers[web].securityContext``."""

    @property
    def restricts(self) -> bool:
        """Whether a pod without the field may do more than its spec allows."""
        return bool(_RESTRICTING.search(self.path))

    @property
    def field_message(self) -> FieldMessage:
        """The field, and the reason why it is missing."""
        return FieldMessage(self.location, MESSAGE)


def pruned_fields(sent: Object, created: Object) -> list[PrunedField]:
    """The fields of the spec that were sent and that the created pod does not have."""
    return list(_compare(sent.get("spec") or {}, created.get("spec") or {}, "spec", "spec"))


def needs_dry_run(sent: Object) -> bool:
    """Whether the pod has a restricting field that a supported API server may not keep."""
    spec = sent.get("spec") or {}
    if spec.get("hostUsers") is False or _has_recent_security_field(spec.get("securityContext")):
        return True
    if any("image" in volume for volume in spec.get("volumes") or ()):
        return True
    if any("restartPolicy" in container for container in spec.get("containers") or ()):
        return True  # For init containers (sidecars) all supported servers keep it.
    return any(
        _has_recent_field(container)
        for field_name in CONTAINERS
        for container in spec.get(field_name) or ()
    )


def _has_recent_field(container: Object) -> bool:
    mounts = container.get("volumeMounts") or ()
    return (
        "restartPolicyRules" in container
        or _has_recent_security_field(container.get("securityContext"))
        or any(_is_significant("recursiveReadOnly", it.get("recursiveReadOnly")) for it in mounts)
    )


def _has_recent_security_field(context: Object | None) -> bool:
    return any(_is_significant(key, (context or {}).get(key)) for key in _RECENT)


def _is_significant(key: str, value: Any) -> bool:
    """Whether a server that keeps the field would return it."""
    if isinstance(value, dict):
        return any(_is_significant(name, inner) for name, inner in value.items())
    if isinstance(value, list):
        return bool(value)
    if value is False:
        return key in _FALSE
    return bool(value) and (key, value) not in _DEFAULTS


def _compare(sent: Object, created: Object, path: str, location: str) -> Iterator[PrunedField]:
    for key, value in sent.items():
        below, inner_location = f"{path}.{key}", f"{location}.{key}"
        if below in _NOT_COMPARED or not _is_significant(key, value):
            continue
        received = created.get(key)
        if received is None:
            yield PrunedField(below, inner_location)
        elif isinstance(value, dict) and isinstance(received, dict):
            yield from _compare(value, received, below, inner_location)
        elif isinstance(value, list) and isinstance(received, list):
            list_key = LIST_KEYS.get(key, "name")
            yield from _compare_items(value, received, list_key, below, inner_location)


def _compare_items(
    sent: list[Any], created: list[Any], key: str, path: str, location: str
) -> Iterator[PrunedField]:
    """Items with a key: missing items, and missing fields of each. Other items: missing fields,
    unless the number of items changed."""
    created_items, sent_items = items_by_key(created, key), items_by_key(sent, key)
    pairs: Iterable[tuple[object, Any, Any]]
    if sent_items is not None and created_items is not None:
        pairs = [(name, item, created_items.get(name)) for name, item in sent_items.items()]
    elif len(sent) == len(created):
        pairs = zip(range(len(sent)), sent, created, strict=True)
    else:
        return
    for name, item, received in pairs:
        inner_location = f"{location}[{name}]"
        if received is None:
            yield PrunedField(f"{path}[]", inner_location)
        elif isinstance(item, dict) and isinstance(received, dict):
            yield from _compare(item, received, f"{path}[]", inner_location)
