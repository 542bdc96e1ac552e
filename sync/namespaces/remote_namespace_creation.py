"""Maps home namespaces to remote namespaces, which are created when first needed.

A remote namespace that this home did not create, by its own record
(`sync.namespaces.namespace_ownership`), is rejected with `ReconcileBlocked`, unless the remote
granted it and home accepts it (`translators.handed_over_namespaces`). Two home namespaces whose
mapped names are equal never share a remote namespace: the second one is blocked. A namespace is not
returned once `NamespaceMapping.delete` was requested for it.

Several virtual nodes of one home share a remote namespace, and each of them may delete it when it
is empty. Each records itself as a user, in an annotation, before it creates the first object there.
To delete the namespace a node removes itself as a user (`NamespaceMapping.remove_user`), checks the
other users and the contents, and deletes the namespace on condition that its resourceVersion has
not changed since. So a new user is either seen, or makes the deletion fail, or finds the namespace
terminating.

A namespace that this home created has the Pod Security level of `translators.pod_security`, before
its first object and at each later use. The nodes that share it compute the same level.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Collection
from weakref import WeakValueDictionary

import cachetools

from sync.cache.informer import Informer
from sync.cache.store import Key, Store
from sync.kube.api_errors import AlreadyExists, Conflict, KubeError, NotFound
from sync.kube.api_resources import NAMESPACES
from sync.kube.client import KubeClient
from sync.namespaces.home_namespace_labels import HomeNamespaceLabels
from sync.namespaces.namespace_ownership import NamespaceOwnership
from sync.runtime.controller import ReconcileBlocked
from translators import pod_security
from translators.handed_over_namespaces import (
    is_accepted_by_home,
    is_granted_by_remote,
    unprepared_namespace_message,
    unusable_namespace_message,
)
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
    ANNOTATION_HOME_NAMESPACE,
    ANNOTATION_NONCE,
    Origin,
    home_namespace_of,
    is_owned,
    is_owned_by_node,
    matches_home_namespace,
    origin_of,
    owner_labels,
    used_by_annotation,
)
from translators.pod_security import Limit, PodSecurityLevel
from translators.virtual_node_identity import Identity

#: Attempts to register as a user of a namespace that other clients change at the same time.
ATTEMPTS = 3


class NamespaceMappingError(Exception):
    """Pods of this virtual node run in the remote under another mapping of namespaces."""


class NamespaceMapping:
    """``informer`` watches all remote namespaces, ``labels`` are those of home's, ``level`` is the
    loosest Pod Security level of this node. With ``prepared`` names, only these are used, and no
    namespace is created or changed. ``has_pods`` returns whether a home namespace has pods on this
    node. `pod_changed` must be called for every remote pod of this home."""

    def __init__(
        self,
        client: KubeClient,
        informer: Informer,
        identity: Identity,
        owned: NamespaceOwnership,
        *,
        labels: HomeNamespaceLabels,
        level: PodSecurityLevel = "privileged",
        prepared: Collection[str] = (),
        has_pods: Callable[[HomeNamespace], bool] = lambda _: False,
    ) -> None:
        self._client = client
        self._informer = informer
        self._identity = identity
        self._owned = owned
        self._labels = labels
        self._limit = Limit(identity.node_label, level)
        self._prepared = prepared
        self._has_pods = has_pods
        # UIDs of namespaces that the bridge deletes: the cache shows the deletion a moment later.
        self._deleted: cachetools.LRUCache[str, bool] = cachetools.LRUCache(1024)
        # By remote namespace: of a burst of pods, only the first one creates the namespace.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        # By granted namespace: the home namespaces with pods there, and the first one that used it.
        self._tenants: defaultdict[str, Counter[HomeNamespace]] = defaultdict(Counter)
        self._first_tenant: cachetools.LRUCache[str, HomeNamespace] = cachetools.LRUCache(1024)

    async def ensure(self, namespace: HomeNamespace) -> RemoteNamespace:
        """Returns the remote namespace of ``namespace``, which exists and may be used.

        Raises KubeError, and ReconcileBlocked if the namespace is unmanaged, belongs to another
        home namespace or is being deleted.
        """
        name = self._identity.remote_namespace(namespace)
        async with self._lock(name):
            remote = self._informer.store.get(Key("", name))
            if self._prepared and (remote is None or name not in self._prepared):
                raise ReconcileBlocked("RemoteNamespaceMissing", unprepared_namespace_message(name))
            if remote is None:
                remote = await self._create(namespace, name)
            await self._check(remote, namespace)
            registers = self._owned.owns(remote) and not self._prepared
            if registers and not self._is_terminating(remote):
                try:
                    remote = await self._register(remote, namespace)
                except NotFound as error:
                    raise _terminating(name) from error
        if self._is_terminating(remote):
            raise _terminating(name)
        return name

    def explain_pod_security(self, namespace: HomeNamespace) -> str:
        """Why pods of ``namespace`` are rejected by Pod Security, and what changes that. The next
        `ensure` reads home's labels again."""
        self._labels.expire(namespace)
        remote = self._informer.store.get(Key("", self._identity.remote_namespace(namespace)))
        if remote is None or not self._owned.owns(remote):
            return pod_security.explain_handed_over(remote or {})
        labels = self._labels.last_read(namespace)
        return pod_security.explain_level(remote, namespace, labels, self._limit)

    def owned(self, namespace: HomeNamespace) -> Object | None:
        """The Namespace object that this home created for ``namespace``, if it exists."""
        name = self._identity.remote_namespace(namespace)
        remote = self._informer.store.get(Key("", name))
        if remote is None or not self._owned.owns(remote):
            return None
        return remote if matches_home_namespace(remote, namespace) else None

    def may_use(self, remote: Object) -> bool:
        return self._owned.owns(remote) or self._is_shared(remote)

    def has_usable(self, namespace: HomeNamespace) -> bool:
        remote = self._informer.store.get(Key("", self._identity.remote_namespace(namespace)))
        if remote is None or not self.may_use(remote):
            return False
        return self._is_shared(remote) or matches_home_namespace(remote, namespace)

    def _is_shared(self, remote: Object) -> bool:
        """Whether the namespace is granted and accepted. Labels of this home without an entry in
        home's record count as a grant."""
        identity = self._identity
        is_granted = is_granted_by_remote(remote, identity) or is_owned(remote, identity)
        return is_granted and is_accepted_by_home(remote, identity)

    def is_owned(self, namespace: HomeNamespace) -> bool:
        """Whether the bridge created the remote namespace of ``namespace``."""
        return self.owned(namespace) is not None

    def controller_of_pods(self, namespace: HomeNamespace) -> Object | None:
        """The owner reference to the remote namespace with which pods are created there, so that
        no controller of another user adopts a pod whose labels it selects, and deletes pods by
        their number; None in a namespace that the bridge created."""
        remote = self._informer.store.get(Key("", self._identity.remote_namespace(namespace)))
        if remote is None or self._owned.owns(remote):
            return None
        reference = {"apiVersion": "v1", "kind": "Namespace", "name": name_of(remote)}
        return {**reference, "uid": uid_of(remote), "controller": True}

    def pod_changed(self, old: Object | None, new: Object | None) -> None:
        annotations = [metadata(pod or {}).get("annotations") for pod in (old, new)]
        if old is not None and new is not None and annotations[0] == annotations[1]:
            return
        for pod, sign in ((old, -1), (new, 1)):
            origin = origin_of(pod) if pod is not None else None
            if pod is not None and origin is not None:
                remote = namespace_of(pod)
                self._tenants[remote][origin.namespace] += sign
                if not self._tenants[remote][origin.namespace]:
                    del self._tenants[remote][origin.namespace]
                if not self._tenants[remote]:
                    del self._tenants[remote]

    def check_pods(self, remote_pods: Store, home_pods: Store) -> None:
        """Raises NamespaceMappingError if a pod of this node runs in another namespace than the one
        to which the mapping leads."""
        for pod in remote_pods:
            origin = origin_of(pod)
            if origin is None or not is_owned_by_node(pod, self._identity):
                continue
            mapped = self._identity.remote_namespace(origin.namespace)
            if mapped != namespace_of(pod) and self._is_created_by_bridge(pod, origin, home_pods):
                node = self._identity.node
                raise NamespaceMappingError(
                    f"remote: pods of node {node} run in namespace {namespace_of(pod)}, "
                    f"but --namespace-template and --home-name now give {mapped} for home's "
                    f"{origin.namespace}; join with the previous ones, or remove the pods first: "
                    f"bridge leave {node}"
                )

    def _is_created_by_bridge(self, pod: Object, origin: Origin, home_pods: Store) -> bool:
        """Whether a bridge created the remote pod. Labels prove nothing: a client that copies them
        must not be able to keep the bridge from starting. In a namespace that this home created,
        pods of its home namespace count, because only they are created there (`ensure`), even if
        their home pods no longer exist; all others count by the UID of a home pod."""
        namespace = self._informer.store.get(Key("", namespace_of(pod)))
        if namespace is None or not self.may_use(namespace):
            return False
        if self._owned.owns(namespace) and matches_home_namespace(namespace, origin.namespace):
            return True
        home = home_pods.get(Key(origin.namespace, origin.name))
        return home is not None and uid_of(home) == origin.uid

    # -- delete ----------------------------------------------------------------------------

    async def remove_user(self, remote: Object, *, unused: Callable[[], bool]) -> Object | None:
        """Removes this node as a user of a namespace that this home created. Returns the namespace
        after that; None if it no longer exists, or if ``unused`` no longer holds. Raises
        ReconcileBlocked and KubeError."""
        async with self._lock(name_of(remote)):
            if not unused():
                return None
            annotations = {used_by_annotation(self._identity.node_label): None}
            try:
                return await self._patch(remote, {"annotations": annotations})
            except NotFound:
                return None
            except Conflict as error:  # Replaced meanwhile, or rejected by admission.
                raise ReconcileBlocked("RemoteNamespaceChanged", error.message) from error

    async def delete(self, remote: Object) -> None:
        """Deletes a namespace that `remove_user` returned. Raises ReconcileBlocked if the
        namespace has changed since, and KubeError."""
        self._deleted[uid_of(remote)] = True
        try:
            await self._client.delete_unchanged(NAMESPACES, remote)
        except KubeError as error:
            # If the server deleted the namespace nevertheless, the informer sees that.
            self._deleted.pop(uid_of(remote), None)
            if isinstance(error, Conflict):
                raise ReconcileBlocked("RemoteNamespaceChanged", error.message) from error
            raise

    def _is_terminating(self, remote: Object) -> bool:
        return is_deleting(remote) or uid_of(remote) in self._deleted

    # -- requests --------------------------------------------------------------------------

    def _lock(self, name: str) -> asyncio.Lock:
        return self._locks.setdefault(name, asyncio.Lock())

    async def _register(self, remote: Object, namespace: HomeNamespace) -> Object:
        """Registers this node as a user of a namespace that this home created, and sets its Pod
        Security level. The level depends on the other users, so a change names the version that it
        was computed from."""
        labels, uid, problem = await self._labels.get(namespace) or {}, uid_of(remote), ""
        for _ in range(ATTEMPTS):
            change = pod_security.registration(remote, labels, self._limit)
            if not change:
                return remote
            version = metadata(remote)["resourceVersion"]
            try:
                return await self._patch(remote, {"resourceVersion": version, **change})
            except Conflict as error:  # Changed or replaced meanwhile, or rejected by admission.
                problem = error.message
            remote = await self._client.get(NAMESPACES, name_of(remote))
            self._informer.observe_write(remote)
            if uid_of(remote) != uid:
                break
        raise ReconcileBlocked("RemoteNamespaceChanged", problem)

    async def _patch(self, remote: Object, change: Object) -> Object:
        patch: Object = {"metadata": {"uid": uid_of(remote), **change}}
        changed = await self._client.patch(NAMESPACES, name_of(remote), patch)
        self._informer.observe_write(changed)
        return changed

    async def _create(self, namespace: HomeNamespace, name: RemoteNamespace) -> Object:
        labels = await self._labels.get(namespace) or {}
        level = pod_security.registration({}, labels, self._limit)
        nonce = await self._owned.record_intent(name)
        body: Object = {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {
                "name": name,
                "labels": {**owner_labels(self._identity), **level["labels"]},
                "annotations": {
                    ANNOTATION_HOME_NAMESPACE: namespace,
                    ANNOTATION_NONCE: nonce,
                    **level["annotations"],
                },
            },
        }
        try:
            created = await self._client.create(NAMESPACES, body)
        except AlreadyExists:
            created = await self._client.get(NAMESPACES, name)
        if self._owned.owns(created):
            await self._owned.record_created(created)
        self._informer.observe_write(created)
        return created

    # -- whether a namespace may be used ---------------------------------------------------

    async def _check(self, remote: Object, namespace: HomeNamespace) -> None:
        name = name_of(remote)
        if await self._owned.verify(remote):
            if not matches_home_namespace(remote, namespace):
                raise _shared_mapping(name, namespace, home_namespace_of(remote))
        elif self._is_shared(remote):
            if (other := self._other_tenant(name, namespace)) is not None:
                raise _shared_mapping(name, namespace, other)
            self._first_tenant[name] = namespace
        else:
            raise ReconcileBlocked(
                "RemoteClash", unusable_namespace_message(remote, self._identity)
            )

    def _other_tenant(self, name: str, namespace: HomeNamespace) -> HomeNamespace | None:
        """Another home namespace that uses the granted namespace. A granted namespace has no
        annotation with its home namespace."""
        pods = self._tenants.get(name) or Counter()
        other = next((it for it in pods if it != namespace), None)
        first = self._first_tenant.get(name)
        if other is not None and (first != namespace or namespace not in pods):
            return other
        if first is None or first == namespace or not self._has_pods(first):
            return None
        return first


def _terminating(name: str) -> ReconcileBlocked:
    return ReconcileBlocked(
        "RemoteNamespaceTerminating",
        f"remote: namespace {name} is being deleted; it is re-created after that",
    )


def _shared_mapping(
    name: str, namespace: HomeNamespace, other: HomeNamespace | None
) -> ReconcileBlocked:
    return ReconcileBlocked(
        "RemoteClash",
        f"remote: namespace {name} is used for home's namespace {other}, and {namespace} maps "
        "to it too: join one of them with another --namespace-template",
    )
