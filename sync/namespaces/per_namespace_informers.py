"""Watches resources in those home namespaces that have pods on the virtual node.

The watch of a namespace ends `LINGER` seconds after its last pod, so that a rollout or a frequent
Job does not list the namespace each time.

Home grants the permission to read namespace by namespace. A watch with a forbidden resource is not
complete: `NamespaceWatches.get` returns None, and `NamespaceWatches.missing_permission` states what
is missing. ``on_forbidden`` handlers are called when that changes, with one log line; ``on_synced``
handlers when the watch is complete (again).
"""

from __future__ import annotations

import asyncio
import functools
import logging
import re
import shlex
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any

from sync.base.safe_callbacks import Callbacks
from sync.cache.cache_share import CacheShare, NamespaceShares
from sync.cache.informer import Informer
from sync.cache.store import Indexer, Store
from sync.cache.store_writer import Handler
from sync.cache.stub import stub_of
from sync.kube.api_errors import ApiError, Forbidden, KubeError
from sync.kube.api_resources import ENDPOINT_SLICES, Resource
from sync.kube.client import KubeClient
from sync.runtime.controller import ReconcileBlocked
from sync.runtime.log_fields import name_fields
from translators.mirror import endpoint_slice
from translators.object_accessors import HomeNamespace, Object, metadata
from translators.ownership_labels import ANNOTATION_MIRROR

log = logging.getLogger(__name__)

#: Seconds that a namespace is watched after its last pod.
LINGER = 60.0
#: Seconds until a changed set of forbidden resources is reported, and until a smaller set is: the
#: server answers for each resource in its own time, and each report is a write for each pod.
SETTLE, SETTLE_SHRUNK = 0.5, 5.0
#: Seconds of a failure until a pod that waits for home objects reports it: a server may be
#: restarting.
UNREAD_SECONDS = 2.0
#: Indexes of the stores, beside the name.
_INDEXERS: Mapping[Resource, Mapping[str, Indexer]] = {
    ENDPOINT_SLICES: {"service": lambda slice_: (endpoint_slice.service_name(slice_),)}
}

#: The store of a namespace whose watch is not complete.
_EMPTY = Store(_INDEXERS[ENDPOINT_SLICES])

#: The user in the message of a 403, and the default user of an in-cluster bridge.
_USER = re.compile(r'\bUser "([^"]+)"')
_SERVICE_ACCOUNT_PREFIX = "system:serviceaccount:"
_DEFAULT_ACCOUNT = f"{_SERVICE_ACCOUNT_PREFIX}cluster-bridge:cluster-bridge"

#: Runs until cancelled, and raises nothing else.
RunInNamespace = Callable[[HomeNamespace], Coroutine[Any, Any, None]]


class NamespaceWatch:
    """The informers of one home namespace. ``on_reported`` is called with the watch when `reported`
    has changed, and when all resources have been listed."""

    def __init__(
        self,
        client: KubeClient,
        namespace: HomeNamespace,
        resources: Iterable[Resource],
        on_reported: Callable[[NamespaceWatch], None],
        share: CacheShare,
    ) -> None:
        self.namespace = namespace
        self.informers: Mapping[Resource, Informer] = {
            resource: Informer(
                client,
                resource,
                namespace=namespace,
                indexers=_INDEXERS.get(resource),
                slim=_slim,
                stub=stub_of,
                share=share,
                quiet=(Forbidden,),  # `NamespaceWatches` logs one line for all.
            )
            for resource in resources
        }
        self.reported: tuple[Resource, ...] = ()
        """The forbidden resources that were reported."""
        self._on_reported = on_reported
        self._report_timer: asyncio.TimerHandle | None = None
        for informer in self.informers.values():
            informer.on_state(self._state_changed)

    @property
    def synced(self) -> bool:
        return all(informer.synced.is_set() for informer in self.informers.values())

    @property
    def is_complete(self) -> bool:
        """Whether the caches have all objects that home has."""
        return all(informer.is_complete for informer in self.informers.values())

    @property
    def forbidden(self) -> tuple[Resource, ...]:
        return tuple(
            resource for resource, it in self.informers.items() if isinstance(it.error, Forbidden)
        )

    @property
    def is_pending(self) -> bool:
        """Whether home has not answered yet for a resource."""
        return any(it.error is None and not it.synced.is_set() for it in self.informers.values())

    async def run(self, alongside: Iterable[RunInNamespace]) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for run in alongside:
                    group.create_task(run(self.namespace), name=f"alongside-{self.namespace}")
                for resource, informer in self.informers.items():
                    group.create_task(informer.run(), name=f"watch-{resource}-{self.namespace}")
                for informer in self.informers.values():
                    await informer.synced.wait()
                self.reported = self.forbidden
                self._on_reported(self)
        finally:
            if self._report_timer is not None:
                self._report_timer.cancel()

    def _state_changed(self, informer: Informer) -> None:
        if informer.error is None:
            # A RoleBinding grants all resources at once.
            for other in self.informers.values():
                if isinstance(other.error, Forbidden):
                    other.retry_now()
        if self._report_timer is not None and not self.forbidden:
            self._report_timer.cancel()
            self._report_forbidden()
        elif self._report_timer is None:
            self._report_later(SETTLE)

    def _report_later(self, seconds: float, *, shrunk: bool = False) -> None:
        loop = asyncio.get_running_loop()
        self._report_timer = loop.call_later(
            seconds, functools.partial(self._report_forbidden, shrunk=shrunk)
        )

    def _report_forbidden(self, *, shrunk: bool = False) -> None:
        self._report_timer = None
        forbidden = self.forbidden
        if forbidden == self.reported:
            return
        if forbidden and self.is_pending:
            self._report_later(SETTLE)
        elif forbidden and set(forbidden) < set(self.reported) and not shrunk:
            self._report_later(SETTLE_SHRUNK, shrunk=True)
        else:
            self.reported = forbidden
            self._on_reported(self)


