"""Which fields of a pod the remote's API server did not keep when it made the pod.

An API server drops a field that its version does not know, or whose feature gate is off, and admits
the pod without it; its admission may remove fields too. The answer to the creation shows that:
`lost` finds what was sent and is missing there. Fields that the server added, and values that it
changed, are its defaults and the decisions of its admission, and none of these.

Without some of these fields the pod would run with less isolation than it asks for, or run again
what must not (`Lost.restricts`): such a pod must not run. For those of them that are recent, or
that a feature gate guards, a dry run before the pod is made is worth a request (`needs_proof`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from translators.fieldpaths import CONTAINERS, FieldMessage
from translators.objects import Object

#: Why a field is missing, for people.
MESSAGE = (
    "the remote cluster's API server did not keep it: its version does not know the field, its "
    "feature gate is off, or its admission removed it"
)

#: Paths of fields that restrict what a pod may do, or when its containers run again; with ``[]``
#: for each item of a list.
_RESTRICTING = re.compile(
    r"(^spec|ontainers\[\])\.securityContext(\.|$)"
    r"|^spec\.(automountServiceAccountToken|hostUsers|runtimeClassName)$"
    r"|ontainers\[\]\.(restartPolicy|restartPolicyRules)(\.|\[|$)"
    r"|^spec\.volumes\[\]\.image(\.|$)"
    r"|ontainers\[\]\.volumeMounts\[\]\.(readOnly|recursiveReadOnly)$"
)
#: Fields that mean something when they are false: elsewhere the API leaves false out.
_FALSE = frozenset({"allowPrivilegeEscalation", "automountServiceAccountToken", "hostUsers"})
#: Values that are the same as no value.
_DEFAULTS = (
    ("hostUsers", True),
    ("procMount", "Default"),
    ("recursiveReadOnly", "Disabled"),
    ("supplementalGroupsPolicy", "Merge"),
)
#: Fields of a security context that servers from 1.27 on (BRG106) do not all keep.
_LATE = ("appArmorProfile", "procMount", "seLinuxChangePolicy", "supplementalGroupsPolicy")
#: What tells the items of a list apart where that is not their name.
_KEYS = {"volumeMounts": "mountPath"}
#: Lists whose items admission replaces as a whole, and the gate of the bridge's own
#: (`translators.pods.run_once`), without which a pod can be made.
_ASIDE = frozenset({"spec.tolerations", "spec.schedulingGates"})


@dataclass(frozen=True, slots=True)
class PrunedField:
    """A field that was sent, and that the pod does not have."""

    path: str
    """As in `translators.pods.field_rules`."""
    location: str
    """The place, for people: ``spec.containers[web].securityContext``."""

    @property
    def restricts(self) -> bool:
        """Whether a pod without the field may do more than it asks for."""
        return bool(_RESTRICTING.search(self.path))

    @property
    def field_message(self) -> FieldMessage:
        """The field and why it is missing, for people."""
        return FieldMessage(self.location, MESSAGE)


def pruned_fields(sent: Object, made: Object) -> list[PrunedField]:
    """The fields of the spec that were sent and that the pod does not have."""
    return list(_lost(sent.get("spec") or {}, made.get("spec") or {}, "spec", "spec"))


def needs_dry_run(sent: Object) -> bool:
    """Whether the pod has a restricting field that a supported API server may not keep."""
    spec = sent.get("spec") or {}
    if spec.get("hostUsers") is False or _has_late(spec.get("securityContext")):
        return True
    if any("image" in volume for volume in spec.get("volumes") or ()):
        return True
    if any("restartPolicy" in container for container in spec.get("containers") or ()):
        return True  # That of init containers, sidecars, is older.
    return any(
        _is_late(container) for field_name in CONTAINERS for container in spec.get(field_name) or ()
    )


def _is_late(container: Object) -> bool:
    mounts = container.get("volumeMounts") or ()
    return (
        "restartPolicyRules" in container
        or _has_late(container.get("securityContext"))
        or any(_is_meant("recursiveReadOnly", it.get("recursiveReadOnly")) for it in mounts)
    )


def _has_late(context: Object | None) -> bool:
    return any(_is_meant(key, (context or {}).get(key)) for key in _LATE)


def _is_meant(key: str, value: Any) -> bool:
    """Whether a server that keeps the field would answer with it."""
    if isinstance(value, dict):
        return any(_is_meant(name, inner) for name, inner in value.items())
    if isinstance(value, list):
        return bool(value)
    if value is False:
        return key in _FALSE
    return bool(value) and (key, value) not in _DEFAULTS


def _lost(sent: Object, made: Object, path: str, at: str) -> Iterator[PrunedField]:
    for key, value in sent.items():
        below, place = f"{path}.{key}", f"{at}.{key}"
        if below in _ASIDE or not _is_meant(key, value):
            continue
        answered = made.get(key)
        if answered is None:
            yield PrunedField(below, place)
        elif isinstance(value, dict) and isinstance(answered, dict):
            yield from _lost(value, answered, below, place)
        elif isinstance(value, list) and isinstance(answered, list):
            yield from _lost_items(value, answered, _KEYS.get(key, "name"), below, place)


def _lost_items(
    sent: list[Any], made: list[Any], key: str, path: str, at: str
) -> Iterator[PrunedField]:
    """Of items that can be told apart, those that are missing, and what is missing in each. Of
    others what is missing in each, as long as none came or went."""
    theirs, named = _by_key(made, key), _by_key(sent, key)
    if named is not None and theirs is not None:
        pairs = [(name, item, theirs.get(name)) for name, item in named.items()]
    elif len(sent) == len(made):
        pairs = [(str(at), *pair) for at, pair in enumerate(zip(sent, made, strict=True))]
    else:
        return
    for name, item, answered in pairs:
        place = f"{at}[{name}]"
        if answered is None:
            yield PrunedField(f"{path}[]", place)
        elif isinstance(item, dict) and isinstance(answered, dict):
            yield from _lost(item, answered, f"{path}[]", place)


def _by_key(items: list[Any], key: str) -> dict[str, Object] | None:
    """The items by what tells them apart; None where not each of them has that."""
    found = {str(item[key]): item for item in items if isinstance(item, dict) and item.get(key)}
    return found if len(found) == len(items) else None
