"""The three patch types. Pure: functions return a patched copy and do not change arguments.

Strategic merge knows how each list of the built-in kinds is merged, by field name alone: within
what the bridge touches no two lists of one name differ, except ``ports``.
"""

from __future__ import annotations

from typing import Any

from sync.kube.api_resources import Object
from tests.fakeapi import api_errors

#: Merge keys of lists of objects. Other lists are replaced.
_MERGE_KEYS = {
    "addresses": "type",
    "conditions": "type",
    "containers": "name",
    "env": "name",
    "ephemeralContainers": "name",
    "hostAliases": "ip",
    "hostIPs": "ip",
    "imagePullSecrets": "name",
    "initContainers": "name",
    "ownerReferences": "uid",
    "podIPs": "ip",
    "resourceClaims": "name",
    "schedulingGates": "name",
    "secrets": "name",
    "topologySpreadConstraints": "topologyKey",
    "volumeDevices": "devicePath",
    "volumeMounts": "mountPath",
    "volumes": "name",
    "webhooks": "name",
}
#: Lists of scalars that are merged as sets.
_MERGED_SETS = {"finalizers"}


def merge(target: Any, patch: Any) -> Any:
    """RFC 7396: objects are merged, null deletes, everything else is replaced."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge(result.get(key), value)
    return result


def strategic(target: Object, patch: Object) -> Object:
    """A strategic merge patch with its directives."""
    directive = patch.get("$patch")
    if directive == "delete":
        return {}
    if directive == "replace":
        return {key: value for key, value in patch.items() if key != "$patch"}
    result = dict(target)
    if "$retainKeys" in patch:
        result = {key: value for key, value in result.items() if key in patch["$retainKeys"]}
    for key, value in patch.items():
        if key.startswith("$deleteFromPrimitiveList/"):
            field = key.partition("/")[2]
            result[field] = [item for item in result.get(field) or [] if item not in value]
        elif key.startswith("$"):
            continue
        elif value is None:
            result.pop(key, None)
        elif isinstance(value, dict):
            old = result.get(key)
            result[key] = strategic(old if isinstance(old, dict) else {}, value)
        elif isinstance(value, list):
            order = patch.get(f"$setElementOrder/{key}")
            result[key] = _merge_list(key, result.get(key) or [], value, order)
        else:
            result[key] = value
    for key, order in patch.items():
        if key.startswith("$setElementOrder/") and (field := key.partition("/")[2]) not in patch:
            result[field] = _ordered(field, result.get(field) or [], order)
    return result


def _merge_key(field: str, items: list[Any]) -> str | None:
    if field == "ports":
        return "containerPort" if any("containerPort" in item for item in items) else "port"
    return _MERGE_KEYS.get(field)


def _merge_list(field: str, old: list[Any], patch: list[Any], order: list[Any] | None) -> list[Any]:
    if field in _MERGED_SETS:
        return _ordered(field, old + [item for item in patch if item not in old], order)
    key = _merge_key(field, patch + old)
    if key is None:
        return patch
    if any(item.get("$patch") == "replace" for item in patch):
        return [item for item in patch if "$patch" not in item]
    result = list(old)
    for item in patch:
        if key not in item:
            raise api_errors.bad_request(f"map: {field} does not contain declared merge key: {key}")
        at = next((i for i, have in enumerate(result) if have.get(key) == item[key]), None)
        if item.get("$patch") == "delete":
            result = [have for have in result if have.get(key) != item[key]]
        elif at is None:
            result.append(strategic({}, item))
        else:
            result[at] = strategic(result[at], item)
    return _ordered(field, result, order)


def _ordered(field: str, items: list[Any], order: list[Any] | None) -> list[Any]:
    """Sorts the items by the order; other items follow in their own order."""
    if not order:
        return items
    key = _merge_key(field, items)

    def place(item: Any) -> int:
        wanted = [entry[key] for entry in order] if key else order
        mine = item.get(key) if key else item
        return wanted.index(mine) if mine in wanted else len(wanted)

    return sorted(items, key=place)


def json_patch(target: Object, operations: list[Object]) -> Object:
    """RFC 6902: add, remove, replace and test. Raises ApiErrorResponse (422) if one fails."""
    document: Any = target
    for operation in operations:
        path = [p.replace("~1", "/").replace("~0", "~") for p in operation["path"].split("/")[1:]]
        try:
            document = _operate(document, operation["op"], path, operation.get("value"))
        except (KeyError, IndexError, ValueError, TypeError) as error:
            message = f"the server rejected our request due to an error in our request ({error})"
            raise api_errors.ApiErrorResponse(422, "Invalid", message) from error
    result: Object = document
    return result


def _operate(node: Any, op: str, path: list[str], value: Any) -> Any:
    if not path:
        if op == "test" and node != value:
            raise ValueError("testing value failed")
        return node if op == "test" else value
    step, rest = path[0], path[1:]
    copy: Any = list(node) if isinstance(node, list) else dict(node)
    key: Any = step
    if isinstance(copy, list):
        key = len(copy) if step == "-" else int(step)
    if rest:
        copy[key] = _operate(copy[key], op, rest, value)
    elif op == "remove":
        del copy[key]
    elif op == "add" and isinstance(copy, list):
        copy.insert(key, value)
    elif op == "add":
        copy[key] = value
    elif op in ("replace", "test"):
        copy[key] = _operate(copy[key], op, [], value)
    else:
        raise ValueError(f"unexpected operation {op}")
    return copy