class NamespaceWatches:
    """Watches begin with `retain`, end with `release`, and run in the task of `run`. ``shares``
    bound the memory of each namespace: objects beyond are stubs. ``linger`` defaults to
    `LINGER`."""

    def __init__(
        self, client: KubeClient, *, shares: NamespaceShares, linger: float | None = None
    ) -> None:
        self._client = client
        self._shares = shares
        self._linger = LINGER if linger is None else linger
        self._handlers: dict[Resource, list[Handler]] = {}
        self._synced_handlers: Callbacks[HomeNamespace] = Callbacks("home namespace synced")
        self._forbidden_handlers: Callbacks[HomeNamespace] = Callbacks("home namespace forbidden")
        self._alongside: list[RunInNamespace] = []
        self._watches: dict[HomeNamespace, NamespaceWatch] = {}
        self._tasks: dict[HomeNamespace, asyncio.Task[None]] = {}
        self._ending: dict[HomeNamespace, asyncio.TimerHandle] = {}
        self._group: asyncio.TaskGroup | None = None

    def on_change(self, resource: Resource, handler: Handler) -> None:
        """Watches this resource in every namespace, and calls ``handler(old, new)`` for each
        change. Add handlers before `retain`."""
        self._handlers.setdefault(resource, []).append(handler)

    def on_synced(self, handler: Callable[[HomeNamespace], None]) -> None:
        """Calls ``handler`` when all resources of a namespace have been listed, and again when
        home no longer forbids any of them."""
        self._synced_handlers.add(handler)

    def on_forbidden(self, handler: Callable[[HomeNamespace], None]) -> None:
        """Calls ``handler`` when the set of resources that home forbids in a namespace changes."""
        self._forbidden_handlers.add(handler)

    def run_alongside(self, run: RunInNamespace) -> None:
        """Runs ``run(namespace)`` for each namespace as long as it is watched."""
        self._alongside.append(run)

    def get(self, namespace: HomeNamespace) -> NamespaceWatch | None:
        """The watch if it is complete: an object that its caches lack does not exist at home."""
        watch = self.last_synced(namespace)
        return watch if watch is not None and not watch.forbidden and watch.is_complete else None

    def store(self, namespace: HomeNamespace, resource: Resource) -> Store:
        """The cached objects of a resource; empty unless the watch is complete."""
        watch = self.get(namespace)
        return watch.informers[resource].store if watch and resource in watch.informers else _EMPTY

    def last_synced(self, namespace: HomeNamespace) -> NamespaceWatch | None:
        """The watch with its last complete state, which may be stale for a resource that home
        forbids meanwhile. Enough to keep running pods supplied."""
        watch = self._watches.get(namespace)
        return watch if watch is not None and watch.synced else None

    def require(self, namespace: HomeNamespace) -> None:
        """Raises ReconcileBlocked unless the watch is complete."""
        if self.get(namespace) is None:
            raise self.missing_permission(namespace) or home_unreadable(namespace, "its objects")

    @property
    def informers(self) -> list[Informer]:
        return [it for watch in self._watches.values() for it in watch.informers.values()]

    def missing_permission(
        self, namespace: HomeNamespace, others: Mapping[Resource, Forbidden] | None = None
    ) -> ReconcileBlocked | None:
        """Why pods of the namespace cannot be created; None if home forbids nothing as far as is
        known, or if this is still being found out. ``others`` are errors of resources that
        are not watched here."""
        watch = self._watches.get(namespace)
        if watch is not None and not watch.reported and (watch.forbidden or watch.is_pending):
            return None
        errors: dict[Resource, KubeError | None] = dict(others or {})
        if watch is not None:
            errors |= {resource: watch.informers[resource].error for resource in watch.reported}
        if not errors:
            return None
        server_message = next((str(error) for error in errors.values() if error is not None), "")
        action = f"list and watch {', '.join(sorted(map(str, errors)))}"
        return home_forbids(action, namespace, server_message=server_message)

    def unreadable(self, namespace: HomeNamespace) -> ReconcileBlocked | None:
        """Why pods of the namespace cannot be created, if home does not forbid a resource: it
        answers with errors, or the objects exceed the memory. None if neither lasts."""
        watch = self._watches.get(namespace)
        for resource, informer in watch.informers.items() if watch is not None else ():
            if not informer.is_complete:
                return _too_large(namespace, resource)
            error, lasts = informer.error, informer.fails_for(UNREAD_SECONDS)
            if lasts and isinstance(error, ApiError) and not isinstance(error, Forbidden):
                return home_unreadable(namespace, str(resource), server_message=error.message)
        return None

    def retain(self, namespace: HomeNamespace) -> None:
        timer = self._ending.pop(namespace, None)
        if timer is not None:
            timer.cancel()
        if namespace in self._watches:
            return
        share = self._shares.of(namespace)
        watch = NamespaceWatch(self._client, namespace, self._handlers, self._report, share)
        for resource, informer in watch.informers.items():
            for handler in self._handlers[resource]:
                informer.on_change(handler)
        self._watches[namespace] = watch
        if self._group is not None:
            self._start(self._group, watch)

    def release(self, namespace: HomeNamespace) -> None:
        """Ends the watch after the linger time: the namespace has no more pods."""
        if namespace in self._watches and namespace not in self._ending:
            loop = asyncio.get_running_loop()
            self._ending[namespace] = loop.call_later(self._linger, self._end, namespace)

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                for watch in self._watches.values():
                    self._start(group, watch)
                await asyncio.get_running_loop().create_future()
        finally:
            self._group = None
            for timer in self._ending.values():
                timer.cancel()

    def _start(self, group: asyncio.TaskGroup, watch: NamespaceWatch) -> None:
        work = watch.run(self._alongside)
        self._tasks[watch.namespace] = group.create_task(work, name=f"watch-{watch.namespace}")

    def _end(self, namespace: HomeNamespace) -> None:
        self._ending.pop(namespace, None)
        self._watches.pop(namespace, None)
        task = self._tasks.pop(namespace, None)
        if task is not None:
            task.cancel()

    def _report(self, watch: NamespaceWatch) -> None:
        if self._watches.get(watch.namespace) is not watch:
            return  # The watch has ended.
        if watch.reported:
            fields = name_fields("Namespace", name=watch.namespace, cluster="home")
            log.warning("%s", self.missing_permission(watch.namespace), extra=fields)
            self._forbidden_handlers(watch.namespace)
        elif watch.synced:
            self._synced_handlers(watch.namespace)


