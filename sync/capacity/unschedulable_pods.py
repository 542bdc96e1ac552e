"""Detects remote pods that wait for a node, so that home's scheduler prefers other nodes.

The condition begins when a pod has waited for `GRACE` seconds, or half of its timeout if that is
less (a pod that already waits when the bridge starts counts at once). It ends `LINGER` seconds
after the last such pod was scheduled or deleted: the replacement of a pod that timed out must not
return to the virtual node at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from sync.base.safe_callbacks import Callbacks
from sync.cache.informer import Informer
from sync.cache.store import Key, key_of
from translators.object_accessors import Object
from translators.ownership_labels import is_in_mapped_namespace, is_owned_by_node
from translators.pods import unschedulable_timeout
from translators.virtual_node_identity import Identity

#: Seconds that the remote's scheduler may need for preemption, which is no shortage.
GRACE = 5.0
#: Seconds in which a controller creates, and home's scheduler binds, the replacement of a pod that
#: timed out.
LINGER = 30.0


class UnschedulablePods:
    """Tracks the waiting remote pods of one virtual node."""

    def __init__(self, remote_pods: Informer, identity: Identity, *, timeout: float) -> None:
        """``timeout``: the seconds after which a waiting pod is given up."""
        self._identity = identity
        self._grace = min(GRACE, timeout / 2)
        self._remote_pods = remote_pods
        # Since when each pod waits (the loop's time), the longest first.
        self._since: dict[Key, float] = {}
        self._lingers_until = 0.0
        self._handlers: Callbacks[[]] = Callbacks("unschedulable pods")
        remote_pods.on_change(self._changed)

    def on_change(self, handler: Callable[[], None]) -> None:
        """Calls ``handler`` when the first pod begins to wait and when the last one ceases to."""
        self._handlers.add(handler)

    def waiting(self) -> tuple[bool, float | None]:
        """Whether pods wait now, and the seconds after which that may change without an event; None
        if only an event can change it."""
        now = asyncio.get_running_loop().time()
        oldest = next(iter(self._since.values()), None)
        if oldest is not None and now - oldest >= self._grace:
            return True, None
        seconds = [self._lingers_until - now] if now < self._lingers_until else []
        if oldest is not None:
            seconds.append(self._grace - (now - oldest))
        return now < self._lingers_until, min(seconds, default=None)

    def _changed(self, old: Object | None, new: Object | None) -> None:
        key = key_of(new or old or {})
        waits = new is not None and unschedulable_timeout.is_unschedulable(new)
        pod = new or old or {}
        own = is_owned_by_node(pod, self._identity) and is_in_mapped_namespace(pod, self._identity)
        if waits == (key in self._since) or not own:
            return
        now = asyncio.get_running_loop().time()
        if waits:
            # Pods of the first full list waited before the bridge started.
            is_synced = self._remote_pods.synced.is_set()
            self._since[key] = now if is_synced else now - self._grace
        elif now - self._since.pop(key) >= self._grace:
            self._lingers_until = now + LINGER
        if len(self._since) == int(waits):
            self._handlers()
