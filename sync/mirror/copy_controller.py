"""Keeps copies of home's ConfigMaps, Secrets, Services and EndpointSlices in the remote.

A copy exists while it is *needed*: of a ConfigMap or Secret while a pod on the node refers to it,
of a Service while its namespace has pods on the node, of an EndpointSlice (where pod networks are
routed) while its Service has a copy and the slice has endpoints that the remote does not discover
itself.

- A copy follows its original. Only where the API permits no such change (an immutable object, a
  Secret's type, a headless Service) the copy is deleted and re-created, after a dry run. An update
  that the remote rejects for any other reason leaves the copy as it was, with one Event on the home
  object.
- A copy is deleted after its original, or ``linger`` seconds after it was last needed, so that Jobs
  and rollouts do not re-create it each time. A copy that a remote pod of this home still uses stays
  until that pod is deleted.
- In a granted namespace, a ConfigMap or Secret outlives its original while a pod uses it: an
  unmanaged object could take its name, and the pod would read that object.
- A copy that another client of the remote sets back is written again at growing intervals
  (`sync.base.repeated_writes`); pods that refer to it wait, since they would run with the
  configuration of another owner.
- A Service or EndpointSlice of which the remote's API server or admission does not keep a field, or
  adds to it, is left as it is until the original changes. An Event names fields that are missing.
- Clusters publish some ConfigMaps in every namespace (`PUBLISHED`). The remote's own is left to it,
  and takes the place of a copy.
- An unmanaged object of the same name is never changed, and causes `ReconcileBlocked`. A pod may
  run beside another owner's Service, but not with another owner's configuration.
- Nothing is deleted based on an incomplete cache, nor in a namespace that the bridge may not use:
  labels there prove nothing.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext

from sync.base import exception_summary
from sync.base.namespace_fair_cache import FairCache
from sync.base.repeated_writes import (
    OVERWRITES,
    REPORTED,
    RepeatedWrites,
    overwritten_message,
)
from sync.base.resource_version import version_of
from sync.cache.store import Key
from sync.cache.stub import Stub
from sync.declaration.controller_context import ControllerContext
from sync.declaration.controller_declaration import Declaration, HomeWatch, Watch
from sync.kube.api_errors import AlreadyExists, ApiError, BadRequest, Forbidden, Invalid
from sync.kube.api_resources import CONFIG_MAPS, ENDPOINT_SLICES, SERVICES, Resource
from sync.mirror.copy_rules import (
    COPIED_RESOURCES,
    COPY_RULES,
    copy_patch,
    desired_copy,
    must_be_replaced,
)
from sync.mirror.missing_references import MissingReferences
from sync.references.content_digest import DIGEST, digest
from sync.references.reference_keys import REFERENCED_RESOURCES, CopyKey, reference_keys
from sync.runtime.controller import Controller, ReconcileBlocked, not_cached
from sync.runtime.log_fields import changes, name_fields
from translators.mirror import endpoint_slice, service
from translators.object_accessors import (
    HomeNamespace,
    Object,
    RemoteNamespace,
    is_deleting,
    metadata,
    name_of,
    namespace_of,
    uid_of,
)
from translators.ownership_labels import (
    is_bridge_key,
    is_owned,
    is_owned_by_node,
    matches_home_namespace,
    origin_of,
)
from translators.pods import service_accounts
from translators.pods.fields_dropped_by_remote import MESSAGE, pruned_fields
from translators.pods.references import PUBLISHED, Reference, references

log = logging.getLogger(__name__)

#: Copies written at once.
WORKERS = 16


class CopyController:
    """The reconciler of copies. A key, a `CopyKey`, stands for a home object and its copy."""

    def __init__(self, context: ControllerContext, *, linger: float) -> None:
        self._client = context.remote
        self._identity = context.identity
        self._watches = context.watches
        self._references = context.references
        self._namespaces = context.namespaces
        self._copies = context.copies
        self._home_pods = context.home_pods
        self._remote_pods = context.remote_pods
        self._events = context.events
        self._linger = linger
        # EndpointSlices are copied only if the remote can route to home's pod IPs.
        self._copies_endpoints = context.policy.network == "flat"
        self._missing = MissingReferences(
            context.remote, identity=context.identity, namespaces=context.namespaces
        )
        # Copies that are not needed, and since when (the loop's time).
        self._unneeded_since: dict[CopyKey, float] = {}
        self._conflicts: set[CopyKey] = set()
        # The message of the last rejected update of a copy.
        self._rejections: dict[CopyKey, str] = {}
        self._populated: set[HomeNamespace] = set()
        # The version of the original of the last write of a copy.
        self._repeated: RepeatedWrites[CopyKey] = RepeatedWrites()
        # The last write of a copy that the remote has not kept as a whole: the version of the
        # original, and the digest of the patch that would be sent again.
        self._not_kept: FairCache[CopyKey, tuple[tuple[str, str], str]] = FairCache()
        # Copies in whose place is what the remote publishes.
        self._published: set[CopyKey] = set()
        self.controller: Controller[CopyKey] = Controller(
            "mirror", self._reconcile, workers=WORKERS
        )

    def declare(self) -> Declaration:
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
                if resource is not ENDPOINT_SLICES or self._copies_endpoints
            ],
            requeue_namespace=self.requeue_namespace,
            requeue_reference=self.controller.queue.add,
        )

    # -- for the pod controller -------------------------------------------------------------------

    async def ensure(self, pod: Object) -> frozenset[Reference]:
        """Copies the objects that the pod needs and home has. Returns the optional references that
        must be dropped from the pod (`sync.mirror.missing_references`).

        Raises KubeError, and ReconcileBlocked where an unmanaged object has the name of a ConfigMap
        or Secret, or would be read in place of one that home lacks, and where home's objects cannot
        be watched. A Service that conflicts or is rejected does not block the pod.
        """
        namespace = HomeNamespace(namespace_of(pod))
        keys = list(reference_keys(pod, namespace))
        self._watches.require(namespace)
        self._references.require(keys)
        missing = [key for key in keys if not self._is_current(key)]
        for key in missing:
            self.controller.queue.add(key)  # so that all are created in parallel
        for key in missing:
            if not self._is_current(key):
                await self.controller.reconcile_now(key)
        # A kubelet puts the Services of the namespace into the environment of a new pod.
        for key in self._originals(SERVICES, namespace):
            if self._original(key) and self._copy(key) is None and key not in self._conflicts:
                try:
                    await self.controller.reconcile_now(key)
                except (ReconcileBlocked, Forbidden, Invalid) as error:
                    log.debug("pod %s/%s: %s", namespace, name_of(pod), error)
        # If home forbids a list meanwhile, optional references would be dropped silently.
        self._watches.require(namespace)
        self._references.require(keys)
        missing_references = [
            ref
            for ref in references(pod)
            if self._original(CopyKey(REFERENCED_RESOURCES[ref.kind], namespace, ref.name)) is None
        ]
        return await self._missing.to_drop(pod, missing_references)

    # -- from changes to keys ----------------------------------------------------------------------

    def original_changed(self, resource: Resource, old: Object | None, new: Object | None) -> None:
        """Queues a home object; with a Service also its EndpointSlices."""
        obj = new or old
        if obj is not None:
            namespace = HomeNamespace(namespace_of(obj))
            self.controller.queue.add(CopyKey(resource, namespace, name_of(obj)))
            if resource is SERVICES and _is_copied(old) != _is_copied(new):
                self._queue_slices(namespace, name_of(obj))

    def copy_changed(self, resource: Resource, old: Object | None, new: Object | None) -> None:
        """Queues the home object of a copy, whichever client changed the copy."""
        for state in (new, old):
            origin = origin_of(state or {})
            if origin is not None:
                self.controller.queue.add(CopyKey(resource, origin.namespace, origin.name))
                if resource is SERVICES and (old is None or new is None):
                    self._queue_slices(origin.namespace, origin.name)

    def home_pod_changed(self, old: Object | None, new: Object | None) -> None:
        """Queues the objects that a pod begins or ceases to refer to; with the first and the last
        pod of a namespace also its Services."""
        if old is None or new is None or old.get("spec") != new.get("spec"):
            needs = [
                set(reference_keys(pod, HomeNamespace(namespace_of(pod)))) if pod else set()
                for pod in (old, new)
            ]
            for key in needs[0] ^ needs[1]:
                # Another pod that refers to the same object changes nothing.
                if not self._is_used(key) or key in self._unneeded_since or self._copy(key) is None:
                    self.controller.queue.add(key)
        namespace = HomeNamespace(namespace_of(new or old or {}))
        if self._has_pods(namespace) != (namespace in self._populated):
            self._populated ^= {namespace}
            self._queue_services(namespace)

    def remote_pod_changed(self, old: Object | None, new: Object | None) -> None:
        """Queues the copies that a deleted remote pod was the last to use."""
        origin = origin_of(old) if old is not None and new is None else None
        if origin is not None and old is not None:
            for key in reference_keys(old, origin.namespace):
                if not self._is_used_in_remote(key):
                    self.controller.queue.add(key)
            if not self._remote_pods.store.has("namespace", origin.namespace):
                self._queue_services(origin.namespace)

    def requeue_namespace(self, namespace: HomeNamespace) -> None:
        """Queues all originals and copies of a namespace that is watched again: originals may have
        been created or deleted meanwhile."""
        for pod in self._home_pods.store.by_index("namespace", namespace):
            with exception_summary.log_defects(f"pod {namespace}/{name_of(pod)}"):
                self.home_pod_changed(None, pod)
        for key in self._copies_of(namespace, COPIED_RESOURCES):
            self.controller.queue.add(key)
        self._queue_services(namespace)

    def _queue_services(self, namespace: HomeNamespace) -> None:
        resources = (SERVICES, ENDPOINT_SLICES)
        originals = (key for it in resources for key in self._originals(it, namespace))
        for key in (*originals, *self._copies_of(namespace, resources)):
            self.controller.queue.add(key)

    def _queue_slices(self, namespace: HomeNamespace, service_name: str) -> None:
        store = self._watches.store(namespace, ENDPOINT_SLICES)
        for slice_ in store.by_index("service", service_name):
            self.controller.queue.add(CopyKey(ENDPOINT_SLICES, namespace, name_of(slice_)))

    # -- reconcile -------------------------------------------------------------------------

    async def _reconcile(self, key: CopyKey) -> None:
        is_known = self._is_known(key)
        if not is_known and self._is_used(key):
            return  # Home is being read; `requeue_namespace` or `requeue_reference` follows.
        home = self._original(key)
        copy = self._copy(key)
        if home is not None and self._is_used(key):
            self._unneeded_since.pop(key, None)
            await self._write(key, home, copy)
        elif copy is None or is_deleting(copy):
            self._unneeded_since.pop(key, None)
            self._conflicts.discard(key)  # The copy is not needed, or has no original.
            self._rejections.pop(key, None)
            self._published.discard(key)
        elif is_owned_by_node(copy, self._identity) and self._namespaces.has_usable(key.namespace):
            # Without a watch the original is unknown, but no pod of the node needs the copy.
            # An unmanaged object could take the copy's name and be read by pods.
            keeps_name = _is_reference(key) and not self._namespaces.is_owned(key.namespace)
            may_exist = home is not None or not is_known
            is_used = self._is_used_in_remote(key) and (may_exist or keeps_name)
            if not is_used and not (may_exist and self._lingers(key)):
                await self._delete(key, copy)

    def _lingers(self, key: CopyKey) -> bool:
        """Whether an unneeded copy stays for now; queues its key for the end of the linger time."""
        now = asyncio.get_running_loop().time()
        seconds = self._unneeded_since.setdefault(key, now) + self._linger - now
        if seconds > 0:
            self.controller.queue.add_after(key, seconds)
        return seconds > 0

    async def _write(self, key: CopyKey, home: Object, copy: Object | None) -> None:
        if key in self._published:
            return
        # Also for an existing copy: namespace and copy may be forged by another client.
        namespace = await self._namespaces.ensure(key.namespace)
        if copy is not None:
            if is_deleting(copy):
                return  # The end of the deletion queues the key again.
            patch = copy_patch(key.resource, home, copy, self._identity)
            if not patch or self._not_kept.get(key) == (_version(home), digest(patch)):
                self._written(key)
                return
        async with self._whole(key, home) as original:
            if not COPY_RULES[key.resource].is_copied(original, self._identity):
                return  # It was replaced: its event queues the key.
            if copy is None:
                await self._create(key, original, namespace)
            else:
                await self._update(key, original, copy)

    def _whole(self, key: CopyKey, home: Object) -> AbstractAsyncContextManager[Object]:
        """The home object with all that its copy needs."""
        return self._references.whole(key) if _is_reference(key) else nullcontext(home)

    def _written(self, key: CopyKey) -> None:
        self._rejections.pop(key, None)
        if _is_reference(key):
            self._references.drop_content(key)

    async def _update(self, key: CopyKey, home: Object, copy: Object) -> None:
        patch = copy_patch(key.resource, home, copy, self._identity)
        if DIGEST in patch or isinstance(copy, Stub):
            # The cache has no content to compare.
            copy = await self._client.get(key.resource, name_of(copy), namespace=namespace_of(copy))
            patch = copy_patch(key.resource, home, copy, self._identity)
        if not patch or is_deleting(copy) or not self._is_copy_of(copy, key):
            return  # Its event queues the key.
        version = _version(home)
        if self._repeated.seconds_left(key, version):
            if not _is_published(key):
                raise _overwritten(key, copy)
            await self._disown(key, copy)
            return
        try:
            if must_be_replaced(key.resource, home, copy, patch):
                await self._replace(key, home, copy)
                return
            patch.setdefault("metadata", {})["uid"] = uid_of(copy)
            changed = await self._client.patch(
                key.resource, name_of(copy), patch, namespace=namespace_of(copy)
            )
        except (BadRequest, Forbidden, Invalid) as error:
            self._report_rejection(key, home, error)
            raise
        changes.info("%s: updated in the remote", key, extra=_log_fields(key))
        self._stored(key, home, changed)
        repetitions = self._repeated.sent(key.namespace, key, version)
        if repetitions and _is_published(key):
            await self._disown(key, changed)
        elif repetitions == REPORTED:
            self._events.warn(home, OVERWRITES, _overwritten(key, copy).message)

    def _stored(self, key: CopyKey, home: Object, copy: Object) -> None:
        """Takes the response to a write of the copy."""
        if not _is_reference(key):  # a pod must read the content of the home cluster
            self._check_kept(key, home, copy)
        self._copies[key.resource].observe_write(copy)
        self._written(key)

    def _check_kept(self, key: CopyKey, home: Object, copy: Object) -> None:
        """Remembers and reports what the response to a write lacks."""
        before = self._not_kept.pop(key)
        patch = copy_patch(key.resource, home, copy, self._identity)
        if not patch:
            return
        self._not_kept.put(key.namespace, key, (_version(home), digest(patch)))
        # Defaults that the remote adds make a difference, too.
        pruned = pruned_fields(self._desired(key, home), copy)
        if pruned and (before is None or before[1] != digest(patch)):
            fields = ", ".join(field.location for field in pruned)
            self._events.warn(home, "FieldDropped", f"remote: {fields}: {MESSAGE}")

    async def _disown(self, key: CopyKey, copy: Object) -> None:
        """Leaves a copy to the remote, whose own controller writes it."""
        meta = {
            field: {name: None for name in metadata(copy).get(field) or () if is_bridge_key(name)}
            for field in ("labels", "annotations")
        }
        patch = {"metadata": {**meta, "uid": uid_of(copy)}}
        await self._client.patch(
            key.resource, name_of(copy), patch, namespace=namespace_of(copy), decode=False
        )
        changes.info("%s: left to the remote, which publishes it", key, extra=_log_fields(key))

    async def _replace(self, key: CopyKey, home: Object, copy: Object) -> None:
        """Deletes the copy, so that it is created again, if the remote accepts the new one: a dry
        run creates it under another name."""
        desired = self._desired(key, home)
        prefix = name_of(copy)[:40].rstrip("-.")
        meta = {**desired["metadata"], "generateName": f"{prefix}-"}
        del meta["name"]
        try:
            await self._client.create(
                key.resource,
                {**desired, "metadata": meta},
                namespace=namespace_of(copy),
                dry_run=True,
            )
        except BadRequest as error:
            if "does not support dry run" not in error.message:
                raise
        await self._delete(key, copy)

    def _report_rejection(self, key: CopyKey, home: Object, error: ApiError) -> None:
        message = f"remote: the API server rejects the update of the copy: {error.message}"
        if self._rejections.get(key) != message:
            self._rejections[key] = message
            self._events.warn(home, "UpdateRefused", message)

    async def _create(self, key: CopyKey, home: Object, namespace: RemoteNamespace) -> None:
        desired, write = self._desired(key, home), ("create", uid_of(home))
        if self._repeated.seconds_left(key, write):
            raise _overwritten(key, desired)
        try:
            created = await self._client.create(key.resource, desired, namespace=namespace)
        except AlreadyExists:
            created = await self._client.get(key.resource, name_of(desired), namespace=namespace)
            if not self._is_copy_of(created, key):
                if _is_published(key):
                    self._published.add(key)
                    return
                raise self._conflict(key, home, namespace) from None
            self._conflicts.discard(key)
            self._copies[key.resource].observe_write(created)
            if self._copy(key) is None:
                # The cache has no room for it, or does not select it.
                raise not_cached(f"{key.resource.kind} {namespace}/{key.name}") from None
            # The cache lagged: the next reconcile compares the copy.
            self.controller.queue.add(key)
        else:
            changes.info("%s: copied to %s", key, namespace, extra=_log_fields(key))
            if self._repeated.sent(key.namespace, key, write) == REPORTED:
                self._events.warn(home, OVERWRITES, _overwritten(key, created).message)
            self._conflicts.discard(key)
            self._stored(key, home, created)

    def _desired(self, key: CopyKey, home: Object) -> Object:
        desired = desired_copy(key.resource, home, self._identity)
        desired.pop(DIGEST, None)
        return desired

    def _conflict(self, key: CopyKey, home: Object, namespace: str) -> ReconcileBlocked:
        kind = key.resource.kind
        blocked = ReconcileBlocked(
            "RemoteClash",
            f"remote: {kind} {namespace}/{key.name} exists and is not managed by this bridge; "
            "rename the home object or delete that one",
        )
        if key not in self._conflicts:
            self._conflicts.add(key)
            self._events.warn(home, blocked.reason, blocked.message)
            changes.info("%s: %s", key, blocked, extra=_log_fields(key))
        return blocked

    async def _delete(self, key: CopyKey, copy: Object) -> None:
        await self._client.delete(
            key.resource, name_of(copy), namespace=namespace_of(copy), uid=uid_of(copy)
        )
        self._repeated.forget(key)
        self._not_kept.pop(key)
        changes.info("%s: deleted in the remote", key, extra=_log_fields(key))

    # -- lookups ---------------------------------------------------------------------

    def _original(self, key: CopyKey) -> Object | None:
        """The home object, if it exists and may be copied."""
        if _is_reference(key):
            home = self._references.get(key)
        else:
            store = self._watches.store(key.namespace, key.resource)
            home = store.get(Key(key.namespace, key.name))
        if home is None or not COPY_RULES[key.resource].is_copied(home, self._identity):
            return None
        if key.resource is not ENDPOINT_SLICES:
            return home
        # An unmanaged Service gets no endpoints.
        service_key = CopyKey(SERVICES, key.namespace, endpoint_slice.service_name(home))
        has_copy = self._original(service_key) is not None and self._copy(service_key) is not None
        return home if self._copies_endpoints and has_copy else None

    def _is_known(self, key: CopyKey) -> bool:
        """Whether the bridge knows if home has the object, and what it has to copy."""
        if _is_reference(key):
            return self._references.is_known(key)
        store = self._watches.store(key.namespace, key.resource)
        is_stub = isinstance(store.get(Key(key.namespace, key.name)), Stub)
        return self._watches.get(key.namespace) is not None and not is_stub

    def _originals(self, resource: Resource, namespace: HomeNamespace) -> Iterator[CopyKey]:
        for home in self._watches.store(namespace, resource):
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
        name = COPY_RULES[key.resource].remote_name(key.name, self._identity)
        copy = self._copies[key.resource].store.get(Key(namespace, name))
        if copy is None or not self._is_copy_of(copy, key):
            return None
        # A Secret with the tokens of a pod is no copy, even if home has a Secret of that name.
        return None if service_accounts.pod_of_token_secret(copy) else copy

    def _is_copy_of(self, copy: Object, key: CopyKey) -> bool:
        """Whether this home owns ``copy``, and created it for the key's namespace: another home
        namespace, or another --namespace-template, can map to the same remote namespace."""
        return is_owned(copy, self._identity) and matches_home_namespace(copy, key.namespace)

    def _is_current(self, key: CopyKey) -> bool:
        if key in self._published:
            return True
        home, copy = self._original(key), self._copy(key)
        if home is None:
            return copy is None
        return (
            copy is not None
            and not is_deleting(copy)
            and not copy_patch(key.resource, home, copy, self._identity)
        )

    def _is_used(self, key: CopyKey) -> bool:
        """Whether a pod on this node refers to the home object, or may use the Service."""
        if _is_reference(key):
            return self._home_pods.store.has("reference", key)
        return self._has_pods(key.namespace)

    def _is_used_in_remote(self, key: CopyKey) -> bool:
        """Whether a remote pod of this home, on any of its virtual nodes, still uses the copy."""
        if _is_reference(key):
            return self._remote_pods.store.has("reference", key)
        return self._remote_pods.store.has("namespace", key.namespace)


def _is_reference(key: CopyKey) -> bool:
    return key.resource in REFERENCED_RESOURCES.values()


def _is_published(key: CopyKey) -> bool:
    return key.resource is CONFIG_MAPS and key.name in PUBLISHED


def _version(home: Object) -> tuple[str, str]:
    return uid_of(home), version_of(home)


def _overwritten(key: CopyKey, copy: Object) -> ReconcileBlocked:
    what = f"{key.resource.kind} {namespace_of(copy)}/{name_of(copy)}"
    return ReconcileBlocked(OVERWRITES, f"remote: {overwritten_message(what)}")


def _is_copied(home_service: Object | None) -> bool:
    return home_service is not None and service.is_copied(home_service)


def _log_fields(key: CopyKey) -> Mapping[str, Mapping[str, str]]:
    return name_fields(key.resource.kind, key.name, namespace=key.namespace, cluster="remote")
