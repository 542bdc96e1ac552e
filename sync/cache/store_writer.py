"""Writes the states of one resource's objects into a store, and notifies handlers of changes.

Objects of the remote with the wrong shape (`translators.remote_shapes`), or for which no memory is
left (`CacheShare`), are skipped.

Handlers are called after the store has the object, in the order in which they were added. The newer
of two states of an object wins, in whatever order they arrive.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import orjson

from sync.base import exception_summary
from sync.base.resource_version import is_newer, version_of
from sync.cache.interning import InternPool, intern_pod, no_interning, share_unchanged
from sync.cache.store import Key, Store, key_of
from sync.kube.api_resources import Resource
from sync.kube.client import KubeClient
from sync.kube.response_limits import CACHE_LIMIT, DECODED_LIMIT, ResponseLimits
from sync.runtime.log_fields import name_fields
from translators.object_accessors import Object, metadata, uid_of
from translators.pods.status_limits import STATUS_LIMIT, TEXT_LIMIT, within_limits
from translators.remote_shapes import wrong_part

log = logging.getLogger(__name__)

Handler = Callable[[Object | None, Object | None], None]


class CacheShare:
    """The part of the memory for all objects of one remote that one store has. It may grow while it
    has less than is free, so that no store takes all."""

    def __init__(self, limits: ResponseLimits) -> None:
        self._limits = limits
        # In kB: small integers are shared.
        self._sizes: dict[Key, int] = {}
        self._total = 0

    def take(self, key: Key, size: int) -> bool:
        """Whether the object may have this size from now on."""
        wanted = (size >> 10) + 1
        more = wanted - self._sizes.get(key, 0)
        if more > 0 and (self._total + more) << 10 > CACHE_LIMIT - self._limits.cached:
            return False
        self._sizes[key] = wanted
        self._add(more)
        return True

    def release(self, key: Key) -> None:
        self._add(-self._sizes.pop(key, 0))

    def close(self) -> None:
        self._sizes.clear()
        self._add(-self._total)

    def _add(self, more: int) -> None:
        self._total += more
        self._limits.cached += more << 10


class StoreWriter:
    """The only writer of ``store`` while an informer runs.

    ``slim``, ``pool`` and ``shape``: see `sync.cache.informer.Informer`.
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
    ) -> None:
        self._client = client
        self._resource = resource
        self._store = store
        self._slim = slim
        self._pool = pool
        # "" for objects of home, which are not checked.
        self._shape = (shape or resource.kind) if client.side == "remote" else ""
        self._share = CacheShare(client.limits) if client.side == "remote" else None
        # The last object that had the right shape.
        self._checked: Object | None = None
        self._handlers: list[Handler] = []
        # The reasons for which an object was skipped: the first is logged as a warning.
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
            if (same and version == known) or not (allow_older or is_newer(version, known)):
                return
            if not same:
                # Another object has taken the name, and the deletion was not observed: report both.
                self.remove(key, old)
                old = None
        try:
            reduced = self._reduced(obj, old, checked=checked)
            if reduced is None:
                return
            obj = reduced
            if self._shape == "Pod":
                obj = self._within_limits(obj, old)
            if not self._has_room(key, obj, size):
                return
            self._store.put(obj)
        except Exception as error:  # noqa: BLE001  # one object must not end the watch of all
            self._defect(key, error)
        else:
            self._notify(old, obj)

    def delete(self, obj: Object, known: Object) -> None:
        """Removes an object whose deletion the server reported; ``obj`` is its last state."""
        key = key_of(obj)
        last = known
        try:
            last = self._reduced(obj, known, checked=False) or known
        except Exception as error:  # noqa: BLE001  # one object must not end the watch of all
            self._defect(key, error)
        self.remove(key, last)

    def remove(self, key: Key, last: Object) -> None:
        """Removes an object, and passes ``last`` to handlers as its last state."""
        self._store.remove(key)
        if self._share is not None:
            self._share.release(key)
        self._notify(last, None)

    def resize(self, obj: Object) -> None:
        """Records that the store has this smaller form of an object now."""
        if self._share is not None:
            self._share.take(key_of(obj), _json_size(obj))

    def close(self) -> None:
        """Gives the memory for other objects of the remote back: the store is no longer used."""
        if self._share is not None:
            self._share.close()

    def skip_malformed(self, path: str) -> None:
        """Counts an object that is not stored because ``path`` in it has the wrong type."""
        self._skip("malformed", "an object has a part of the wrong type: %s", path)

    def skip_large(self) -> None:
        """Counts an object that is not stored because it is too large to be decoded."""
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

    def _has_room(self, key: Key, obj: Object, size: int | None) -> bool:
        if self._share is None:
            return True
        if size is None or self._slim is not None:
            size = _json_size(obj)
        if self._share.take(key, size):
            return True
        self._skip("memory", "the objects of the remote exceed %s bytes", CACHE_LIMIT)
        return False

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
        log.error(
            "%s: %s %s: a defect in the bridge; please report it: %s",
            side,
            self._resource,
            key,
            exception_summary.traced_summary(error),
            extra=name_fields(kind, key.name, namespace=key.namespace, cluster=side),
        )


def _json_size(obj: Object) -> int:
    return len(orjson.dumps(obj, default=list))
