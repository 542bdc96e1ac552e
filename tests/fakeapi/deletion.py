"""Deletes objects: preconditions, grace periods of pods, finalizers."""

from __future__ import annotations

from datetime import datetime

from sync.kube.api_resources import NAMESPACES, PODS, Object
from tests.fakeapi import api_errors
from tests.fakeapi.resource_registry import Kind
from tests.fakeapi.store import Store, timestamp
from translators.timestamps import parse_time


def delete(store: Store, kind: Kind, old: Object, options: Object, *, dry: bool = False) -> Object:
    """Deletes the object, or marks it as being deleted. Returns it, or its last state.

    Raises ApiErrorResponse (409) if a precondition fails.
    """
    _check_preconditions(kind, old, options)
    meta = old["metadata"]
    if dry:
        return old
    grace = _grace(old, options) if kind.resource == PODS else 0
    if "deletionTimestamp" in meta:
        return _again(store, kind, old, grace, requested="gracePeriodSeconds" in options)
    if kind.resource == NAMESPACES:
        return _delete_namespace(store, kind, old)
    if grace == 0 and not meta.get("finalizers"):
        return store.remove(kind, old)
    return _mark(store, kind, old, grace, timestamp(grace))


def _check_preconditions(kind: Kind, old: Object, options: Object) -> None:
    for field, value in (options.get("preconditions") or {}).items():
        have = old["metadata"].get(field)
        if value != have:
            why = (
                f"the {'UID' if field == 'uid' else 'ResourceVersion'} in the precondition "
                f"({value}) does not match the one in record ({have}). The object might have been "
                "deleted and then recreated"
            )
            raise api_errors.conflict(kind.resource, old["metadata"]["name"], why)


def _grace(pod: Object, options: Object) -> int:
    requested = options.get("gracePeriodSeconds")
    seconds = (
        pod["spec"].get("terminationGracePeriodSeconds", 30) if requested is None else requested
    )
    done = (pod.get("status") or {}).get("phase") in ("Failed", "Succeeded")
    if not pod["spec"].get("nodeName") or done:
        return 0
    return 1 if seconds < 0 else int(seconds)


def _again(store: Store, kind: Kind, old: Object, grace: int, *, requested: bool) -> Object:
    """Applies a second delete, which can only shorten the grace period."""
    meta = old["metadata"]
    current = meta.get("deletionGracePeriodSeconds", 0)
    if current == 0 or grace == 0:
        if not meta.get("finalizers"):
            return store.remove(kind, old)
        return old if current == 0 else _mark(store, kind, old, 0, timestamp())
    if not requested or grace >= current:
        return old
    end = parse_time(meta["deletionTimestamp"]).timestamp() - current + grace
    ahead = max(0.0, end - datetime.now().astimezone().timestamp())
    return _mark(store, kind, old, grace, timestamp(ahead))


def _mark(store: Store, kind: Kind, old: Object, grace: int, when: str) -> Object:
    meta = {**old["metadata"], "deletionTimestamp": when, "deletionGracePeriodSeconds": grace}
    if "generation" in meta:
        meta["generation"] += 1
    marked = {**old, "metadata": meta}
    if kind.resource == NAMESPACES:
        marked["status"] = {**(old.get("status") or {}), "phase": "Terminating"}
    return store.commit(kind, old, marked)


def _delete_namespace(store: Store, kind: Kind, old: Object) -> Object:
    """Marks a namespace as Terminating; it is removed once it is empty."""
    marked = _mark(store, kind, old, 0, timestamp())
    for held_kind, held in store.contents(old["metadata"]["name"]):
        delete(store, held_kind, held, {})
    store.finish_namespace(old["metadata"]["name"])
    return marked
