"""The parts of an object that a store keeps when it has no memory for all of it."""

from __future__ import annotations

from typing import Any

from translators.object_accessors import Object, metadata
from translators.ownership_labels import is_bridge_key

#: The longest text that a stub keeps: identities, and none of the bridge's longer records.
TEXT_MAX = 1024
_METADATA = (
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
)
_PARTS = {"spec": ("nodeName", "clusterIP"), "status": ("phase",)}


class Stub(dict[str, Any]):
    """The identity and deletion of an object, the bridge's labels and annotations, the phase, and
    short values at the top: enough to know that the object exists, whose it is, and when it
    changes. Everything else has to be requested from the API server."""


def stub_of(obj: Object) -> Stub:
    meta = metadata(obj)
    kept: Object = {key: meta[key] for key in _METADATA if key in meta}
    for field in ("labels", "annotations"):
        own = {k: v for k, v in (meta.get(field) or {}).items() if is_bridge_key(k) and _fits(v)}
        if own:
            kept[field] = own
    stub = Stub({key: value for key, value in obj.items() if _fits(value)}, metadata=kept)
    for part, fields in _PARTS.items():
        if values := {key: value for key, value in (obj.get(part) or {}).items() if key in fields}:
            stub[part] = values
    return stub


def _fits(value: Any) -> bool:
    return isinstance(value, bool) or (isinstance(value, str) and len(value) <= TEXT_MAX)
