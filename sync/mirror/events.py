"""Tells at home what the remote says of the node's pods: one Event at home for each there.

- Only namespaces with pods on the node are watched (`follow` is part of their scope), and only
  events whose ``involvedObject.uid`` is a remote pod of this node, or was one while we ran: the
  last words of a pod come when it is gone. What concerns others is passed over.
- Home's Event has a name that follows from the remote event's UID, so that it is never written
  twice. What home has already is listed once, before the first write: after a restart only what
  is new is written. Its latest state is written: one create, or one patch of what went on.
- What is told needs no more to be kept of it than that it was: there may be several for each pod.
- Nothing waits for it: few workers take their turn among those of the pods, and in a burst of pods
  each of these waits, for a second at most, and less where so many events wait that they would be
  told too late (`LATE`): the servers run pods first.
- A write that fails is tried again. One that home refuses as it is (its namespace is being
  deleted, the Event breaks a rule) is given up until the remote's event goes on.
- Events expire in each cluster by themselves; nothing is deleted here.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable

import orjson

from sync.base.fair_cache import FairCache
from sync.cache.informer import Informer
from sync.cache.store import Key
from sync.kube.errors import AlreadyExists, BadRequest, Forbidden, Invalid, NotFound
from sync.kube.resources import EVENTS
from sync.registration.context import ControllerContext
from sync.registration.declaration import Declaration, Watch
from sync.runtime.controller import Controller
from translators.identity import (
    Origin,
    is_in_mapped_namespace,
    is_owned_by_node,
    origin_of,
)
from translators.merge_patch import merge_patch
from translators.mirror import event
from translators.objects import HomeNamespace, Object, metadata, name_of, namespace_of, uid_of

log = logging.getLogger(__name__)

#: Events written at once: a small part of `sync.pods.controller.WORKERS`, so that in a burst the
#: pods have nearly all of the loop.
WORKERS = 4
#: Seconds between looks at whether the burst is over, and how long a worker waits at most: events
#: add at least four writes a second to a burst.
LOOK, MOST = 0.2, 1.0
#: Seconds in which two of three events that wait are told, also in a burst without an end.
LATE = 15.0
#: Pods that are gone whose last events are still mirrored.
FORMER_MAX = 10_000

#: Names computed before other tasks get a turn: about 2 ms of work.
BATCH = 200

#: What the API server says of an Event that it will not take however often it is sent.
_REFUSED = (BadRequest, Forbidden, Invalid, NotFound)


class _Namespace:
    """One namespace that is followed."""

    def __init__(self, events: Informer) -> None:
        self.events = events
        self.written: dict[str, str] | None = None
        """How far home's Events have gone, as JSON, by the UID of the remote event; None until home
        has been asked."""


class EventMirror:
    """Mirrors the events of one virtual node's pods. A key is home's namespace and the name of
    the remote event; without a name it stands for the list of what home has."""

    def __init__(self, context: ControllerContext, *, in_burst: Callable[[], bool]) -> None:
        self._in_burst = in_burst
        self._home = context.home
        self._remote = context.remote
        self._identity = context.identity
        self._remote_pods = context.remote_pods
        self._namespaces: dict[HomeNamespace, _Namespace] = {}
        # By the remote pod's UID.
        self._pods: dict[str, Origin] = {}
        self._former: FairCache[str, Origin] = FairCache(FORMER_MAX)
        self.controller: Controller[Key] = Controller(
            "events", self._reconcile, workers=WORKERS, kind="Event"
        )

    def declare(self) -> Declaration:
        """What the engine runs."""
        return Declaration(
            self.controller.name,
            controller=self.controller,
            watches=[Watch(self._remote_pods, self.remote_pod_changed)],
            requeue_namespace=self.requeue_namespace,
            run_in_namespace=self.follow,
            own_informers=lambda: [it.events for it in self._namespaces.values()],
            start=self._requeue_all,
        )

    # -- what changed ----------------------------------------------------------------------

    async def follow(self, namespace: HomeNamespace) -> None:
        """Watches the events of what stands for home's ``namespace``, until cancelled."""
        events = Informer(
            self._remote,
            EVENTS,
            namespace=self._identity.remote_namespace(namespace),
            fields="involvedObject.kind=Pod",
            indexers={"pod": _untold},
            indexed=("said",),
            slim=_packed,
        )
        events.on_change(functools.partial(self._changed, namespace))
        followed = self._namespaces[namespace] = _Namespace(events)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(events.run(), name=f"watch-events-{namespace}")
                await events.synced.wait()
                self.controller.queue.add(Key(namespace, ""))
        finally:
            if self._namespaces.get(namespace) is followed:
                del self._namespaces[namespace]

    def requeue_namespace(self, namespace: HomeNamespace) -> None:
        """Home lets the namespace be read: what it refused to list may be listed now."""
        followed = self._namespaces.get(namespace)
        if followed is not None and followed.written is None and followed.events.synced.is_set():
            self.controller.queue.add(Key(namespace, ""))

    def _requeue_all(self) -> None:
        """Queues the namespaces that a standby has followed."""
        for namespace in self._namespaces:
            self.requeue_namespace(namespace)

    def remote_pod_changed(self, old: Object | None, new: Object | None) -> None:
        """A remote pod of this home came, changed or went."""
        pod = new or old or {}
        origin = origin_of(pod)
        if origin is None or not is_owned_by_node(pod, self._identity):
            return
        if not is_in_mapped_namespace(pod, self._identity):
            return
        uid = uid_of(pod)
        if new is None:
            self._pods.pop(uid, None)
            self._former.put(namespace_of(pod), uid, origin)
        elif uid not in self._pods:
            # The other watch may have been faster: its first events are there already.
            self._pods[uid] = origin
            followed = self._namespaces.get(origin.namespace)
            for told in followed.events.store.by_index("pod", uid) if followed else ():
                self.controller.queue.add(Key(origin.namespace, name_of(told)))

    def _changed(self, namespace: HomeNamespace, old: Object | None, new: Object | None) -> None:
        if new is not None and self._origin(new):
            self.controller.queue.add(Key(namespace, name_of(new)))
        elif old is not None and new is None:
            followed = self._namespaces.get(namespace)
            if followed is not None and followed.written is not None:
                followed.written.pop(uid_of(old), None)

    def _origin(self, packed: Object) -> Origin | None:
        uid = packed["pod"]
        return self._pods.get(uid) or self._former.get(uid)

    # -- reconcile -------------------------------------------------------------------------

    async def _reconcile(self, key: Key) -> None:
        namespace = HomeNamespace(key.namespace)
        followed = self._namespaces.get(namespace)
        if followed is None:
            return
        if not key.name:
            await self._list_home_events(namespace, followed)
        elif followed.written is not None:
            place = Key(self._identity.remote_namespace(namespace), key.name)
            await self._give_way()
            packed = followed.events.store.get(place)
            origin = self._origin(packed) if packed and "said" in packed else None
            if packed is not None and origin is not None:
                wanted = event.translate_event(_unpacked(packed), origin, self._identity)
                await self._tell(uid_of(packed), wanted, followed.written)
                followed.events.compact(packed, _told(packed))

    async def _give_way(self) -> None:
        waited = 0.0
        while self._in_burst():
            left = min(MOST, LATE * WORKERS / (len(self.controller.queue) + 1)) - waited
            if left <= 0:
                return
            waited += LOOK
            await asyncio.sleep(min(LOOK, left))

    async def _list_home_events(self, namespace: HomeNamespace, followed: _Namespace) -> None:
        selector = event.mirrored_events_selector(self._identity)
        page = await self._home.list(EVENTS, namespace=namespace, labels=selector, slim=_progress)
        known = {name_of(it): it["progress"] for it in page.items}
        written = {}
        for count, packed in enumerate(followed.events.store, start=1):
            progress = known.get(event.home_event_name(_unpacked(packed))) if known else None
            if progress is not None:
                written[uid_of(packed)] = progress
            if count % BATCH == 0:
                await asyncio.sleep(0)
        followed.written = written
        for packed in followed.events.store:
            self._changed(namespace, None, packed)

    async def _tell(self, uid: str, wanted: Object, written: dict[str, str]) -> None:
        """Makes home's Event be as wanted, where it is not, and notes that."""
        progress = event.progress_fields(wanted)
        try:
            known = orjson.loads(written[uid]) if uid in written else await self._create(wanted)
            if patch := merge_patch(known, progress):
                await self._patch(wanted, patch)
        except _REFUSED as error:
            log.debug("event %s/%s: given up: %s", namespace_of(wanted), name_of(wanted), error)
        written[uid] = _text(progress)

    async def _create(self, wanted: Object) -> Object:
        """How far the Event at home has gone that was made now, or was there already."""
        namespace = namespace_of(wanted)
        try:
            made = await self._home.create(EVENTS, wanted, namespace=namespace)
        except AlreadyExists:
            made = await self._home.get(EVENTS, name_of(wanted), namespace=namespace)
        return event.progress_fields(made)

    async def _patch(self, wanted: Object, patch: Object) -> None:
        namespace = namespace_of(wanted)
        try:
            await self._home.patch(EVENTS, name_of(wanted), patch, namespace=namespace)
        except NotFound:
            # It has expired at home, or somebody cleared it.
            await self._create(wanted)


# -- what is kept of an event: few read it more than once ------------------------------------


def _packed(remote: Object) -> Object:
    """Until it is told: what an informer needs, the pod's UID, and all else as JSON."""
    slim = event.compact(remote)
    meta = slim.pop("metadata")
    return {"metadata": meta, "pod": event.involved_uid(remote), "said": _text(slim)}


def _unpacked(packed: Object) -> Object:
    said: Object = orjson.loads(packed["said"]) if "said" in packed else {}
    return {**said, "metadata": metadata(packed)}


def _told(packed: Object) -> Object:
    """From then on, until it goes on."""
    return {"metadata": metadata(packed), "pod": packed["pod"]}


def _untold(packed: Object) -> tuple[str, ...]:
    """The pod of an event that may have come before its pod."""
    return (packed["pod"],) if "said" in packed else ()


def _progress(home: Object) -> Object:
    """How far home's Event has gone."""
    return {"metadata": {"name": name_of(home)}, "progress": _text(event.progress_fields(home))}


def _text(part: Object) -> str:
    """As JSON. Decoded, since orjson gives bytes in a buffer of several kB that stays."""
    return orjson.dumps(part).decode()
