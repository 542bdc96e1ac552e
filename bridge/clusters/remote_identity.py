"""Identifies the remote cluster by UIDs of namespaces.

The UID of kube-system identifies a cluster. A credential with Roles in prepared namespaces alone
may not read it, so these namespaces identify the remote too. The Node keeps the identity under
which it was first joined, and records those of all prepared namespaces: whatever the credential may
read later, the cluster is recognised as long as one of them still exists.

After `bridge leave --keep-volumes` there is no Node. PersistentVolumes name the identity under
which they were provisioned, and no other: a new Node takes that one, so that pods can use them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

from bridge.node import join_record, node_object
from bridge.rbac import permissions
from sync.kube.api_errors import Forbidden, MalformedResponse, NotFound
from sync.kube.api_resources import NAMESPACES, PERSISTENT_VOLUMES
from sync.kube.client import KubeClient
from translators.object_accessors import Object, uid_of
from translators.remote_shapes import wrong_part
from translators.storage.identifiers import volume_handle
from translators.virtual_node_identity import home_id_from_uid

#: The namespace that exists in every cluster.
SYSTEM = "kube-system"


@dataclass(frozen=True, slots=True)
class RemoteIdentity:
    """The UIDs that identify a cluster, by namespace; that of kube-system first if it is known."""

    uids: dict[str, str]

    @property
    def ids(self) -> tuple[str, ...]:
        """The identities, as on a Node's label."""
        return tuple(map(home_id_from_uid, self.uids.values()))

    @property
    def namespace(self) -> str:
        """The namespace that identifies the cluster while a bridge runs."""
        return next(iter(self.uids))

    @property
    def uid(self) -> str:
        """The UID of `namespace`."""
        return self.uids[self.namespace]

    def is_remote_of(self, node: Object) -> bool:
        """Whether the Node represents this cluster."""
        known = {node_object.remote_id_of(node), *join_record.remote_ids(node)}
        return not known.isdisjoint(self.ids)


async def read_remote_identity(remote: KubeClient, prepared: Collection[str]) -> RemoteIdentity:
    """Reads the UIDs of kube-system and of the prepared namespaces, as far as the credential may.
    Raises Forbidden if it may read none, and KubeError: MalformedResponse for one without a UID."""
    uids: dict[str, str] = {}
    forbidden: Forbidden | None = None
    names = [SYSTEM] if not prepared or await _may_read_system(remote) else []
    for name in (*names, *sorted(prepared)):
        path = NAMESPACES.path(name)
        try:
            found: Object = await remote.request("GET", path, timeout=permissions.REQUEST_SECONDS)
        except Forbidden as error:
            forbidden = forbidden or error
        except NotFound:
            continue
        if wrong_part(NAMESPACES.kind, found) or not uid_of(found):
            message = f"namespace {name} has no valid UID"
            raise MalformedResponse(message, side=remote.side, what=f"GET {path}")
        uids[name] = uid_of(found)
    if not uids:
        raise forbidden or NotFound(
            f"no namespace of --remote-namespaces exists: {', '.join(sorted(prepared))}",
            side=remote.side,
            code=404,
        )
    return RemoteIdentity(uids)


async def id_of_volumes(
    home: KubeClient, remote: KubeClient, identity: RemoteIdentity, prepared: Collection[str]
) -> str:
    """The identity that most of the home cluster's PersistentVolumes with data in this remote name;
    the first one if there are none, or the credentials are not permitted to list them. Raises
    KubeError."""
    known = set(identity.ids)
    try:
        handles = map(volume_handle, (await home.list(PERSISTENT_VOLUMES)).items)
        named = Counter(handle.remote_id for handle in handles if handle is not None)
        if named and known.isdisjoint(named) and not prepared:
            # A namespace of the remote may have identified it, when only some were prepared.
            namespaces = (await remote.list(NAMESPACES)).items
            known |= {home_id_from_uid(uid_of(namespace)) for namespace in namespaces}
    except Forbidden:
        return identity.ids[0]
    return next((name for name, _ in named.most_common() if name in known), identity.ids[0])


async def _may_read_system(remote: KubeClient) -> bool:
    reading = permissions.Permission(NAMESPACES, ("get",), namespace=SYSTEM, names=(SYSTEM,))
    return await permissions.are_granted(remote, [reading])
