"""Reports what the relay cannot do for a Service at home: an Event and a log line."""

from __future__ import annotations

from sync.cache.store import Key, key_of
from sync.runtime.event_recorder import EventRecorder
from sync.runtime.log_fields import changes, name_fields
from translators.object_accessors import Object


class ServiceEvents:
    """Emits Events of Services and remembers the last message per reason."""

    def __init__(self, events: EventRecorder) -> None:
        self._events = events
        self._last: dict[Key, dict[str, str]] = {}

    def emit_on_change(self, service: Object, reason: str, message: str) -> None:
        """Emits an Event unless its message is the last one of this reason."""
        last = self._last.setdefault(key_of(service), {})
        if last.get(reason) != message:
            last[reason] = message
            self.emit(service, reason, message)

    def emit(self, service: Object, reason: str, message: str) -> None:
        key = key_of(service)
        self._events.warn(service, reason, message)
        fields = name_fields("Service", key.name, namespace=key.namespace, cluster="home")
        changes.info("Service %s: %s", key, message, extra=fields)

    def forget(self, key: Key) -> None:
        self._last.pop(key, None)
