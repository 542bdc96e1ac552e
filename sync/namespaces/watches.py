"""What the bridge watches of home's namespaces: only those that have pods on the virtual node.

For each such namespace there is a `Scope`: informers of its ConfigMaps, Secrets and Services, and
of its EndpointSlices where home's addresses mean something in the remote, or the bridge connects to
them; and ``beside`` them what
else goes on as long, for which nobody waits. Nothing of any other namespace is read. A watch ends
`LINGER` seconds after its last pod, so that a rollout or a job that comes every few seconds does
not list the namespace each time.

The right to read is home's to give, namespace by namespace. A watch to which home refuses a kind is
not complete: `Scopes.get` does not give it, `Scopes.waiting` says what is missing. ``on_refused``
is called when that changes, and one line is logged; ``on_synced`` when the watch is complete
(again). Other namespaces do not notice.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import re
import shlex
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any

from sync.base.callbacks import Callbacks
from sync.cache.informer import Informer
from sync.cache.store import Indexer
from sync.cache.store_writer import Handler
from sync.kube.client import KubeClient
from sync.kube.errors import Forbidden
from sync.kube.resources import ENDPOINT_SLICES, Resource
from sync.runtime.controller import ReconcileBlocked
from sync.runtime.log_fields import name_fields
from translators.mirror import endpointslice
from translators.objects import HomeNamespace

log = logging.getLogger(__name__)

#: Seconds that a namespace is watched after its last pod.
LINGER = 60.0
#: Seconds after which what home refuses is told, and after which that it refuses less, but some:
#: kinds are refused, and allowed, one by one, and each telling is a write for each pod.
SETTLE, SHRINK = 0.5, 5.0
#: Indexes of the stores, beside the name.
_INDEXERS: Mapping[Resource, Mapping[str, Indexer]] = {
    ENDPOINT_SLICES: {"service": lambda slice_: (endpointslice.service_name(slice_),)}
}

#: How an API server names who it refuses, and who that is unless somebody chose another account.
_USER = re.compile(r'\bUser "([^"]+)"')
_OF_ACCOUNT = "system:serviceaccount:"
_ACCOUNT = f"{_OF_ACCOUNT}cluster-bridge:cluster-bridge"

#: Runs until cancelled, and raises nothing else.
RunInNamespace = Callable[[HomeNamespace], Coroutine[Any, Any, None]]


class NamespaceWatch:
    """The informers of one home namespace. ``on_told`` is called with the watch in the loop, each
    time that `told` has changed, and when all kinds have been listed."""

    def __init__(
        self,
        client: KubeClient,
        namespace: HomeNamespace,
        kinds: Iterable[Resource],
        on_told: Callable[[NamespaceWatch], None],
    ) -> None:
        self.namespace = namespace
        self.informers: Mapping[Resource, Informer] = {
            kind: Informer(
                client,
                kind,
                namespace=namespace,
                indexers=_INDEXERS.get(kind),
                warns_forbidden=False,  # One line for all kinds: `Scopes`.
            )
            for kind in kinds
        }
        self.reported: tuple[Resource, ...] = ()
        """What home refuses, as far as that was told."""
        self._on_told = on_told
        self._settling: asyncio.TimerHandle | None = None
        for informer in self.informers.values():
            informer.on_state(self._state_changed)

    @property
    def synced(self) -> bool:
        """Whether each informer has had its first full list."""
        return all(informer.synced.is_set() for informer in self.informers.values())

    @property
    def forbidden(self) -> tuple[Resource, ...]:
        """The kinds that home refuses now."""
        return tuple(kind for kind, it in self.informers.items() if isinstance(it.error, Forbidden))

    async def run(self, alongside: Iterable[RunInNamespace]) -> None:
        """Watches until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                for run in alongside:
                    group.create_task(run(self.namespace), name=f"alongside-{self.namespace}")
                for resource, informer in self.informers.items():
                    group.create_task(informer.run(), name=f"watch-{resource}-{self.namespace}")
                for informer in self.informers.values():
                    await informer.synced.wait()
                self.reported = self.forbidden
                self._on_told(self)
        finally:
            if self._settling is not None:
                self._settling.cancel()

    def _state_changed(self, informer: Informer) -> None:
        if informer.error is None:
            # A binding grants all kinds at once.
            for other in self.informers.values():
                if isinstance(other.error, Forbidden):
                    other.retry_now()
        if self._settling is not None and not self.forbidden:
            self._settling.cancel()
            self._settle()
        elif self._settling is None:
            self._settle_after(SETTLE)

    def _settle_after(self, seconds: float, *, shrunk: bool = False) -> None:
        loop = asyncio.get_running_loop()
        self._settling = loop.call_later(seconds, functools.partial(self._settle, shrunk=shrunk))

    def _settle(self, *, shrunk: bool = False) -> None:
        self._settling = None
        refused = self.forbidden
        unknown = any(it.error is None and not it.synced.is_set() for it in self.informers.values())
        if refused == self.reported:
            return
        if refused and unknown:
            self._settle_after(SETTLE)
        elif refused and set(refused) < set(self.reported) and not shrunk:
            self._settle_after(SHRINK, shrunk=True)
        else:
            self.reported = refused
            self._on_told(self)


