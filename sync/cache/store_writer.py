"""Writes the states of one resource's objects into a store, and notifies handlers of changes.

Handlers are called after the store has the object, in the order in which they were added. The newer
of two states of an object wins, in whatever order they arrive.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from sync.base import exception_summary
from sync.base.resource_version import is_newer, version_of
from sync.cache.interning import InternPool, intern_pod, no_interning, share_unchanged
from sync.cache.store import Key, Store, key_of
from sync.kube.api_resources import Resource
from sync.kube.client import KubeClient
from sync.runtime.log_fields import name_fields
from translators.object_accessors import Object, metadata, uid_of

log = logging.getLogger(__name__)

Handler = Callable[[Object | None, Object | None], None]


class StoreWriter:
    """The only writer of ``store`` while an informer runs.

    ``slim`` and ``pool``: see `sync.cache.informer.Informer`.
    """

    def __init__(
        self,
        client: KubeClient,
        resource: Resource,
        store: Store,
        *,
        slim: Callable[[Object], Object] | None = None,
        pool: InternPool | None = None,
    ) -> None:
        self._client = client
        self._resource = resource
        self._store = store
        self._slim = slim
        self._pool = pool
        self._handlers: list[Handler] = []

    def on_change(self, handler: Handler) -> None:
        self._handlers.append(handler)

    def put(self, obj: Object, *, allow_older: bool = False) -> None:
        """Stores a state of an object unless the stored one is newer, or with ``allow_older``
        whenever it differs. The writer owns ``obj`` from now on."""
        key = key_of(obj)
        old = self._store.get(key)
        if old is not None:
            version, known = version_of(obj), version_of(old)
            same = uid_of(old) == uid_of(obj)
            if (same and version == known) or not (allow_older or is_newer(version, known)):
                return
            if not same:
                # Another object has taken the name, and the deletion was not observed: report both.
                self.remove(key, old)
                old = None
        try:
            obj = self._reduce(obj, old)
            self._store.put(obj)
        except Exception as error:  # noqa: BLE001  # one object must not end the watch of all
            self._defect(key, error)
        else:
            self._notify(old, obj)

    def delete(self, obj: Object, known: Object) -> None:
        """Removes an object whose deletion the server reported; ``obj`` is its last state."""
        key = key_of(obj)
        try:
            last = self._reduce(obj, known)
        except Exception as error:  # noqa: BLE001  # one object must not end the watch of all
            self._defect(key, error)
            last = known
        self.remove(key, last)

    def remove(self, key: Key, last: Object) -> None:
        """Removes an object, and passes ``last`` to handlers as its last state."""
        self._store.remove(key)
        self._notify(last, None)

    def _reduce(self, obj: Object, old: Object | None) -> Object:
        if self._slim is not None:
            obj = self._slim(obj)
        else:  # managedFields are often a third of an object, and the bridge does not read them.
            metadata(obj).pop("managedFields", None)
        if old is not None:
            share_unchanged(obj, old, self._pool or no_interning)
        elif self._pool is not None:
            intern_pod(obj, self._pool)
        return obj

    def _notify(self, old: Object | None, new: Object | None) -> None:
        for handler in self._handlers:
            try:
                handler(old, new)
            except Exception as error:  # noqa: BLE001  # the other handlers still run
                self._defect(key_of(new or old or {}), error)

    def _defect(self, key: Key, error: Exception) -> None:
        side, kind = self._client.side, self._resource.kind
        self._client.metrics.defects[str(self._resource)] += 1
        log.error(
            "%s: %s %s: a defect in the bridge; please report it: %s",
            side,
            self._resource,
            key,
            exception_summary.traced_summary(error),
            extra=name_fields(kind, key.name, namespace=key.namespace, cluster=side),
        )
