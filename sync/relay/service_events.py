"""What a user is told of a Service of home's that is not carried, or not all of it: an Event of the
Service, and a line of the log."""

from __future__ import annotations

import logging

from sync.cache.store import Key
from sync.runtime.event_recorder import EventRecorder
from sync.runtime.log_fields import name_fields
from translators.objects import Object, name_of, namespace_of

changes = logging.getLogger("cluster-bridge.changes")


class ServiceEvents:
    """Remembers what was told."""

    def __init__(self, events: EventRecorder) -> None:
        self._events = events
        self._told: dict[Key, dict[str, str]] = {}

    def emit_on_change(self, service: Object, reason: str, message: str) -> None:
        """Tells it, unless it was the last that was told under this reason."""
        told = self._told.setdefault(_key(service), {})
        if told.get(reason) != message:
            told[reason] = message
            self.emit(service, reason, message)

    def emit(self, service: Object, reason: str, message: str) -> None:
        """Tells it."""
        key = _key(service)
        self._events.warn(service, reason, message)
        where = name_fields("Service", key.name, namespace=key.namespace, cluster="home")
        changes.info("Service %s: %s", key, message, extra=where)

    def forget(self, key: Key) -> None:
        """The Service is gone: another of its name is to be told anew."""
        self._told.pop(key, None)


def _key(service: Object) -> Key:
    return Key(namespace_of(service), name_of(service))