class NamespaceWatches:
    """Scopes come and go with `want` and `release`; they live in the task of `run`. ``endpoints``:
    home's EndpointSlices are wanted whatever the network."""

    def __init__(self, client: KubeClient, *, linger: float = LINGER) -> None:
        self._client = client
        self._linger = linger
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
        """Has ``run(namespace)`` run as long as each namespace is watched."""
        self._alongside.append(run)

    def get(self, namespace: HomeNamespace) -> NamespaceWatch | None:
        """The watch if it is there and complete: what it lacks does not exist at home."""
        watch = self.last_synced(namespace)
        return watch if watch is not None and not watch.forbidden else None

    def last_synced(self, namespace: HomeNamespace) -> NamespaceWatch | None:
        """The watch as it was last seen whole: of a kind that home refuses by now, it may be old.
        Enough for what is kept going."""
        watch = self._watches.get(namespace)
        return watch if watch is not None and watch.synced else None

    def require(self, namespace: HomeNamespace, kinds: Iterable[Resource]) -> None:
        """Raises Waiting unless the watch is complete and these kinds are being watched: in a cache
        whose watch is away an edit may be missing. A watch that waits after a failure is tried
        again now."""
        watch = self.get(namespace)
        if watch is None:
            raise self.missing_permission(namespace) or _unread(namespace, "its objects")
        away = [kind for kind in kinds if kind in watch.informers and watch.informers[kind].error]
        for kind in away:
            watch.informers[kind].retry_now()
        if away:
            raise _unread(namespace, " and ".join(sorted(map(str, away))))

    @property
    def informers(self) -> list[Informer]:
        """Those of all namespaces."""
        return [it for watch in self._watches.values() for it in watch.informers.values()]

    def missing_permission(self, namespace: HomeNamespace) -> ReconcileBlocked | None:
        """What pods of the namespace wait for; None where home refuses nothing, or that is not
        known yet."""
        watch = self._watches.get(namespace)
        if watch is None or not watch.reported:
            return None
        errors = [watch.informers[kind].error for kind in watch.reported]
        said = next((str(error) for error in errors if error is not None), "")
        what = f"list and watch {', '.join(map(str, watch.reported))}"
        return home_forbids(what, namespace, said=said)

    def retain(self, namespace: HomeNamespace) -> None:
        """The namespace has a pod on the node."""
        timer = self._ending.pop(namespace, None)
        if timer is not None:
            timer.cancel()
        if namespace in self._watches:
            return
        watch = NamespaceWatch(self._client, namespace, self._handlers, self._told)
        for resource, informer in watch.informers.items():
            for handler in self._handlers[resource]:
                informer.on_change(handler)
        self._watches[namespace] = watch
        if self._group is not None:
            self._start(self._group, watch)

    def release(self, namespace: HomeNamespace) -> None:
        """The namespace's last pod is gone."""
        if namespace in self._watches and namespace not in self._ending:
            loop = asyncio.get_running_loop()
            self._ending[namespace] = loop.call_later(self._linger, self._end, namespace)

    async def run(self) -> None:
        """Runs the watches until cancelled."""
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

    def _told(self, watch: NamespaceWatch) -> None:
        if self._watches.get(watch.namespace) is not watch:
            return  # It has ended.
        if watch.reported:
            log.warning(
                "%s", self.missing_permission(watch.namespace), extra=_about(watch.namespace)
            )
            self._forbidden_handlers(watch.namespace)
        elif watch.synced:
            self._synced_handlers(watch.namespace)


def _unread(namespace: HomeNamespace, what: str) -> ReconcileBlocked:
    return ReconcileBlocked(
        "HomeUnread",
        f"the bridge cannot watch {what} of home's namespace {namespace} just now, and the pod "
        "could start with an old state; it starts when the watch is back",
    )


def _about(namespace: HomeNamespace) -> Mapping[str, Mapping[str, str]]:
    return name_fields("Namespace", name=namespace, cluster="home")


def home_forbids(what: str, namespace: HomeNamespace, *, said: str) -> ReconcileBlocked:
    """That home refuses this in the namespace, and what grants it. ``said`` are the words of its
    API server, which name the user."""
    found = _USER.search(said)
    user = found[1] if found is not None else _ACCOUNT
    if user.startswith(_OF_ACCOUNT):
        account = user.removeprefix(_OF_ACCOUNT).replace(":", "/")
        option = "" if user == _ACCOUNT else f" --account {account}"
        command = f"bridge rbac namespace {namespace}{option} | kubectl apply -f -"
    else:
        command = (
            f"kubectl create rolebinding cluster-bridge -n {namespace} --user={shlex.quote(user)} "
            "--clusterrole=cluster-bridge:home-namespace"
        )
    return ReconcileBlocked(
        "HomeForbidden",
        f"home does not let the bridge {what} in namespace {namespace}; an administrator of home "
        f"grants it: {command}",
    )
