"""What differs between two objects, as the smallest patch that makes one into the other."""

from __future__ import annotations

from typing import Any

from translators.types import Object

#: Lists of a pod's status that the API server merges by key in a strategic merge patch
#: (patchMergeKey in k8s.io/api/core/v1 types.go); all other lists are replaced whole.
_MERGED_BY_KEY = {"conditions": "type", "podIPs": "ip", "hostIPs": "ip"}


def merge_patch(current: Any, desired: Any, *, exact: frozenset[str] = frozenset()) -> Any:
    """The JSON merge patch (RFC 7386) from ``current`` to ``desired``; {} where they agree.

    Only keys that ``desired`` names are compared, so what others wrote beside them stays; a key
    with the value None in ``desired`` is one that must not be there. Under a key that ``exact``
    names, the maps are to be equal: what ``desired`` lacks is removed.
    """
    if not isinstance(current, dict) or not isinstance(desired, dict):
        return desired
    patch: Object = {}
    for key, value in desired.items():
        before = current.get(key)
        if value is None:
            if before is not None:
                patch[key] = None
        elif isinstance(value, dict) and isinstance(before, dict):
            if key in exact:
                value = {**dict.fromkeys(before), **value}  # noqa: PLW2901
            inner = merge_patch(before, value, exact=exact)
            if inner:
                patch[key] = inner
        elif before != value:
            patch[key] = value
    return patch


def status_patch(current: Object, desired: Object) -> Object:
    """The strategic merge patch from one pod status to another; {} where they agree.

    ``desired`` is as for `merge_patch`: None removes. Of conditions only those that differ are
    sent, merged by type, so that a condition which somebody else sets meanwhile survives.
    """
    patch: Object = {}
    for key, value in desired.items():
        before = current.get(key)
        if value == before:
            continue
        merge_key = _MERGED_BY_KEY.get(key)
        if merge_key is None or value is None:
            patch[key] = value
        elif merge_key == "type":
            known = {item.get("type"): item for item in before or ()}
            changed = [item for item in value if known.get(item["type"]) != item]
            if changed:
                patch[key] = changed
        else:
            # Merging by address would keep addresses that are no more.
            patch[key] = [{"$patch": "replace"}, *value]
    return patch
