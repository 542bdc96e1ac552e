"""The remote namespaces that stand for home's: made when first needed, never taken from others.

`Namespaces.ensure` answers from its cache where it can. A namespace of that name that this home did
not make, by what home has recorded (`sync.namespaces.ownership`), is refused (`ReconcileBlocked`),
unless its owners handed it over with an annotation (`identity.ANNOTATION_ACCEPTS`) and home accepts
that. Nor do two home namespaces share one, whose names became one, or whose bridges were joined
with different templates: the second waits. One that `Namespaces.remove` deletes is not given out
from the moment of the request on.

Several virtual nodes of one home share a remote namespace, and any of them may delete it when it is
empty. Each claims it, by an annotation, before the first object that it creates there. To delete it
a node withdraws its own claim (`Namespaces.release`), which says who else claims it, looks what is
in it, and deletes it on condition that it has not changed since then. So a claim is either seen, or
it is a change and the deletion fails, or it meets a namespace that is already being deleted.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable
from weakref import WeakValueDictionary

import cachetools

from sync.cache.informer import Informer
from sync.cache.store import Key, Store
from sync.kube.client import KubeClient
from sync.kube.errors import AlreadyExists, Conflict, KubeError, NotFound
from sync.kube.resources import NAMESPACES
from sync.namespaces.ownership import NamespaceOwnership
from sync.runtime.controller import ReconcileBlocked
from translators.identity import (
    ANNOTATION_HOME_NAMESPACE,
    ANNOTATION_NONCE,
    Identity,
    Origin,
    home_namespace_of,
    is_accepted_by_home,
    is_granted_by_remote,
    is_owned,
    is_owned_by_node,
    matches_home_namespace,
    namespace_users,
    origin_of,
    owner_labels,
    unusable_namespace_message,
    used_by_annotation,
)
from translators.objects import (
    HomeNamespace,
    Object,
    RemoteNamespace,
    is_deleting,
    metadata,
    name_of,
    namespace_of,
    uid_of,
)


class NamespaceMappingError(Exception):
    """Pods of this virtual node run in the remote under another mapping of namespaces."""


class NamespaceMapping:
    """``informer`` watches all namespaces of the remote. ``has_pods`` tells whether a home
    namespace has pods on this node; those of the remote are reported to `pod_changed`."""

    def __init__(
        self,
        client: KubeClient,
        informer: Informer,
        identity: Identity,
        owned: NamespaceOwnership,
        *,
        has_pods: Callable[[HomeNamespace], bool] = lambda _: False,
    ) -> None:
        self._client = client
        self._informer = informer
        self._identity = identity
        self._owned = owned
        self._has_pods = has_pods
        # UIDs of those that we delete: the cache shows it only a moment later.
        self._removed: cachetools.LRUCache[str, bool] = cachetools.LRUCache(1024)
        # A burst of pods comes to a namespace that is not there yet: one of them makes it.
        self._making: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        # Of namespaces that were handed over: whose pods are there, and who began to use it.
        self._tenants: defaultdict[str, Counter[HomeNamespace]] = defaultdict(Counter)
        self._first: cachetools.LRUCache[str, HomeNamespace] = cachetools.LRUCache(1024)

    async def ensure(self, namespace: HomeNamespace) -> RemoteNamespace:
        """The remote namespace for ``namespace``, which exists and may be used.

        Raises Waiting where it is foreign, stands for another home namespace or is being deleted,
        and what the API server raises.
        """
        name = self._identity.remote_namespace(namespace)
        async with self._lock(name):
            found = self._informer.store.get(Key("", name))
            if found is None:
                found = await self._create(namespace, name)
            await self._check(found, namespace)
            if not self._is_going(found) and self._lacks_claim(found):
                found = await self._claim(found)
        if self._is_going(found):
            raise _going(name)
        return name

    def owned(self, namespace: HomeNamespace) -> Object | None:
        """The namespace of ours that stands for ``namespace``, if it is there."""
        name = self._identity.remote_namespace(namespace)
        found = self._informer.store.get(Key("", name))
        if found is None or not self._owned.owns(found):
            return None
        return found if matches_home_namespace(found, namespace) else None

    def may_use(self, remote: Object) -> bool:
        """Whether this home made the namespace, or it was handed over and is accepted."""
        return self._owned.owns(remote) or self._is_shared(remote)

    def has_usable(self, namespace: HomeNamespace) -> bool:
        """Whether the namespace that stands for ``namespace`` is there, and `usable` for it."""
        found = self._informer.store.get(Key("", self._identity.remote_namespace(namespace)))
        if found is None or not self.may_use(found):
            return False
        return self._is_shared(found) or matches_home_namespace(found, namespace)

    def _is_shared(self, remote: Object) -> bool:
        """Whether it was handed over, and accepted. Labels of ours that home has no record of count
        as handed over: then home's word is enough."""
        handed_over = is_granted_by_remote(remote, self._identity) or is_owned(
            remote, self._identity
        )
        return handed_over and is_accepted_by_home(remote, self._identity)

    def is_owned(self, namespace: HomeNamespace) -> bool:
        """Whether the bridge made the namespace that stands for ``namespace``. Nobody but the
        remote's administrators is expected to write there; into one that was handed over, the
        remote's tenants may write too."""
        return self.owned(namespace) is not None

    def pod_changed(self, old: Object | None, new: Object | None) -> None:
        """A pod of this home in the remote came, changed or went."""
        if old is not None and new is not None and _notes(old) == _notes(new):
            return
        for pod, sign in ((old, -1), (new, 1)):
            origin = origin_of(pod) if pod is not None else None
            if pod is not None and origin is not None:
                place = namespace_of(pod)
                self._tenants[place][origin.namespace] += sign
                if not self._tenants[place][origin.namespace]:
                    del self._tenants[place][origin.namespace]
                if not self._tenants[place]:
                    del self._tenants[place]

    def check_pods(self, remote_pods: Store, home_pods: Store) -> None:
        """Raises NamespaceMappingError where a pod of this node runs in another namespace than the
        mapping gives for it."""
        for pod in remote_pods:
            origin = origin_of(pod)
            if origin is None or not is_owned_by_node(pod, self._identity):
                continue
            mapped = self._identity.remote_namespace(origin.namespace)
            if mapped != namespace_of(pod) and self._is_certainly_ours(pod, origin, home_pods):
                node = self._identity.node
                raise NamespaceMappingError(
                    f"remote: pods of node {node} run in namespace {namespace_of(pod)}, "
                    f"but --namespace-template and --home-name now give {mapped} for home's "
                    f"{origin.namespace}; join with those of before, or remove the pods first: "
                    f"bridge leave --name {node}"
                )

    def _is_certainly_ours(self, pod: Object, origin: Origin, home_pods: Store) -> bool:
        """Whether a bridge created the remote pod: it is in a namespace that this home created, or
        in another usable one with the UID of a home pod. Anybody can copy labels, and must not
        keep the bridge from starting."""
        namespace = self._informer.store.get(Key("", namespace_of(pod)))
        if namespace is None or not self.may_use(namespace):
            return False
        if self._owned.owns(namespace):
            return True
        home = home_pods.get(Key(origin.namespace, origin.name))
        return home is not None and uid_of(home) == origin.uid

    # -- an end ----------------------------------------------------------------------------

    async def remove_user(self, remote: Object, *, unused: Callable[[], bool]) -> Object | None:
        """Withdraws this node's claim of a namespace of ours. Returns the namespace as it is then;
        None where it is gone, or where ``unused`` no longer holds. Raises Waiting and KubeError."""
        async with self._lock(name_of(remote)):
            if not unused():
                return None
            try:
                return await self._annotate(remote, None)
            except NotFound:
                return None

    async def delete(self, remote: Object) -> None:
        """Deletes a namespace of ours as `release` returned it. Raises Waiting where it has changed
        since, and KubeError."""
        self._removed[uid_of(remote)] = True
        try:
            await self._client.delete_unchanged(NAMESPACES, remote)
        except KubeError as error:
            # Where it was deleted all the same, the informer tells.
            self._removed.pop(uid_of(remote), None)
            if isinstance(error, Conflict):
                raise ReconcileBlocked("RemoteNamespaceChanged", error.message) from error
            raise

    def _is_going(self, remote: Object) -> bool:
        return is_deleting(remote) or uid_of(remote) in self._removed

    # -- requests --------------------------------------------------------------------------

    def _lock(self, name: str) -> asyncio.Lock:
        return self._making.setdefault(name, asyncio.Lock())

    def _lacks_claim(self, remote: Object) -> bool:
        claimed = self._identity.node_label in namespace_users(remote)
        return self._owned.owns(remote) and not claimed

    async def _claim(self, remote: Object) -> Object:
        """Raises Waiting where the namespace is gone, and KubeError."""
        try:
            return await self._annotate(remote, "true")
        except NotFound as error:
            raise _going(name_of(remote)) from error

    async def _annotate(self, remote: Object, claim: str | None) -> Object:
        annotations = {used_by_annotation(self._identity.node_label): claim}
        patch: Object = {"metadata": {"uid": uid_of(remote), "annotations": annotations}}
        try:
            changed = await self._client.patch(NAMESPACES, name_of(remote), patch)
        except Conflict as error:  # Another one has the name by now, or it is admission's.
            raise ReconcileBlocked("RemoteNamespaceChanged", error.message) from error
        self._informer.observe_write(changed)
        return changed

    async def _create(self, namespace: HomeNamespace, name: RemoteNamespace) -> Object:
        nonce = await self._owned.record_intent(name)
        body: Object = {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {
                "name": name,
                "labels": owner_labels(self._identity),
                "annotations": {
                    ANNOTATION_HOME_NAMESPACE: namespace,
                    ANNOTATION_NONCE: nonce,
                    used_by_annotation(self._identity.node_label): "true",
                },
            },
        }
        try:
            made = await self._client.create(NAMESPACES, body)
        except AlreadyExists:
            made = await self._client.get(NAMESPACES, name)
        if self._owned.owns(made):
            await self._owned.record_created(made)
        self._informer.observe_write(made)
        return made

    # -- whether it may be used ------------------------------------------------------------

    async def _check(self, found: Object, namespace: HomeNamespace) -> None:
        """Raises Waiting where the namespace may not be used for ``namespace``."""
        name = name_of(found)
        if await self._owned.verify(found):
            if not matches_home_namespace(found, namespace):
                raise _meet(name, namespace, home_namespace_of(found))
        elif self._is_shared(found):
            if (other := self._other_tenant(name, namespace)) is not None:
                raise _meet(name, namespace, other)
            self._first[name] = namespace
        else:
            raise ReconcileBlocked("RemoteClash", unusable_namespace_message(found, self._identity))

    def _other_tenant(self, name: str, namespace: HomeNamespace) -> HomeNamespace | None:
        """Another home namespace that uses a namespace which was handed over: nothing on it tells
        for which it stands."""
        there = self._tenants.get(name) or Counter()
        other = next((it for it in there if it != namespace), None)
        first = self._first.get(name)
        if other is not None and (first != namespace or namespace not in there):
            return other
        if first is None or first == namespace or not self._has_pods(first):
            return None
        return first


def _notes(obj: Object) -> object:
    return metadata(obj).get("annotations")


def _going(name: str) -> ReconcileBlocked:
    return ReconcileBlocked(
        "RemoteNamespaceTerminating",
        f"namespace {name} is being deleted in the remote cluster; "
        "it is made again when it is gone",
    )


def _meet(name: str, namespace: HomeNamespace, other: HomeNamespace | None) -> ReconcileBlocked:
    return ReconcileBlocked(
        "RemoteClash",
        f"namespace {name} of the remote cluster stands for home's namespace {other}, and would "
        f"for {namespace} too: join one of them with another --namespace-template",
    )
