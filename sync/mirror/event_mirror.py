"""Mirrors the Events of the node's remote pods to home: one Event at home for each.

- Only remote namespaces with pods on the node are watched (`EventMirror.follow`), and only Events
  whose ``involvedObject.uid`` is a remote pod of this node, or was one while this process ran.
- The name of home's Event follows from the UID of the remote one, so that it is never written
  twice. Home's Events are listed once, before the first write: after a restart only new ones are
  written.
- Of a written Event only the metadata and progress (count, times) are kept in memory: there may be
  several Events for each pod.
- Pods take precedence. In a burst of pods each of the few workers waits before each Event, for a
  second at most, and less if so many Events are queued that they would be late (`LATE`).
- Events are paced by pod and namespace (`EventPace`): a remote that floods a namespace neither
  fills the home cluster nor delays the Events of other namespaces, which take turns.
- The last Events of a deleted pod are dropped if its annotations name a home pod with a name or UID
  that is too long: the mirror keeps these, and clients of the remote can change them.
- A failed write is retried. A write that home rejects is dropped until the remote Event changes.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable
from dataclasses import astuple

import orjson

from sync.base import clock
from sync.base.namespace_fair_cache import FairCache
from sync.cache.informer import Informer
from sync.cache.store import Key
from sync.declaration.controller_context import ControllerContext
from sync.declaration.controller_declaration import Declaration, Watch
from sync.kube.api_errors import AlreadyExists, BadRequest, Forbidden, Invalid, NotFound
from sync.kube.api_resources import EVENTS
from sync.runtime.controller import Controller
from translators.merge_patch import merge_patch
from translators.mirror import event
from translators.object_accessors import (
    HomeNamespace,
    Object,
    metadata,
    name_of,
    namespace_of,
    uid_of,
)
from translators.ownership_labels import Origin, is_in_mapped_namespace, is_owned_by_node, origin_of
from translators.value_shapes import NAME_LIMIT

log = logging.getLogger(__name__)

#: Events written at once: a small part of `sync.pods.pod_controller.WORKERS`, so that a burst of
#: pods gets nearly all of the event loop.
WORKERS = 4
#: Seconds between checks whether the burst is over, and the longest wait of a worker.
BURST_POLL, BURST_WAIT_MAX = 0.2, 1.0
#: Seconds in which about two thirds of the queued Events are written, also in an endless burst.
LATE = 15.0

#: Names computed before other tasks run: about 2 ms of work.
BATCH = 200

#: Responses to an Event that the API server will never accept.
_REJECTED = (BadRequest, Forbidden, Invalid, NotFound)


class _FollowedNamespace:
    """The Events of one followed namespace."""

    def __init__(self, events: Informer) -> None:
        self.events = events
        self.written: dict[str, str] | None = None
        """The progress of home's Events, as JSON, by the remote Event's UID; None until listed."""


class EventMirror:
    """The reconciler of Events. A key is home's namespace and the name of the remote Event; a key
    without a name stands for the list of home's Events."""

    def __init__(self, context: ControllerContext, *, in_burst: Callable[[], bool]) -> None:
        self._in_burst = in_burst
        self._pace = EventPace()
        self._home = context.home
        self._account = context.account
        self._remote = context.remote
        self._identity = context.identity
        self._prepared = context.policy.remote_namespaces
        self._remote_pods = context.remote_pods
        self._namespaces: dict[HomeNamespace, _FollowedNamespace] = {}
        # By the remote pod's UID.
        self._pods: dict[str, Origin] = {}
        self._deleted_pods: FairCache[str, Origin] = FairCache()
        self.controller: Controller[Key] = Controller(
            "events", self._reconcile, workers=WORKERS, kind="Event"
        )

    def declare(self) -> Declaration:
        return Declaration(
            self.controller.name,
            controller=self.controller,
            watches=[Watch(self._remote_pods, self.remote_pod_changed)],
            requeue_namespace=self.requeue_namespace,
            run_in_namespace=self.follow,
            own_informers=lambda: [it.events for it in self._namespaces.values()],
            start=self._requeue_all,
        )

    async def follow(self, namespace: HomeNamespace) -> None:
        """Watches the Events in the remote namespace of ``namespace``, until cancelled."""
        remote_namespace = self._identity.remote_namespace(namespace)
        if self._prepared and remote_namespace not in self._prepared:
            return  # No pod runs there, and the credential may not read it.
        events = Informer(
            self._remote,
            EVENTS,
            namespace=remote_namespace,
            fields="involvedObject.kind=Pod",
            indexers={"pod": lambda packed: (packed["pod"],) if "rest" in packed else ()},
            indexed=("rest",),
            slim=_pack,
        )
        events.on_change(functools.partial(self._remote_event_changed, namespace))
        followed = self._namespaces[namespace] = _FollowedNamespace(events)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(events.run(), name=f"watch-events-{namespace}")
                await events.synced.wait()
                self.controller.queue.add(Key(namespace, ""))
        finally:
            if self._namespaces.get(namespace) is followed:
                del self._namespaces[namespace]

    def requeue_namespace(self, namespace: HomeNamespace) -> None:
        """Queues the list of home's Events if it has not succeeded: home may have forbidden it."""
        followed = self._namespaces.get(namespace)
        if followed is not None and followed.written is None and followed.events.synced.is_set():
            self.controller.queue.add(Key(namespace, ""))

    def _requeue_all(self) -> None:
        for namespace in self._namespaces:
            self.requeue_namespace(namespace)

    def remote_pod_changed(self, old: Object | None, new: Object | None) -> None:
        """Queues the Events that arrived before their pod."""
        pod = new or old or {}
        origin = origin_of(pod)
        if origin is None or not is_owned_by_node(pod, self._identity):
            return
        if not is_in_mapped_namespace(pod, self._identity):
            return
        uid = uid_of(pod)
        if new is None:
            self._pods.pop(uid, None)
            if all(len(text) <= NAME_LIMIT for text in astuple(origin)):
                self._deleted_pods.put(namespace_of(pod), uid, origin)
        elif uid not in self._pods:
            # The watch of Events may have been faster.
            self._pods[uid] = origin
            followed = self._namespaces.get(origin.namespace)
            for waiting in followed.events.store.by_index("pod", uid) if followed else ():
                self.controller.queue.add(Key(origin.namespace, name_of(waiting)))

    def _remote_event_changed(
        self, namespace: HomeNamespace, old: Object | None, new: Object | None
    ) -> None:
        if new is not None and self._origin(new):
            self.controller.queue.add(Key(namespace, name_of(new)))
        elif old is not None and new is None:
            followed = self._namespaces.get(namespace)
            if followed is not None and followed.written is not None:
                followed.written.pop(uid_of(old), None)

    def _origin(self, packed: Object) -> Origin | None:
        uid = packed["pod"]
        return self._pods.get(uid) or self._deleted_pods.get(uid)

    async def _reconcile(self, key: Key) -> None:
        namespace = HomeNamespace(key.namespace)
        followed = self._namespaces.get(namespace)
        if followed is None:
            return
        if not key.name:
            await self._list_home_events(namespace, followed)
        elif followed.written is not None:
            remote_key = Key(self._identity.remote_namespace(namespace), key.name)
            await self._wait_for_burst()
            packed = followed.events.store.get(remote_key)
            origin = self._origin(packed) if packed and "rest" in packed else None
            if packed is not None and origin is not None:
                if delay := self._pace.delay(namespace):
                    self.controller.queue.add_after(key, delay)
                    return
                wanted = event.translate_event(_unpack(packed), origin, self._identity)
                await self._write(packed, wanted, followed.written)
                current = followed.events.store.get(remote_key)
                if current is None or uid_of(current) != uid_of(packed):
                    # It was deleted during the write: no later deletion removes its progress.
                    followed.written.pop(uid_of(packed), None)
                followed.events.compact(packed, {key: packed[key] for key in ("metadata", "pod")})

    async def _wait_for_burst(self) -> None:
        waited = 0.0
        while self._in_burst():
            left = min(BURST_WAIT_MAX, LATE * WORKERS / (len(self.controller.queue) + 1)) - waited
            if left <= 0:
                return
            waited += BURST_POLL
            await asyncio.sleep(min(BURST_POLL, left))

    async def _list_home_events(
        self, namespace: HomeNamespace, followed: _FollowedNamespace
    ) -> None:
        selector = event.mirrored_events_selector(self._identity)
        page = await self._account.list(
            EVENTS, namespace=namespace, labels=selector, slim=_progress
        )
        known = {name_of(it): it["progress"] for it in page.items}
        written = {}
        for count, packed in enumerate(followed.events.store, start=1):
            progress = known.get(event.home_event_name(_unpack(packed))) if known else None
            if progress is not None:
                written[uid_of(packed)] = progress
            if count % BATCH == 0:
                await asyncio.sleep(0)
        followed.written = written
        for packed in followed.events.store:
            self._remote_event_changed(namespace, None, packed)

    async def _write(self, packed: Object, wanted: Object, written: dict[str, str]) -> None:
        """Creates or patches home's Event if it differs and the pace permits, and records its
        progress."""
        uid, progress = uid_of(packed), event.progress_fields(wanted)
        known = orjson.loads(written[uid]) if uid in written else None
        if known is not None and not merge_patch(known, progress):
            return
        if not self._pace.take(namespace_of(wanted), packed["pod"]):
            self._remote.limits.rejected["event-rate"] += 1
            return
        try:
            if known is None:
                known = await self._create(wanted)
            if patch := merge_patch(known, progress):
                await self._patch(wanted, patch)
        except _REJECTED as error:
            log.debug("event %s/%s: rejected: %s", namespace_of(wanted), name_of(wanted), error)
        written[uid] = _to_json(progress)

    async def _create(self, wanted: Object) -> Object:
        """Creates home's Event; returns the progress of the created or existing one."""
        namespace = namespace_of(wanted)
        try:
            existing = await self._home.create(EVENTS, wanted, namespace=namespace)
        except AlreadyExists:
            existing = await self._account.get(EVENTS, name_of(wanted), namespace=namespace)
        return event.progress_fields(existing)

    async def _patch(self, wanted: Object, patch: Object) -> None:
        name, namespace = name_of(wanted), namespace_of(wanted)
        try:
            await self._home.patch(EVENTS, name, patch, namespace=namespace)
        except NotFound:  # The Event has expired or was deleted at home.
            await self._create(wanted)


