"""Finds the remote pod of a home pod, in the cache or at the remote's API server."""

from __future__ import annotations

from sync.cache.store import Key
from sync.declaration.controller_context import ControllerContext
from sync.kube.api_resources import PODS
from translators.object_accessors import HomeNamespace, Object, name_of, namespace_of, uid_of
from translators.ownership_labels import has_home_uid, is_owned_by_node, matches_home_namespace


class RemotePodLookup:
    """Keys are those of home pods. A pod of the mapped namespace and name counts if this virtual
    node owns it and it belongs to the key's home namespace.

    In a namespace that the bridge may not use, labels prove nothing: there, only the remote pod of
    the present home pod counts, by UID, as after a namespace is no longer granted.
    """

    def __init__(self, context: ControllerContext) -> None:
        self._client = context.remote
        self._home_pods = context.home_pods
        self._remote_pods = context.remote_pods
        self._namespaces = context.namespaces
        self._identity = context.identity

    def remote_key(self, key: Key) -> Key:
        return Key(self._identity.remote_namespace(HomeNamespace(key.namespace)), key.name)

    def cached(self, key: Key) -> Object | None:
        """The cached remote pod, possibly that of a previous home pod of the same name, or a
        `sync.cache.stub.Stub`."""
        remote = self._remote_pods.store.get(self.remote_key(key))
        return remote if remote and self.is_counterpart(remote, key) else None

    def remote_pod_of(self, home: Object) -> Object | None:
        """The cached remote pod of exactly this home pod, by UID."""
        remote = self.cached(Key(namespace_of(home), name_of(home)))
        return remote if remote is not None and has_home_uid(remote, uid_of(home)) else None

    def is_counterpart(self, remote: Object, key: Key) -> bool:
        owned = is_owned_by_node(remote, self._identity)
        if not owned or not matches_home_namespace(remote, key.namespace):
            return False
        if self._namespaces.has_usable(HomeNamespace(key.namespace)):
            return True
        home = self._home_pods.store.get(key)
        return home is not None and has_home_uid(remote, uid_of(home))

    async def read(self, key: Key) -> Object | None:
        """The remote pod as the API server has it now, which is put into the cache; None if this
        virtual node has none of that name. Raises KubeError."""
        namespace, name = self.remote_key(key)
        remote = await self._client.find(PODS, name, namespace=namespace)
        if remote is None or not self.is_counterpart(remote, key):
            return None
        self._remote_pods.observe_write(remote)
        return remote
