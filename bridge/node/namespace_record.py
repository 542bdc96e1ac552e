"""The record of the remote namespaces that this home made, in a Lease at home (`sync.namespaces.ownership`).

One Lease for all virtual nodes of the home, with an annotation for each node: a merge patch of its
own annotation meets no other node's. The Lease is never held or renewed. It is a Lease because the
bridge may write Leases in this namespace, and nobody else has a reason to.
"""

from __future__ import annotations

from collections.abc import Collection

from bridge.node.lease import LEASE_NAMESPACE
from sync.kube.client import KubeClient
from sync.kube.errors import AlreadyExists, NotFound
from sync.kube.resources import LEASES
from sync.namespaces.ownership import OwnershipEntries
from translators.identity import DOMAIN
from translators.names import label_value
from translators.objects import Object, metadata, uid_of

#: No Lease of a node or of an election has this name: the first is a node's, the others begin with
#: ``cluster-bridge-``.
NAME = f"namespaces.{DOMAIN}"
_PREFIX = f"namespaces.{DOMAIN}/"


class NamespaceRecord:
    """The record of one virtual node. ``home`` is behind the fence of the bridge that writes."""

    def __init__(self, home: KubeClient, node: str) -> None:
        self._home = home
        self._key = _key(node)
        self.fresh = False
        """Whether home had no such node when the bridge started."""

    async def read(self) -> OwnershipEntries:
        """Raises KubeError."""
        lease = await _get(self._home)
        entries = _entries(lease)
        own = entries.pop(self._key, None)
        others = frozenset(it for several in entries.values() for it in several)
        return OwnershipEntries(own, others, fresh=self.fresh)

    async def write(self, entries: Collection[str]) -> None:
        """Replaces what this node recorded; makes the Lease where there is none. Raises
        KubeError."""
        meta: Object = {"annotations": {self._key: ",".join(entries)}}
        try:
            await self._home.patch(LEASES, NAME, {"metadata": meta}, namespace=LEASE_NAMESPACE)
        except NotFound:
            await self._make(meta)

    async def _make(self, meta: Object) -> None:
        lease: Object = {
            "apiVersion": LEASES.api_version,
            "kind": LEASES.kind,
            "metadata": {**meta, "name": NAME, "namespace": LEASE_NAMESPACE},
        }
        try:
            await self._home.create(LEASES, lease, namespace=LEASE_NAMESPACE)
        except AlreadyExists:  # Another node's bridge was faster.
            await self._home.patch(LEASES, NAME, {"metadata": meta}, namespace=LEASE_NAMESPACE)


async def recorded_namespaces(home: KubeClient, node: str) -> frozenset[str]:
    """What the virtual node recorded. Raises KubeError."""
    return _entries(await _get(home)).get(_key(node), frozenset())


async def remove_record(home: KubeClient, node: str, staying: Collection[str]) -> None:
    """Removes the record of a virtual node but for the entries of namespaces that stay in the
    remote, and the Lease with the last entry. Raises KubeError."""
    lease = await _get(home)
    entries = _entries(lease)
    if lease is None or _key(node) not in entries:
        return
    if staying or len(entries) > 1:
        text = ",".join(staying) or None
        patch = {"metadata": {"uid": uid_of(lease), "annotations": {_key(node): text}}}
        await home.patch(LEASES, NAME, patch, namespace=LEASE_NAMESPACE)
    else:
        version = str(metadata(lease).get("resourceVersion") or "")
        await home.delete(
            LEASES, NAME, namespace=LEASE_NAMESPACE, uid=uid_of(lease), resource_version=version
        )


async def _get(home: KubeClient) -> Object | None:
    try:
        return await home.get(LEASES, NAME, namespace=LEASE_NAMESPACE)
    except NotFound:
        return None


def _entries(lease: Object | None) -> dict[str, frozenset[str]]:
    """What each virtual node recorded, by the key of its annotation."""
    annotations = metadata(lease or {}).get("annotations") or {}
    return {
        key: frozenset(filter(None, str(text).split(",")))
        for key, text in annotations.items()
        if key.startswith(_PREFIX)
    }


def _key(node: str) -> str:
    return _PREFIX + label_value(node)