def _pack(remote: Object) -> Object:
    """The cached form of an Event that is not written yet: metadata, the pod's UID, and the rest as
    JSON."""
    slim = event.compact(remote)
    meta = slim.pop("metadata")
    return {"metadata": meta, "pod": event.involved_uid(remote), "rest": _to_json(slim)}


def _unpack(packed: Object) -> Object:
    rest: Object = orjson.loads(packed["rest"]) if "rest" in packed else {}
    return {**rest, "metadata": metadata(packed)}


def _progress(home: Object) -> Object:
    """The name of the Event, and its progress with the beginning of the message: one character
    more than the mirror writes, so that a longer message differs."""
    progress = event.progress_fields(home)
    progress["message"] = (progress["message"] or "")[: event.MESSAGE_MAX + 1] or None
    return {"metadata": {"name": name_of(home)}, "progress": _to_json(progress)}


def _to_json(part: Object) -> str:
    """JSON text. Decoded, because the bytes of orjson keep a buffer of several kB alive."""
    return orjson.dumps(part).decode()


#: Events about one pod at once, and the seconds for each further one.
BURST, SECONDS_EACH = 50, 150.0
#: Events of one namespace at once: those of a burst of 1,600 pods; and further ones a second.
NAMESPACE_BURST, NAMESPACE_RATE = 10_000, 100.0


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
    """Token buckets of all pods and namespaces.

    client-go limits what one component reports about one object to `BURST` / 2 Events, and one
    every five minutes from then on (EventSourceObjectSpamFilter in tools/record/events_cache.go);
    two components, scheduler and kubelet, report about a pod. So an honest remote stays below the
    limit of a pod, and Events beyond it are dropped. Those beyond the limit of a namespace are
    delayed.
    """

    def __init__(self) -> None:
        self._pods: FairCache[str, _Bucket] = FairCache()
        self._namespaces: FairCache[str, _Bucket] = FairCache()

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
