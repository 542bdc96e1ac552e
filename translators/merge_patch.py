"""What differs between two objects, as the smallest patch that makes one into the other."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from translators.objects import Object

#: Lists of a pod's status that the API server merges by key in a strategic merge patch
#: (patchMergeKey in k8s.io/api/core/v1 types.go); all other lists are replaced whole.
_MERGED_BY_KEY = {"conditions": "type", "podIPs": "ip", "hostIPs": "ip"}


def merge_patch(current: Any, desired: Any, *, exact: frozenset[str] = frozenset()) -> Any:
    """The JSON merge patch (RFC 7386) from ``current`` to ``desired``; {} where they agree.

    Only keys that ``desired`` names are compared, so what others wrote beside them stays; a key
    with the value None in ``desired`` is one that must not be there. Under a key that ``exact``
    names, the maps are to be equal: what ``desired`` lacks is removed, and the whole map where it
    has none.
    """
    if not isinstance(current, dict) or not isinstance(desired, dict):
        return desired
    patch: Object = {
        key: None for key in current if key in exact and key not in desired and current[key]
    }
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

    ``desired`` is as for `merge_patch`: None removes; maps are to be equal at every depth. Of
    conditions only those that differ are sent, merged by type, so that a condition which somebody
    else sets meanwhile survives; `absent` names one that must not be there.
    """
    patch: Object = {}
    for key, value in desired.items():
        before = current.get(key)
        if value == before:
            continue
        merge_key = _MERGED_BY_KEY.get(key)
        if isinstance(value, dict) and isinstance(before, dict):
            change = _replacement(before, value)
            if change:
                patch[key] = change
        elif merge_key is None or value is None:
            patch[key] = value
        elif merge_key == "type":
            changed = _changed_conditions(before or (), value)
            if changed:
                patch[key] = changed
        else:
            # Merging by address would keep addresses that are no more.
            patch[key] = [{"$patch": "replace"}, *value]
    return patch


def delete_condition(condition: str) -> Object:
    """In the conditions of a desired status: there must be none of this type."""
    return {"type": condition, "$patch": "delete"}


def _changed_conditions(current: Iterable[Object], wanted: Iterable[Object]) -> list[Object]:
    """Whole conditions, so that one which went meanwhile comes back whole; what one has no more
    is null, or the server would keep it."""
    known = {item.get("type"): item for item in current}
    changed = []
    for item in wanted:
        before = known.get(item["type"])
        if before is None:
            if "$patch" not in item:
                changed.append(item)
        elif "$patch" in item:
            changed.append(item)
        elif difference := _replacement(before, item):
            changed.append({**item, **{k: v for k, v in difference.items() if k not in item}})
    return changed


def _replacement(before: Object, after: Object) -> Object:
    """The merge patch that makes one map equal to the other; null is the same as no such key."""
    patch: Object = {
        key: None for key, value in before.items() if value is not None and after.get(key) is None
    }
    for key, value in after.items():
        old = before.get(key)
        if value is None or value == old:
            continue
        if isinstance(value, dict) and isinstance(old, dict):
            inner = _replacement(old, value)
            if inner:
                patch[key] = inner
        else:
            patch[key] = value
    return patch