def _slim(obj: Object) -> Object:
    """The Service or EndpointSlice without what nothing reads."""
    obj.pop("status", None)
    meta = metadata(obj)
    meta.pop("managedFields", None)
    annotations = meta.pop("annotations", None) or {}
    if ANNOTATION_MIRROR in annotations:
        meta["annotations"] = {ANNOTATION_MIRROR: annotations[ANNOTATION_MIRROR]}
    return obj


def _too_large(namespace: HomeNamespace, resource: Resource) -> ReconcileBlocked:
    return ReconcileBlocked(
        "HomeObjectsTooLarge",
        f"home: {resource} of namespace {namespace} exceed its share of the bridge's memory; "
        "delete some, or give the bridge a larger memory limit",
    )


def home_unreadable(
    namespace: HomeNamespace, objects: str, *, server_message: str = ""
) -> ReconcileBlocked:
    """Returns the error for ``objects`` of a home namespace whose watch does not work."""
    cause = f": {server_message}" if server_message else ""
    return ReconcileBlocked(
        "HomeUnread",
        f"home: cannot watch {objects} of namespace {namespace} at the moment, and the pod could "
        f"start with stale data; it starts when the watch works again{cause}",
    )


def home_forbids(action: str, namespace: HomeNamespace, *, server_message: str) -> ReconcileBlocked:
    """Returns the error for an ``action`` that home forbids in the namespace, with the command that
    grants the permission. ``server_message`` names the user."""
    match = _USER.search(server_message)
    user = match[1] if match is not None else _DEFAULT_ACCOUNT
    if user.startswith(_SERVICE_ACCOUNT_PREFIX):
        account = user.removeprefix(_SERVICE_ACCOUNT_PREFIX).replace(":", "/")
        option = "" if user == _DEFAULT_ACCOUNT else f" --account {account}"
        command = f"bridge rbac namespace {namespace}{option} | kubectl apply -f -"
    else:
        command = (
            f"kubectl create rolebinding cluster-bridge -n {namespace} --user={shlex.quote(user)} "
            "--clusterrole=cluster-bridge:home-namespace"
        )
    return ReconcileBlocked(
        "HomeForbidden",
        f"home: the bridge may not {action} in namespace {namespace}; an administrator of home "
        f"grants it: {command}",
    )
