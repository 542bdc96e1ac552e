"""Writes the states of one resource's objects into a store, and notifies handlers of changes.

Objects of the remote with the wrong shape (`translators.remote_shapes`), or for which no memory is
left (`sync.cache.cache_share`), are skipped. Of an object that its readers must not take for
absent, a stub is kept instead (`sync.cache.stub`).

Handlers are called after the store has the object, in the order in which they were added. The newer
of two states of an object wins, in whatever order they arrive.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable

import orjson

from sync.base import exception_summary
from sync.base.resource_version import is_newer, version_of
from sync.cache.cache_share import CacheShare, RemoteShare
from sync.cache.interning import InternPool, intern_pod, no_interning, share_unchanged
from sync.cache.store import Key, Store, key_of
from sync.cache.stub import Stub
from sync.kube.api_resources import Resource
from sync.kube.client import KubeClient
from sync.kube.response_limits import DECODED_LIMIT, decoded_size
from sync.runtime.log_fields import name_fields
from translators.object_accessors import Object, metadata, uid_of
from translators.pods.status_limits import STATUS_LIMIT, TEXT_LIMIT, within_limits
from translators.remote_shapes import wrong_part

log = logging.getLogger(__name__)

Handler = Callable[[Object | None, Object | None], None]


class StoreWriter:
    """The only writer of ``store`` while an informer runs.

    ``slim``, ``pool``, ``shape``, ``stub`` and ``share``: see `sync.cache.informer.Informer`.
    """

    def __init__(
        self,
        client: KubeClient,
        resource: Resource,
        store: Store,
        *,
        slim: Callable[[Object], Object] | None = None,
        pool: InternPool | None = None,
        shape: str = "",
        stub: Callable[[Object], Stub] | None = None,
        share: CacheShare | None = None,
    ) -> None:
        self._client = client
        self._resource = resource
        self._store = store
        self._stub = stub
        self.has_skipped = False
        """Whether an object was skipped, and the store may not have it in any state."""
        self._slim = slim
        self._pool = pool
        # "" for objects of home, which are not checked.
        self._shape = (shape or resource.kind) if client.side == "remote" else ""
        # Several stores may have one share.
        self._is_shared = share is not None
        if share is None and client.side == "remote":
            share = RemoteShare(client.limits)
        self._share = share
        # The last object that had the right shape.
        self._checked: Object | None = None
        self._handlers: list[Handler] = []
        # The reasons for which an object was skipped, and the places of defects: the first object
        # of each is logged as a warning or an error.
        self._logged: set[str] = set()

    def on_change(self, handler: Handler) -> None:
        self._handlers.append(handler)

    def put(
        self,
        obj: Object,
        *,
        size: int | None = None,
        allow_older: bool = False,
        checked: bool = False,
    ) -> None:
        """Stores a state of an object unless the stored one is newer, or with ``allow_older``
        whenever it differs. The writer owns ``obj`` from now on. ``size`` is that of its
        JSON before it is reduced; None if that is unknown. ``checked``: it has the shape of its
        kind, as all that `KubeClient` returns."""
        key = key_of(obj)
        old = self._store.get(key)
        if old is not None:
            version, known = version_of(obj), version_of(old)
            same = uid_of(old) == uid_of(obj)
            if same and version == known:
                if not isinstance(old, Stub):
                    return
            elif not (allow_older or is_newer(version, known)):
                return
            if not same:
                # Another object has taken the name, and the deletion was not observed: report both.
                self.remove(key, old)
                old = None
        try:
            reduced = self._reduced(obj, old, checked=checked)
            if reduced is None:
                return
            if self._shape == "Pod":
                reduced = self._within_limits(reduced, old)
            fitting = self._fitting(key, reduced, size)
            if fitting is None:
                return
            obj = fitting
            if isinstance(obj, Stub) and old is not None and version_of(obj) == version_of(old):
                return  # The same stub again.
            self._store.put(obj)
        except Exception as error:  # noqa: BLE001  # one object must not end the watch of all
            self.has_skipped = True
            self._defect(key, error)
        else:
            self._notify(old, obj)

    def delete(self, obj: Object, known: Object) -> None:
        """Removes an object whose deletion the server reported; ``obj`` is its last state."""
        key = key_of(obj)
        last = known
        try:
            reduced = self._reduced(obj, known, checked=False)
            if reduced is not None:
                last = self._within_limits(reduced, known) if self._shape == "Pod" else reduced
        except Exception as error:  # noqa: BLE001  # one object must not end the watch of all
            self._defect(key, error)
        self.remove(key, last)

    def remove(self, key: Key, last: Object) -> None:
        """Removes an object, and passes ``last`` to handlers as its last state."""
        self._store.remove(key)
        self._release(key)
        self._notify(last, None)

    def resize(self, obj: Object) -> None:
        """Records that the store has this smaller form of an object now."""
        if self._share is not None:
            self._share.take(self._owner(key_of(obj)), self._size(obj))

    def close(self) -> None:
        """Gives the memory for other objects back: the store is no longer used."""
        keys = self._store.keys()
        for key in keys:
            self._release(key)

    def _release(self, key: Key) -> None:
        if self._share is not None:
            self._share.release(self._owner(key))

    def skip_malformed(self, path: str) -> None:
        """Counts an object that is not stored because ``path`` in it has the wrong type."""
        self.has_skipped = True
        self._skip("malformed", "an object has a part of the wrong type: %s", path)

    def skip_large(self) -> None:
        """Counts an object that is not stored because it is too large to be decoded."""
        self.has_skipped = True
        self._skip("memory", "an object exceeds %s bytes in memory", DECODED_LIMIT)

    def _reduced(self, obj: Object, old: Object | None, *, checked: bool) -> Object | None:
        """The form of the object that is stored; None if it does not have the shape of its
        kind."""
        # Checked before it is reduced, unless parts that are shared with ``old`` can be left out.
        if self._slim is not None and not checked and not self._has_shape(obj, None):
            return None
        obj = self._reduce(obj, old)
        return obj if self._slim is not None or checked or self._has_shape(obj, old) else None

    def _has_shape(self, obj: Object, old: Object | None) -> bool:
        if not self._shape:
            return True
        # A new object shares parts with others of its template (`InternPool`).
        if path := wrong_part(self._shape, obj, old or self._checked):
            self.skip_malformed(path)
        elif self._pool is not None and self._slim is None:
            self._checked = obj
        return not path

    def _within_limits(self, pod: Object, old: Object | None) -> Object:
        if old is not None and pod.get("status") is old.get("status"):
            return pod
        if len(orjson.dumps(pod.get("status"))) <= TEXT_LIMIT:
            return pod  # the usual case
        limited = within_limits(pod)
        if limited is not pod:
            self._skip("status", "a status exceeds %s bytes", STATUS_LIMIT)
        return limited

    def _fitting(self, key: Key, obj: Object, size: int | None) -> Object | None:
        """The object, or what is stored of it if there is no memory for all; None for nothing."""
        if self._share is None:
            return obj
        if size is None or self._slim is not None or self._is_shared:
            size = self._size(obj)
        if self._share.take(self._owner(key), size):
            return obj
        self._skip("memory", "the objects exceed %s bytes", self._share.limit)
        if self._stub is not None:
            stub = self._stub(obj)
            if self._share.take(self._owner(key), self._size(stub), is_stub=True):
                return stub
        self.has_skipped = True
        return None

    def _size(self, obj: Object) -> int:
        """Bytes of the object, as its share counts it."""
        raw = orjson.dumps(obj, default=list)
        return decoded_size(raw) if self._is_shared else len(raw)

    def _owner(self, key: Key) -> Hashable:
        """The object, as its share counts it."""
        return (self._resource, key) if self._is_shared else key

    def _skip(self, reason: str, message: str, value: object) -> None:
        self._client.limits.rejected[reason] += 1
        level = logging.DEBUG if reason in self._logged else logging.WARNING
        self._logged.add(reason)
        if not log.isEnabledFor(level):
            return  # There may be millions.
        side, kind = self._client.side, self._resource.kind
        text = "%s: %s: " + message + "; it is not used, or cut (logged once)"
        log.log(level, text, side, self._resource, value, extra=name_fields(kind, "", cluster=side))

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
        place = exception_summary.summary(error)
        level = logging.DEBUG if place in self._logged else logging.ERROR
        self._logged.add(place)
        log.log(
            level,
            "%s: %s %s: a defect in the bridge; please report it: %s",
            side,
            self._resource,
            key,
            exception_summary.traced_summary(error),
            extra=name_fields(kind, key.name, namespace=key.namespace, cluster=side),
        )
