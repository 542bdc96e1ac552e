"""The objects of one cluster with the write semantics of kube-apiserver's registry.

Synchronous, without a network; `tests.fakeapi.server` adds HTTP. Stored objects are immutable, so
lists and events share them; tests receive copies.
"""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import orjson

from sync.kube.api_resources import NAMESPACES, Object
from tests.fakeapi import api_errors, defaults, validation
from tests.fakeapi.change_log import Change, History
from tests.fakeapi.resource_registry import Kind, Registry
from translators.timestamps import format_time

#: Metadata that clients can neither set nor change.
_SYSTEM = ("creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation")
Key = tuple[str, str]


def copy(obj: Object) -> Object:
    """A deep copy through JSON, so that only serializable values are stored."""
    result: Object = orjson.loads(orjson.dumps(obj))
    return result


def timestamp(seconds_ahead: float = 0.0) -> str:
    """The time now, or later, as a metav1.Time."""
    moment = datetime.now(UTC) + timedelta(seconds=seconds_ahead)
    return format_time(moment)


class Store:
    """All objects by kind, namespace and name."""

    def __init__(self, registry: Registry, *, namespaces_must_exist: bool = True) -> None:
        self.registry = registry
        self.history = History()
        self.namespaces_must_exist = namespaces_must_exist
        self.fill_defaults = True
        self.webhook: Callable[[Object], None] | None = None
        """A mutating admission webhook, which changes objects in place."""
        self.new_uid: Callable[[Object], str] = lambda _obj: str(uuid.uuid4())
        """Returns the UID of a new object."""
        self._objects: dict[Kind, dict[Key, Object]] = {}

    def copy_state(self, source: Store) -> None:
        """Takes over all objects of another store, with its revision."""
        self.registry = source.registry
        self._objects = {kind: dict(found) for kind, found in source._objects.items()}
        self.history.revision = source.history.revision

    def find(self, kind: Kind, namespace: str, name: str) -> Object | None:
        """The stored object, not a copy."""
        return self._objects.get(kind, {}).get((namespace, name))

    def get(self, kind: Kind, namespace: str, name: str) -> Object:
        """The stored object, not a copy. Raises ApiErrorResponse (404)."""
        obj = self.find(kind, namespace, name)
        if obj is None:
            raise api_errors.not_found(kind.resource, name)
        return obj

    def all(self, kind: Kind, namespace: str | None) -> list[Object]:
        """The stored objects in list order: by namespace and name."""
        found = self._objects.get(kind, {})
        return [found[key] for key in sorted(found) if namespace is None or key[0] == namespace]

    def create(self, kind: Kind, namespace: str, body: Object, *, dry: bool = False) -> Object:
        """Stores a new object. Raises ApiErrorResponse (404, 403, 409, 422, 400)."""
        resource, obj = kind.resource, copy(body)
        meta = obj.setdefault("metadata", {})
        if not meta.get("name"):
            if not meta.get("generateName"):
                why = "Required value: name or generateName is required"
                raise api_errors.invalid(resource, "", ("metadata.name", why))
            meta["name"] = meta["generateName"] + secrets.token_hex(3)[:5]
        name = meta["name"]
        self._place(kind, namespace, obj)
        self._check_namespace(kind, namespace, name)
        if meta.pop("resourceVersion", None):
            raise api_errors.bad_request(
                "resourceVersion should not be set on objects to be created"
            )
        if self.find(kind, namespace, name) is not None:
            raise api_errors.already_exists(resource, name)
        for field in _SYSTEM:
            meta.pop(field, None)
        meta |= {"uid": self.new_uid(obj), "creationTimestamp": timestamp()}
        if kind.generation:
            meta["generation"] = 1
        if kind.status:
            obj.pop("status", None)
        if self.fill_defaults:
            defaults.fill(obj)
            defaults.admit(obj)
        if self.webhook is not None:
            self._mutate(obj)
        validation.check_create(resource, obj)
        return obj if dry else self.commit(kind, None, obj)

    def _mutate(self, obj: Object) -> None:
        """Runs the webhook, then adds defaults, as an API server does."""
        if self.webhook is not None:
            self.webhook(obj)
            if self.fill_defaults:
                defaults.fill(obj)

    def update(
        self, kind: Kind, old: Object, body: Object, subresource: str = "", *, dry: bool = False
    ) -> Object:
        """Replaces ``old`` by ``body``, the result of a PUT or a patch, as far as the path permits.

        Writes nothing if nothing differs. Raises ApiErrorResponse: 409 for another resourceVersion,
        422 for a change of an immutable field.
        """
        new = copy(body)
        self._place(kind, old["metadata"].get("namespace", ""), new)
        meta = new["metadata"]
        if meta.get("resourceVersion", "") not in ("", old["metadata"]["resourceVersion"]):
            why = (
                "the object has been modified; please apply your changes to the latest version "
                "and try again"
            )
            raise api_errors.conflict(kind.resource, old["metadata"]["name"], why)
        for field in _SYSTEM:
            meta.pop(field, None)
        meta |= {f: old["metadata"][f] for f in _SYSTEM if f in old["metadata"]}
        meta["resourceVersion"] = old["metadata"]["resourceVersion"]
        meta["uid"] = meta.get("uid") or old["metadata"]["uid"]
        new = self._confine(kind, old, new, subresource)
        if self.webhook is not None:
            new = copy(new)
            self._mutate(new)
        validation.check_update(kind.resource, old, new, subresource)
        if new == old:
            return old
        if kind.generation and _wanted(new) != _wanted(old):
            meta["generation"] = new["metadata"]["generation"] = meta.get("generation", 1) + 1
        if dry:
            return new
        ended = "deletionTimestamp" in meta and not meta.get("deletionGracePeriodSeconds")
        if ended and not new["metadata"].get("finalizers"):
            return self.remove(kind, old, last=new)
        return self.commit(kind, old, new)

    def commit(self, kind: Kind, old: Object | None, new: Object) -> Object:
        """Stores the object with the next resource version and notifies watches."""
        self.history.revision += 1
        meta = {**new["metadata"], "resourceVersion": str(self.history.revision)}
        stored = {**new, "metadata": meta}
        namespace = meta.get("namespace", "")
        self._objects.setdefault(kind, {})[namespace, meta["name"]] = stored
        change = Change(self.history.revision, kind, namespace, old, stored, stored)
        self.history.record(change)
        return stored

    def remove(self, kind: Kind, old: Object, *, last: Object | None = None) -> Object:
        """Removes the object at once, despite finalizers, and notifies watches."""
        meta = old["metadata"]
        namespace = meta.get("namespace", "")
        if kind.resource == NAMESPACES:
            for held_kind, held in self.contents(meta["name"]):
                self.remove(held_kind, held)
            if self.find(kind, "", meta["name"]) is None:
                return old  # a terminating namespace was removed with its last object
        del self._objects[kind][namespace, meta["name"]]
        self.history.revision += 1
        last = last or old
        gone = {
            **last,
            "metadata": {**last["metadata"], "resourceVersion": str(self.history.revision)},
        }
        self.history.record(Change(self.history.revision, kind, namespace, old, None, gone))
        self.finish_namespace(namespace)
        return gone

    def contents(self, namespace: str) -> list[tuple[Kind, Object]]:
        """All objects in the namespace."""
        return [
            (kind, obj)
            for kind, objects in self._objects.items()
            for (place, _), obj in objects.items()
            if place == namespace
        ]

    def finish_namespace(self, name: str) -> None:
        """Removes a terminating namespace once it is empty, as the namespace controller does."""
        kind = self.registry.of(NAMESPACES)
        there = self.find(kind, "", name)
        if there is None or "deletionTimestamp" not in there["metadata"]:
            return
        if not there["metadata"].get("finalizers") and not self.contents(name):
            self.remove(kind, there)

    def _place(self, kind: Kind, namespace: str, obj: Object) -> None:
        """Fills apiVersion, kind and namespace in; raises if they contradict the path."""
        resource, meta = kind.resource, obj.setdefault("metadata", {})
        obj.setdefault("apiVersion", resource.api_version)
        obj.setdefault("kind", resource.kind)
        if (obj["apiVersion"], obj["kind"]) != (resource.api_version, resource.kind):
            value = f"{obj['apiVersion']}, Kind={obj['kind']}"
            raise api_errors.bad_request(f"the object is {value}, the path is of {resource}")
        if not resource.namespaced:
            meta.pop("namespace", None)
        elif meta.setdefault("namespace", namespace) != namespace:
            message = "the namespace of the provided object does not match the namespace sent on "
            raise api_errors.bad_request(message + "the request")

    def _check_namespace(self, kind: Kind, namespace: str, name: str) -> None:
        if not kind.resource.namespaced or not self.namespaces_must_exist:
            return
        there = self.get(self.registry.of(NAMESPACES), "", namespace)
        if "deletionTimestamp" in there["metadata"]:
            why = (
                f"unable to create new content in namespace {namespace} because it is being "
                "terminated"
            )
            raise api_errors.forbidden(kind.resource, name, why, cause="NamespaceTerminating")

    def _confine(self, kind: Kind, old: Object, new: Object, subresource: str) -> Object:
        """``new`` without changes that the path ignores."""
        if subresource == "resize":
            return validation.resized(kind.resource, old, new)
        if subresource == "ephemeralcontainers":
            result = copy(validation.debugged(kind.resource, old, new))
            for container in result["spec"].get("ephemeralContainers") or []:
                defaults.fill_container(container)
            return result
        if subresource == "scale":
            return {**old, "spec": {**old["spec"], "replicas": new["spec"]["replicas"]}}
        if subresource in ("status", "approval"):
            kept = {key: value for key, value in old.items() if key != "status"}
            status = {"status": new["status"]} if "status" in new else {}
            return {**kept, **status, "metadata": new["metadata"]}
        if kind.status:
            new.pop("status", None)
            if "status" in old:
                new["status"] = old["status"]
        if self.fill_defaults:
            defaults.refill(old, new)
        return new


def _wanted(obj: Object) -> Object:
    return {key: value for key, value in obj.items() if key not in ("metadata", "status")}
