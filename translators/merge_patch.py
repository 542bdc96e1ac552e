"""Computes the smallest merge patch that changes one object into another."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from translators.object_accessors import Object

#: Lists of a pod status that the API server merges by key in a strategic merge patch (patchMergeKey
#: in k8s.io/api/core/v1 types.go); it replaces all other lists.
_MERGED_BY_KEY = {"conditions": "type", "podIPs": "ip", "hostIPs": "ip"}


def merge_patch(current: Any, desired: Any, *, exact: frozenset[str] = frozenset()) -> Any:
    """The JSON merge patch (RFC 7386) from ``current`` to ``desired``; {} if nothing differs.

    Only the keys of ``desired`` are compared, so fields that other writers set survive; a None
    value removes the key. Maps under a key in ``exact`` become equal: keys that ``desired`` lacks
    are removed, and so is the whole map if ``desired`` has none.
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
    """The strategic merge patch from one pod status to another; {} if nothing differs.

    As in `merge_patch`, None in ``desired`` removes a key; but maps become equal at every depth.
    Only conditions that differ are sent, merged by type, so that conditions of other writers
    survive; `delete_condition` removes one.
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
            # A merge by address would keep addresses that the pod no longer has.
            patch[key] = [{"$patch": "replace"}, *value]
    return patch


def delete_condition(condition: str) -> Object:
    """An entry for the conditions of a desired status that removes the condition of this type."""
    return {"type": condition, "$patch": "delete"}


def _changed_conditions(current: Iterable[Object], desired: Iterable[Object]) -> list[Object]:
    """Complete conditions, so that one that was removed meanwhile is restored completely. A field
    that the condition no longer has is null, or the API server would keep it."""
    by_type = {item.get("type"): item for item in current}
    changed = []
    for item in desired:
        before = by_type.get(item["type"])
        if before is None:
            if "$patch" not in item:
                changed.append(item)
        elif "$patch" in item:
            changed.append(item)
        elif difference := _replacement(before, item):
            changed.append({**item, **{k: v for k, v in difference.items() if k not in item}})
    return changed


def _replacement(before: Object, after: Object) -> Object:
    """The merge patch that makes one map equal to the other; a null value equals a missing key."""
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
