"""Watches each home ConfigMap and Secret to which a pod on the virtual node refers, by its name.

- An object is read from the first pod that refers to it, and forgotten `LINGER` seconds after the
  last. Other objects of a namespace are never read: a node's credential permits no other list (the
  Node authorizer in plugin/pkg/auth/authorizer/node of Kubernetes).
- One tenant cannot fill the memory of the bridge: the watches and objects of a namespace have a
  share of it (`sync.cache.cache_share`). An object beyond that is not watched (`unreadable`), or is
  kept without its content (`sync.references.content_digest`); nor is content kept that is no longer
  needed (`drop_content`). `whole` requests it again.
- Pods that refer to the same object share one watch; the watches share connections
  (`sync.kube.http2`). An idle watch costs no requests.
- The watches run while `run` does, so that a standby replica has none.
- `get` returns the last known state, which may be stale while a watch fails. `require` raises
  unless the objects are known and are being watched.
- Handlers of `on_change` are called as those of an informer; handlers of `on_read` when an object
  was read for the first time (whether or not it exists), when home begins to forbid it, and when
  it can be watched again.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

from sync.base.safe_callbacks import Callbacks
from sync.cache.cache_share import NamespaceShares
from sync.cache.informer import Informer
from sync.cache.store import Key
from sync.cache.store_writer import Handler
from sync.cache.stub import Stub
from sync.kube.api_errors import ApiError, Forbidden, KubeError, NotRelatedToNode
from sync.kube.api_resources import Resource
from sync.kube.client import KubeClient
from sync.kube.http2 import STREAM_WINDOW
from sync.namespaces.per_namespace_informers import (
    UNREAD_SECONDS,
    home_forbids,
    home_unreadable,
)
from sync.references.content_digest import slim_original, without_content
from sync.references.reference_keys import CopyKey
from sync.runtime.controller import ReconcileBlocked
from sync.runtime.log_fields import name_fields
from translators.object_accessors import HomeNamespace, Object, metadata

log = logging.getLogger(__name__)

#: Seconds that an object is watched after its last pod, so that a rollout or a frequent Job does
#: not read it each time.
LINGER = 60.0
#: Seconds from the end of a missing permission to `on_read`: the other objects of the namespace are
#: tried again meanwhile, so that a pod does not report one after the other.
SETTLE = 0.5
#: As `UNREAD_SECONDS`, while the Node authorizer has to see the pod.
UNRELATED_SECONDS = 15.0
#: Bytes that a watch needs, without its object: measured 20 kB, and what is buffered of an event.
WATCH_SIZE = 20 * 2**10 + STREAM_WINDOW
#: Objects without content that are requested concurrently, until their copies are written.
FETCHES = 2


class ReferenceWatches:
    """The watched objects of all namespaces.

    ``keys_of`` returns the objects that a home pod needs; ``home_pods`` has them as its index
    ``reference``. ``shares`` bound the memory of each namespace. ``linger`` defaults to `LINGER`.
    """

    def __init__(
        self,
        client: KubeClient,
        home_pods: Informer,
        keys_of: Callable[[Object], Iterable[CopyKey]],
        *,
        shares: NamespaceShares,
        linger: float | None = None,
    ) -> None:
        self.keys_of = keys_of
        self._client = client
        self._home_pods = home_pods
        self._shares = shares
        self._linger = LINGER if linger is None else linger
        self._rng = random.Random()  # noqa: S311  # jitter, not a secret
        self._handlers: dict[Resource, list[Handler]] = {}
        self._read_handlers: Callbacks[CopyKey] = Callbacks("referenced home object read")
        self._informers: dict[CopyKey, Informer] = {}
        self._watched_in: defaultdict[HomeNamespace, set[CopyKey]] = defaultdict(set)
        # Objects for which there was no memory.
        self._refused: dict[HomeNamespace, dict[CopyKey, None]] = {}
        self._fetches = asyncio.Semaphore(FETCHES)
        self._tasks: dict[CopyKey, asyncio.Task[None]] = {}
        self._ending: dict[CopyKey, asyncio.TimerHandle] = {}
        self._settling: dict[HomeNamespace, asyncio.TimerHandle] = {}
        # Namespaces for which a missing permission was logged.
        self._reported: set[HomeNamespace] = set()
        self._group: asyncio.TaskGroup | None = None

    @property
    def informers(self) -> list[Informer]:
        return list(self._informers.values())

    def on_change(self, resource: Resource, handler: Handler) -> None:
        """Calls ``handler(old, new)`` for each change of a watched object. Add handlers before
        `run`."""
        self._handlers.setdefault(resource, []).append(handler)

    def on_read(self, handler: Callable[[CopyKey], None]) -> None:
        """Calls ``handler`` as the module docstring states."""
        self._read_handlers.add(handler)

    # -- what is known ---------------------------------------------------------------------

    def get(self, key: CopyKey) -> Object | None:
        """The last known state, maybe without the content; None if the object does not exist or is
        not known."""
        informer = self._informers.get(key)
        return informer.store.get(Key(key.namespace, key.name)) if informer is not None else None

    @asynccontextmanager
    async def whole(self, key: CopyKey) -> AsyncIterator[Object]:
        """The object with its content, which is requested from home if `get` has it without. Raises
        KubeError, and ReconcileBlocked if the object no longer exists."""
        known = self.get(key)
        if known is not None and not isinstance(known, Stub):
            yield known
            return
        async with self._fetches:
            # Not a GET, for which an account in place of the node has no permission.
            found = await self._client.list(
                key.resource, namespace=key.namespace, fields=f"metadata.name={key.name}"
            )
            if not found.items:
                raise home_unreadable(key.namespace, f"{key.resource.kind} {key.name}")
            yield slim_original(found.items[0])

    def drop_content(self, key: CopyKey) -> None:
        """Keeps the object without its content, because its copy is written."""
        known = self.get(key)
        if known is not None and not isinstance(known, Stub):
            self._informers[key].compact(known, without_content(known))
            self._admit_refused()

    def is_known(self, key: CopyKey) -> bool:
        """Whether the object was read: `get` returns None only if it does not exist."""
        informer = self._informers.get(key)
        return informer is not None and informer.synced.is_set() and informer.is_complete

    def is_pending(self, key: CopyKey) -> bool:
        """Whether home has not answered yet, or is being asked again (`SETTLE`)."""
        informer = self._informers.get(key)
        if informer is None or key.namespace in self._settling:
            return not self._is_refused(key)
        if isinstance(informer.error, NotRelatedToNode):
            return not informer.fails_for(UNRELATED_SECONDS)
        return informer.error is None and not informer.synced.is_set()

    def is_readable(self, key: CopyKey) -> bool:
        """Whether the object is known and home does not forbid it now."""
        return self.is_known(key) and not isinstance(self._informers[key].error, Forbidden)

    def missing_permission(self, keys: Iterable[CopyKey]) -> ReconcileBlocked | None:
        """Why a pod that needs these objects, of one namespace, cannot be created; None if home
        forbids none of them as far as is known."""
        keys = list(keys)
        forbidden = self.forbidden(keys)
        if not forbidden:
            return None
        action = f"list and watch {', '.join(sorted(map(str, forbidden)))}"
        server_message = str(next(iter(forbidden.values())))
        return home_forbids(action, keys[0].namespace, server_message=server_message)

    def forbidden(self, keys: Iterable[CopyKey]) -> dict[Resource, Forbidden]:
        """The resources of these objects that home forbids, with its answer."""
        found = {}
        for key in keys:
            error = informer.error if (informer := self._informers.get(key)) is not None else None
            if isinstance(error, Forbidden) and _forbids(error):
                found[key.resource] = error
        return found

    def unreadable(self, keys: Iterable[CopyKey]) -> ReconcileBlocked | None:
        """Why a pod that needs these objects cannot be created, if home does not forbid them: one
        exceeds the memory, or home answers with an error. None if neither lasts."""
        for key in keys:
            informer = self._informers.get(key)
            if self._is_refused(key) or (informer is not None and not informer.is_complete):
                return _too_large(key.namespace)
            error = informer.error if informer is not None else None
            unrelated = isinstance(error, NotRelatedToNode)
            seconds = UNRELATED_SECONDS if unrelated else UNREAD_SECONDS
            if (
                informer is not None
                and isinstance(error, ApiError)
                and not _forbids(error)
                and informer.fails_for(seconds)
            ):
                what = f"{key.resource.kind} {key.name}"
                return home_unreadable(key.namespace, what, server_message=error.message)
        return None

    def require(self, keys: Iterable[CopyKey]) -> None:
        """Raises ReconcileBlocked unless these objects are known and are being watched: an object
        whose watch fails may lack an edit. A failed watch is retried now."""
        keys = list(keys)
        if (blocked := self.missing_permission(keys) or self.unreadable(keys)) is not None:
            raise blocked
        for key in keys:
            informer = self._informers.get(key)
            if informer is None or not self.is_known(key) or informer.error is not None:
                if informer is not None:
                    informer.retry_now()
                raise home_unreadable(key.namespace, f"{key.resource.kind} {key.name}")

    # -- which objects are watched ---------------------------------------------------------

    def pod_changed(self, old: Object | None, new: Object | None) -> None:
        """Watches what a pod begins to refer to, and forgets what the last pod ceases to refer
        to."""
        if self._group is None or _refers_alike(old, new):
            return
        before, now = (set(self.keys_of(pod)) if pod is not None else set() for pod in (old, new))
        for key in now - before:
            self._retain(self._group, key)
        for key in before - now:
            if not self._home_pods.store.has("reference", key):
                self._release(key)

    def retry_now(self, namespace: HomeNamespace) -> None:
        """Retries the failed watches of a namespace, because the cause may be gone."""
        for key in self._watched_in.get(namespace, ()):
            if self._informers[key].error is not None:
                self._informers[key].retry_now()

    async def run(self) -> None:
        """Watches until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                for pod in self._home_pods.store:
                    for key in self.keys_of(pod):
                        self._retain(group, key)
                await asyncio.get_running_loop().create_future()
        finally:
            self._group = None
            for timer in (*self._ending.values(), *self._settling.values()):
                timer.cancel()
            for key in self._informers:
                self._shares.of(key.namespace).release(key)

    def _retain(self, group: asyncio.TaskGroup, key: CopyKey) -> None:
        timer = self._ending.pop(key, None)
        if timer is not None:
            timer.cancel()
        if key in self._informers:
            self._informers[key].retry_now()
        elif self._shares.of(key.namespace).take(key, WATCH_SIZE):
            self._start(group, key)
        else:
            self._refused.setdefault(key.namespace, {})[key] = None

    def _start(self, group: asyncio.TaskGroup, key: CopyKey) -> None:
        self._watched_in[key.namespace].add(key)
        informer = self._informers[key] = Informer(
            self._client,
            key.resource,
            namespace=key.namespace,
            fields=f"metadata.name={key.name}",
            slim=slim_original,
            stub=without_content,
            share=self._shares.of(key.namespace),
            shares_connection=True,
            # `_state_changed` logs one line for a namespace; an outage is logged by the other
            # watches of home.
            quiet=(KubeError,),
            rng=self._rng,
        )
        for handler in self._handlers.get(key.resource, ()):
            informer.on_change(handler)
        informer.on_synced(lambda: self._read_handlers(key))
        informer.on_state(lambda it: self._state_changed(key, it))
        self._tasks[key] = group.create_task(informer.run(), name=f"watch-{key}")

    def _is_refused(self, key: CopyKey) -> bool:
        return key in self._refused.get(key.namespace, ())

    def _admit_refused(self) -> None:
        """Watches refused objects for which there is memory now."""
        for namespace, keys in list(self._refused.items()):
            share = self._shares.of(namespace)
            while keys and self._group is not None:
                key = next(iter(keys))
                if not share.take(key, WATCH_SIZE):
                    break
                del keys[key]
                self._start(self._group, key)
            if not keys:
                del self._refused[namespace]

    def _release(self, key: CopyKey) -> None:
        if self._is_refused(key):
            del self._refused[key.namespace][key]
        elif key in self._informers and key not in self._ending:
            loop = asyncio.get_running_loop()
            self._ending[key] = loop.call_later(self._linger, self._end, key)

    def _end(self, key: CopyKey) -> None:
        self._ending.pop(key, None)
        del self._informers[key]
        self._watched_in[key.namespace].discard(key)
        if not self._watched_in[key.namespace]:
            del self._watched_in[key.namespace]
        task = self._tasks.pop(key)
        task.add_done_callback(lambda _: self._give_back(key))
        task.cancel()

    def _give_back(self, key: CopyKey) -> None:
        if key not in self._informers:
            self._shares.of(key.namespace).release(key)
            self._shares.forget(key.namespace)
        self._admit_refused()

    def _state_changed(self, key: CopyKey, informer: Informer) -> None:
        if self._informers.get(key) is not informer:
            return  # The watch has ended.
        if isinstance(informer.error, NotRelatedToNode):
            if key in self._ending:  # The authorizer has forgotten the last pod.
                self._ending[key].cancel()
                self._end(key)
        elif isinstance(informer.error, ApiError):
            if key.namespace not in self._reported:
                self._reported.add(key.namespace)
                fields = name_fields("Namespace", name=key.namespace, cluster="home")
                reported = self.missing_permission([key]) or informer.error
                log.warning("%s", reported, extra=fields)
            self._read_handlers(key)
        elif informer.error is None:
            self._reported.discard(key.namespace)
            self._settle(key.namespace)

    def _settle(self, namespace: HomeNamespace) -> None:
        def settled() -> None:
            del self._settling[namespace]
            for key in list(self._watched_in.get(namespace, ())):
                self._read_handlers(key)

        if namespace not in self._settling:
            # A RoleBinding grants all objects of the namespace together.
            self.retry_now(namespace)
            loop = asyncio.get_running_loop()
            self._settling[namespace] = loop.call_later(SETTLE, settled)


def _forbids(error: KubeError | None) -> bool:
    """Whether home forbids the object, and not only because it does not know the pod yet."""
    return isinstance(error, Forbidden) and not isinstance(error, NotRelatedToNode)


def _too_large(namespace: HomeNamespace) -> ReconcileBlocked:
    return ReconcileBlocked(
        "HomeObjectsTooLarge",
        f"home: the ConfigMaps and Secrets to which pods of namespace {namespace} on this node "
        "refer exceed the namespace's share of the bridge's memory; refer to fewer, or give the "
        "bridge a larger memory limit",
    )


def _refers_alike(old: Object | None, new: Object | None) -> bool:
    """Whether a pod refers to the same objects as before, in most changes: these come from parts
    that the informer keeps as the same objects while they are unchanged."""
    if old is None or new is None or old.get("spec") is not new.get("spec"):
        return False
    return bool(metadata(old).get("ownerReferences") == metadata(new).get("ownerReferences"))
