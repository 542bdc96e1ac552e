"""Keeps the remote's copies of home's ConfigMaps, Secrets, Services and EndpointSlices right.

A copy exists while it is *needed*: a ConfigMap or Secret while a pod on the node refers to it, a
Service while its namespace has pods on the node, an EndpointSlice (where pod networks are routed)
while its Service has a copy of ours and it has endpoints that the remote does not see itself.
Nothing else of a namespace is copied. One controller works all kinds; its key names the home
object.

- A copy follows its original; where the API forbids the change (an immutable object, a Secret's
  type), it is deleted and made anew.
- A copy goes when its original is gone, or ``linger`` seconds after it was last needed, so that
  jobs and rollouts that come every few seconds do not have it made each time; one that is needed
  again is right before its pod is made. What a pod of this home still uses in the remote is kept
  until that pod is gone: a ConfigMap or Secret that it mounts, and the Services of its namespace.
- In a namespace that was handed over, a ConfigMap or Secret outlives its original while a pod uses
  it: an unmanaged object could take its name, and the pod would read that one.
- A foreign object of that name is left alone, and `ReconcileBlocked` says so: a pod must not run
  with another's configuration. With another's Service it may, and its endpoints stay as they are.
- Nothing is deleted on the word of a cache that is not complete.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from sync.base import exceptions
from sync.cache.store import Key
from sync.kube.errors import AlreadyExists, Forbidden, Invalid
from sync.kube.resources import CONFIG_MAPS, ENDPOINT_SLICES, SECRETS, SERVICES, Resource
from sync.mirror import copied_resources
from sync.mirror.unresolved_references import UnresolvedReferences
from sync.registration.context import ControllerContext
from sync.registration.declaration import Declaration, HomeWatch, Watch
from sync.runtime.controller import Controller, ReconcileBlocked
from sync.runtime.log_fields import name_fields
from translators.identity import (
    is_owned,
    is_owned_by_node,
    matches_home_namespace,
    origin_of,
)
from translators.mirror import endpointslice, service
from translators.objects import (
    HomeNamespace,
    Object,
    RemoteNamespace,
    is_deleting,
    name_of,
    namespace_of,
    uid_of,
)
from translators.pods import service_accounts
from translators.pods.references import Reference, references

log = logging.getLogger(__name__)
changes = logging.getLogger("cluster-bridge.changes")

#: Copies written at once.
WORKERS = 16


class CopyKey(NamedTuple):
    """A home object that has, or should have, a copy."""

    resource: Resource
    namespace: HomeNamespace
    name: str

    def __str__(self) -> str:
        return f"{self.resource.kind} {self.namespace}/{self.name}"


COPIED_RESOURCES = tuple(copied_resources.COPY_RULES)
_BY_KIND = {resource.kind: resource for resource in COPIED_RESOURCES}


def copies_selector(resource: Resource, labels: str) -> str:
    """The label selector of our copies of a kind that have these labels."""
    return ",".join(
        part for part in (labels, copied_resources.COPY_RULES[resource].selector) if part
    )


def reference_keys(pod: Object, namespace: HomeNamespace) -> Iterator[CopyKey]:
    """The ConfigMaps and Secrets that a pod (of either cluster) of ``namespace`` refers to."""
    for ref in references(pod):
        yield CopyKey(_BY_KIND[ref.kind], namespace, ref.name)


class CopyController:
    """One key, a `CopyKey`, for a home object and its copy."""

    def __init__(self, context: ControllerContext, *, linger: float) -> None:
        self._client = context.remote
        self._identity = context.identity
        self._watches = context.watches
        self._namespaces = context.namespaces
        self._copies = context.copies
        self._home_pods = context.home_pods
        self._remote_pods = context.remote_pods
        self._events = context.events
        self._linger = linger
        # Whether home's pod addresses mean something in the remote.
        self._endpoints = context.policy.network == "flat"
        self._unresolved = UnresolvedReferences(
            context.remote, identity=context.identity, namespaces=context.namespaces
        )
        # Copies that nobody needs, and since when, in the loop's time.
        self._unneeded: dict[CopyKey, float] = {}
        self._clashes: set[CopyKey] = set()
        self._populated: set[HomeNamespace] = set()
        self.controller: Controller[CopyKey] = Controller(
            "mirror", self._reconcile, workers=WORKERS
        )

    def declare(self) -> Declaration:
        """What the engine runs."""
        return Declaration(
            self.controller.name,
            controller=self.controller,
            watches=[
                Watch(self._home_pods, self.home_pod_changed),
                Watch(self._remote_pods, self.remote_pod_changed),
                *(
                    Watch(informer, functools.partial(self.copy_changed, resource))
                    for resource, informer in self._copies.items()
                ),
            ],
            home_watches=[
                HomeWatch(resource, functools.partial(self.original_changed, resource))
                for resource in self._copies
                if resource is not ENDPOINT_SLICES or self._endpoints
            ],
            requeue_namespace=self.requeue_namespace,
        )

    # -- what others ask -------------------------------------------------------------------

    async def ensure(self, pod: Object) -> frozenset[Reference]:
        """All that the home pod needs is in the remote, as far as it exists at home. Returns the
        optional references that must be dropped from the pod (`sync.mirror.unresolved_references`).

        Raises Waiting where a foreign object is in the way of a ConfigMap or Secret, or would stand
        in for one that home does not have, where home cannot be asked for these just now, and what
        the API server raises. A Service that clashes or is refused does not keep the pod from
        running.
        """
        namespace = HomeNamespace(namespace_of(pod))
        keys = list(reference_keys(pod, namespace))
        kinds = {key.resource for key in keys}
        self._watches.require(namespace, kinds)
        missing = [key for key in keys if not self._is_current(key)]
        for key in missing:
            self.controller.queue.add(key)  # so that all are made at once
        for key in missing:
            if not self._is_current(key):
                await self.controller.reconcile_now(key)
        # Before its first pod, a namespace's Services: a kubelet tells them in the environment.
        for key in self._originals(SERVICES, namespace):
            if self._original(key) and self._copy(key) is None and key not in self._clashes:
                try:
                    await self.controller.reconcile_now(key)
                except (ReconcileBlocked, Forbidden, Invalid) as error:
                    log.debug("pod %s/%s: %s", namespace, name_of(pod), error)
        # Home may have refused meanwhile: what is optional would be left out silently.
        self._watches.require(namespace, kinds)
        unresolved = [
            ref
            for ref in references(pod)
            if self._original(CopyKey(_BY_KIND[ref.kind], namespace, ref.name)) is None
        ]
        return await self._unresolved.omitted(pod, unresolved)

    # -- what changed ----------------------------------------------------------------------

    def original_changed(self, resource: Resource, old: Object | None, new: Object | None) -> None:
        """An original changed."""
        obj = new or old
        if obj is not None:
            namespace = HomeNamespace(namespace_of(obj))
            self.controller.queue.add(CopyKey(resource, namespace, name_of(obj)))
            if resource is SERVICES and _leaves(old) != _leaves(new):
                self._add_slices(namespace, name_of(obj))

    def copy_changed(self, resource: Resource, old: Object | None, new: Object | None) -> None:
        """A copy changed, by us or by somebody else."""
        for state in (new, old):
            origin = origin_of(state or {})
            if origin is not None:
                self.controller.queue.add(CopyKey(resource, origin.namespace, origin.name))
                if resource is SERVICES and (old is None or new is None):
                    self._add_slices(origin.namespace, origin.name)

    def home_pod_changed(self, old: Object | None, new: Object | None) -> None:
        """A pod came, went, or changed what it refers to, or whether it is one to run."""
        if old is None or new is None or old.get("spec") != new.get("spec"):
            needs = [
                set(reference_keys(pod, HomeNamespace(namespace_of(pod)))) if pod else set()
                for pod in (old, new)
            ]
            for key in needs[0] ^ needs[1]:
                # One of many pods that come and go changes nothing.
                if not self._is_used(key) or key in self._unneeded or self._copy(key) is None:
                    self.controller.queue.add(key)
        namespace = HomeNamespace(namespace_of(new or old or {}))
        if self._has_pods(namespace) != (namespace in self._populated):
            self._populated ^= {namespace}
            self._add_namespace(namespace)

    def remote_pod_changed(self, old: Object | None, new: Object | None) -> None:
        """A remote pod that is gone may have been the last one that held a copy."""
        origin = origin_of(old) if old is not None and new is None else None
        if origin is not None and old is not None:
            for key in reference_keys(old, origin.namespace):
                if not self._held_in_remote(key):
                    self.controller.queue.add(key)
            if not self._remote_pods.store.has("namespace", origin.namespace):
                self._add_namespace(origin.namespace)

    def requeue_namespace(self, namespace: HomeNamespace) -> None:
        """What home has is known: what was missed while nobody watched is found, copies whose
        originals went as well as originals that have no copy yet."""
        for pod in self._home_pods.store.by_index("namespace", namespace):
            with exceptions.log_defects(f"pod {namespace}/{name_of(pod)}"):
                self.home_pod_changed(None, pod)
        for key in self._copies_of(namespace, COPIED_RESOURCES):
            self.controller.queue.add(key)
        self._add_namespace(namespace)

    def _add_namespace(self, namespace: HomeNamespace) -> None:
        """What is needed because the namespace has pods, or not because it has none."""
        for resource in (SERVICES, ENDPOINT_SLICES):
            for key in self._originals(resource, namespace):
                self.controller.queue.add(key)
        for key in self._copies_of(namespace, (SERVICES, ENDPOINT_SLICES)):
            self.controller.queue.add(key)

    def _add_slices(self, namespace: HomeNamespace, service_name: str) -> None:
        """The EndpointSlices of a Service."""
        watch = self._watches.get(namespace)
        if watch is not None and ENDPOINT_SLICES in watch.informers:
            for slice_ in watch.informers[ENDPOINT_SLICES].store.by_index("service", service_name):
                self.controller.queue.add(CopyKey(ENDPOINT_SLICES, namespace, name_of(slice_)))

    # -- reconcile -------------------------------------------------------------------------

    async def _reconcile(self, key: CopyKey) -> None:
        watch = self._watches.get(key.namespace)
        if watch is None and self._has_pods(key.namespace):
            return  # NB: the namespace is being listed; its keys come again when that is done.
        home = self._original(key)
        copy = self._copy(key)
        if home is not None and self._is_used(key):
            self._unneeded.pop(key, None)
            await self._write(key, home, copy)
        elif copy is None or is_deleting(copy):
            self._unneeded.pop(key, None)
            self._clashes.discard(key)  # Nobody needs the copy, or nobody can make it.
        elif is_owned_by_node(copy, self._identity):
            # Without a watch nothing is known of the original, but no pod here needs the copy.
            held = self._held_in_remote(key) and (
                home is not None or watch is None or self._may_be_replaced(key)
            )
            if not held and not (home is not None and self._lingers(key)):
                await self._delete(key, copy)

    def _may_be_replaced(self, key: CopyKey) -> bool:
        """Whether an unmanaged object could take the copy's name, and pods would read it."""
        return key.resource in (CONFIG_MAPS, SECRETS) and not self._namespaces.is_owned(
            key.namespace
        )

    def _lingers(self, key: CopyKey) -> bool:
        """Whether a copy that nobody needs stays for now; then the key comes back."""
        now = asyncio.get_running_loop().time()
        left = self._unneeded.setdefault(key, now) + self._linger - now
        if left > 0:
            self.controller.queue.add_after(key, left)
        return left > 0

    async def _write(self, key: CopyKey, home: Object, copy: Object | None) -> None:
        # Also where there is a copy: somebody else can have made the namespace, and the copy.
        namespace = await self._namespaces.ensure(key.namespace)
        if copy is None:
            await self._create(key, home, namespace)
            return
        patch = copied_resources.patch(key.resource, home, copy, self._identity)
        if not patch or is_deleting(copy):
            return  # A deletion's end is an event that brings the key back.
        name = name_of(copy)
        if key.resource is SERVICES and service.is_headless(home) != service.is_headless(copy):
            await self._delete(key, copy)
            return
        patch.setdefault("metadata", {})["uid"] = uid_of(copy)
        try:
            changed = await self._client.patch(key.resource, name, patch, namespace=namespace)
        except Invalid:
            # Immutable, or of another type: only a new object can be what home's is.
            await self._delete(key, copy)
            return
        self._copies[key.resource].observe_write(changed)
        changes.info("%s updated in the remote", key, extra=_about(key))

    async def _create(self, key: CopyKey, home: Object, namespace: RemoteNamespace) -> None:
        desired = copied_resources.COPY_RULES[key.resource].to_remote(home, self._identity)
        try:
            made = await self._client.create(key.resource, desired, namespace=namespace)
        except AlreadyExists:
            made = await self._client.get(key.resource, name_of(desired), namespace=namespace)
            if not self._is_of(made, key):
                raise self._clash(key, home, namespace) from None
            # The cache lagged. What differs is put right when the key comes again, by this:
            self.controller.queue.add(key)
        else:
            changes.info("%s copied to %s", key, namespace, extra=_about(key))
        self._clashes.discard(key)
        self._copies[key.resource].observe_write(made)

    def _clash(self, key: CopyKey, home: Object, namespace: str) -> ReconcileBlocked:
        kind = key.resource.kind
        waiting = ReconcileBlocked(
            "RemoteClash",
            f"{kind} {namespace}/{key.name} exists in the remote cluster and is not this "
            f"bridge's; rename yours or remove that one",
        )
        if key not in self._clashes:
            self._clashes.add(key)
            self._events.warn(home, waiting.reason, waiting.message)
            changes.info("%s: %s", key, waiting, extra=_about(key))
        return waiting

    async def _delete(self, key: CopyKey, copy: Object) -> None:
        await self._client.delete(
            key.resource, name_of(copy), namespace=namespace_of(copy), uid=uid_of(copy)
        )
        changes.info("%s removed from the remote", key, extra=_about(key))

    # -- what is known ---------------------------------------------------------------------

    def _original(self, key: CopyKey) -> Object | None:
        """The home object, if it is there and may leave home."""
        watch = self._watches.get(key.namespace)
        if watch is None or key.resource not in watch.informers:
            return None
        home = watch.informers[key.resource].store.get(Key(key.namespace, key.name))
        if home is None or not copied_resources.COPY_RULES[key.resource].is_copied(
            home, self._identity
        ):
            return None
        if key.resource is ENDPOINT_SLICES and not (
            self._endpoints and self._serves(key.namespace, home)
        ):
            return None
        return home

    def _serves(self, namespace: HomeNamespace, slice_: Object) -> bool:
        """Whether the slice's Service has a copy: another's Service gets no endpoints of ours."""
        key = CopyKey(SERVICES, namespace, endpointslice.service_name(slice_))
        return self._original(key) is not None and self._copy(key) is not None

    def _originals(self, resource: Resource, namespace: HomeNamespace) -> Iterator[CopyKey]:
        """The home objects of a kind in a namespace that is watched."""
        watch = self._watches.get(namespace)
        if watch is not None and resource in watch.informers:
            for home in watch.informers[resource].store:
                yield CopyKey(resource, namespace, name_of(home))

    def _copies_of(
        self, namespace: HomeNamespace, resources: Iterable[Resource]
    ) -> Iterator[CopyKey]:
        for resource in resources:
            for copy in self._copies[resource].store.by_index("origin", namespace):
                origin = origin_of(copy)
                if origin is not None:
                    yield CopyKey(resource, namespace, origin.name)

    def _has_pods(self, namespace: HomeNamespace) -> bool:
        return self._home_pods.store.has("namespace", namespace)

    def _copy(self, key: CopyKey) -> Object | None:
        namespace = self._identity.remote_namespace(key.namespace)
        name = copied_resources.COPY_RULES[key.resource].remote_name(key.name, self._identity)
        copy = self._copies[key.resource].store.get(Key(namespace, name))
        if copy is None or not self._is_of(copy, key):
            return None
        # Tokens of a pod are no copy, whatever home has under that name.
        return None if service_accounts.pod_of_token_secret(copy) else copy

    def _is_of(self, copy: Object, key: CopyKey) -> bool:
        """Whether it is this home's, and of the key's namespace: another home namespace, or a join
        with another template, can have the same one in the remote."""
        owned = is_owned(copy, self._identity)
        return owned and matches_home_namespace(copy, key.namespace)

    def _is_current(self, key: CopyKey) -> bool:
        """Whether nothing is to do for the key, so that nobody has to wait for it."""
        home, copy = self._original(key), self._copy(key)
        if home is None:
            return copy is None
        return (
            copy is not None
            and not is_deleting(copy)
            and not copied_resources.patch(key.resource, home, copy, self._identity)
        )

    def _is_used(self, key: CopyKey) -> bool:
        """Whether a pod on this node refers to the home object, or may use it by name."""
        if key.resource in (CONFIG_MAPS, SECRETS):
            return self._home_pods.store.has("reference", key)
        return self._has_pods(key.namespace)

    def _held_in_remote(self, key: CopyKey) -> bool:
        """Whether a pod of this home (of any of its virtual nodes) still uses the copy."""
        if key.resource in (CONFIG_MAPS, SECRETS):
            return self._remote_pods.store.has("reference", key)
        return self._remote_pods.store.has("namespace", key.namespace)


def _leaves(home_service: Object | None) -> bool:
    return home_service is not None and service.is_copied(home_service)


def _about(key: CopyKey) -> Mapping[str, Mapping[str, str]]:
    """Home's object, whose copy was changed."""
    return name_fields(key.resource.kind, key.name, namespace=key.namespace, cluster="remote")
