"""Lists, whole or in pages. All pages of a list have the same state."""

from __future__ import annotations

import base64
import secrets
from dataclasses import dataclass

import orjson

from sync.kube.api_resources import Object
from tests.fakeapi import api_errors
from tests.fakeapi.resource_registry import Kind
from tests.fakeapi.selectors import selection
from tests.fakeapi.store import Store


@dataclass(frozen=True, slots=True)
class _Rest:
    """The state of a continue token."""

    revision: int
    items: list[Object]


class Lister:
    """Answers list requests and keeps the remaining pages."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._rests: dict[str, _Rest] = {}

    def answer(self, kind: Kind, namespace: str | None, query: dict[str, str]) -> Object:
        """The list. Raises ApiErrorResponse: 410 for a compacted token, 400 for an unknown one."""
        _validate(query, self._store.history.revision)
        passes = selection(kind, query.get("labelSelector", ""), query.get("fieldSelector", ""))
        if token := query.get("continue"):
            rest = self._resume(token)
        else:
            found = [obj for obj in self._store.all(kind, namespace) if passes(obj)]
            rest = _Rest(self._store.history.revision, found)
        limit = int(query.get("limit") or 0) or len(rest.items)
        page, left = rest.items[:limit], rest.items[limit:]
        metadata: Object = {"resourceVersion": str(rest.revision)}
        if left:
            metadata["continue"] = self._keep(_Rest(rest.revision, left))
            if not query.get("labelSelector") and not query.get("fieldSelector"):
                metadata["remainingItemCount"] = len(left)
        return {
            "kind": f"{kind.resource.kind}List",
            "apiVersion": kind.resource.api_version,
            "metadata": metadata,
            "items": [_bare(obj) if kind.builtin else obj for obj in page],
        }

    def _keep(self, rest: _Rest) -> str:
        value = {"v": "meta.k8s.io/v1", "rv": rest.revision, "start": secrets.token_hex(4)}
        token = base64.urlsafe_b64encode(orjson.dumps(value)).decode().rstrip("=")
        self._rests[token] = rest
        return token

    def _resume(self, token: str) -> _Rest:
        rest = self._rests.get(token)
        if rest is None:
            raise api_errors.bad_request("continue key is not valid")
        if rest.revision < self._store.history.compacted:
            fresh = self._keep(_Rest(self._store.history.revision, rest.items))
            message = (
                "The provided continue parameter is too old to display a consistent list result. "
                "You can start a new list without the continue parameter, or use the continue "
                "token in this response to retrieve the remainder of the results."
            )
            raise api_errors.expired(message, resume=fresh)
        return rest


def _bare(obj: Object) -> Object:
    """Items of built-in resources without kind and apiVersion."""
    return {key: value for key, value in obj.items() if key not in ("kind", "apiVersion")}


def _validate(query: dict[str, str], current: int) -> None:
    match, version = query.get("resourceVersionMatch", ""), query.get("resourceVersion", "")
    if "sendInitialEvents" in query:
        raise options_invalid("sendInitialEvents", "sendInitialEvents is forbidden for list")
    if match and not version:
        why = "resourceVersionMatch is forbidden unless resourceVersion is provided"
        raise options_invalid("resourceVersionMatch", why)
    if match and query.get("continue"):
        why = "resourceVersionMatch is forbidden when continue is provided"
        raise options_invalid("resourceVersionMatch", why)
    if version and not version.isdecimal():
        raise api_errors.bad_request(f'Invalid value: "{version}": invalid resource version')
    if int(version or 0) > current:
        raise api_errors.too_new(int(version), current)


def options_invalid(field: str, why: str) -> api_errors.ApiErrorResponse:
    """The error for contradictory options of a list or watch."""
    message = f'ListOptions.meta.k8s.io "" is invalid: {field}: Forbidden: {why}'
    causes = [{"reason": "FieldValueForbidden", "message": f"Forbidden: {why}", "field": field}]
    details = {"group": "meta.k8s.io", "kind": "ListOptions", "causes": causes}
    return api_errors.ApiErrorResponse(422, "Invalid", message, details=details)
