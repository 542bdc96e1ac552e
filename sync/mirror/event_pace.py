"""Paces the Events that are written to home, by pod and by namespace (token buckets).

client-go limits what one component reports about one object to `BURST` / 2 Events, and one every
five minutes from then on (EventSourceObjectSpamFilter in tools/record/events_cache.go); two
components, scheduler and kubelet, report about a pod. So an honest remote stays below the limit of
a pod, and Events beyond it are dropped. Those beyond the limit of a namespace are delayed.
"""

from __future__ import annotations

from sync.base import clock
from sync.base.namespace_fair_cache import FairCache

#: Events about one pod at once, and the seconds for each further one.
BURST, SECONDS_EACH = 50, 150.0
#: Events of one namespace at once: those of a burst of 1,600 pods; and further ones a second.
NAMESPACE_BURST, NAMESPACE_RATE = 10_000, 100.0
#: Pods and namespaces whose buckets are kept; the others' are full.
BUCKETS_MAX = 10_000


class _Bucket:
    """Up to ``size`` tokens, of which ``rate`` are added each second."""

    __slots__ = ("at", "tokens")

    def __init__(self, size: float, now: float) -> None:
        self.tokens = size
        self.at = now

    def fill(self, size: float, rate: float, now: float) -> None:
        self.tokens = min(size, self.tokens + (now - self.at) * rate)
        self.at = now


class EventPace:
    """The buckets of all pods and namespaces."""

    def __init__(self) -> None:
        self._pods: FairCache[str, _Bucket] = FairCache(BUCKETS_MAX)
        self._namespaces: FairCache[str, _Bucket] = FairCache(BUCKETS_MAX)

    def delay(self, namespace: str) -> float:
        """Seconds until an Event of the namespace may be written; 0 for now."""
        bucket = self._bucket(self._namespaces, namespace, namespace, NAMESPACE_BURST)
        bucket.fill(NAMESPACE_BURST, NAMESPACE_RATE, clock.now())
        return max(0.0, (1 - bucket.tokens) / NAMESPACE_RATE)

    def take(self, namespace: str, pod: str) -> bool:
        """Counts an Event about the pod with this UID; whether it may be written."""
        bucket = self._bucket(self._pods, namespace, pod, BURST)
        bucket.fill(BURST, 1 / SECONDS_EACH, clock.now())
        if bucket.tokens < 1:
            return False
        bucket.tokens -= 1
        self._bucket(self._namespaces, namespace, namespace, NAMESPACE_BURST).tokens -= 1
        return True

    def _bucket(
        self, buckets: FairCache[str, _Bucket], namespace: str, key: str, size: float
    ) -> _Bucket:
        bucket = buckets.get(key)
        if bucket is None:
            bucket = _Bucket(size, clock.now())
            buckets.put(namespace, key, bucket)
        return bucket
