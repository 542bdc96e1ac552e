"""The last states of deleted remote pods, until their home pods are deleted or have another one.

They share the memory for the objects of the remote (`sync.cache.cache_share`): of a pod that does
not fit, a stub is kept (`sync.cache.stub`), and where there is no memory for that, nothing. Their
number is bounded, too (`sync.base.namespace_fair_cache`).
"""

from __future__ import annotations

import orjson

from sync.base.namespace_fair_cache import FairCache
from sync.cache.cache_share import RemoteShare
from sync.cache.stub import stub_of
from sync.kube.response_limits import ResponseLimits
from translators.object_accessors import Object, namespace_of


class LastStates:
    """By the home pod's UID. ``limits`` are the remote's."""

    def __init__(self, limits: ResponseLimits) -> None:
        self._states: FairCache[str, Object] = FairCache()
        self._share = RemoteShare(limits)

    def get(self, uid: str) -> Object | None:
        return self._states.get(uid)

    def put(self, uid: str, pod: Object) -> None:
        self.pop(uid)
        if not self._share.take(uid, _size(pod)):
            pod = stub_of(pod)
            if not self._share.take(uid, _size(pod), is_stub=True):
                return
        evicted = self._states.put(namespace_of(pod), uid, pod)
        if evicted is not None:
            self._share.release(evicted)

    def pop(self, uid: str) -> None:
        """Forgets the state of this home pod's remote pod."""
        self._states.pop(uid)
        self._share.release(uid)


def _size(pod: Object) -> int:
    return len(orjson.dumps(pod, default=list))
