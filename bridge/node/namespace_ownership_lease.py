"""The record of the remote namespaces that this home created, kept in a Lease at home.

All virtual nodes of home share the Lease and have one annotation each, so that a merge patch of one
does not affect the others. The Lease is never held or renewed. The record is a Lease because the
bridge may write Leases in this namespace anyway (`bridge.node.lease_namespace`), and hardly any
other client may.
`sync.namespaces.namespace_ownership` uses it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from bridge.node import lease_namespace
from bridge.node.lease_namespace import NAMESPACE
from sync.kube.api_errors import AlreadyExists, NotFound
from sync.kube.api_resources import LEASES
from sync.kube.client import KubeClient
from sync.namespaces.namespace_ownership import OwnershipEntries
from translators.derived_names import label_value
from translators.object_accessors import Object, metadata, uid_of
from translators.ownership_labels import DOMAIN

#: Differs from all other Leases there: an election's begins with ``election-``.
NAME = f"namespaces.{DOMAIN}"
_PREFIX = f"namespaces.{DOMAIN}/"


class NamespaceRecord:
    """The record of one virtual node. ``home`` is a fenced client; ``is_takeover`` returns whether
    this bridge took the remote over from another home."""

    def __init__(
        self, home: KubeClient, node: str, *, is_takeover: Callable[[], bool] = lambda: False
    ) -> None:
        self._home = home
        self._key = _key(node)
        self._is_takeover = is_takeover
        self.fresh = False
        """Whether home had no Node of this name when the bridge started."""

    async def read(self) -> OwnershipEntries:
        """This node's and the other nodes' namespaces. Raises KubeError."""
        entries = _entries(await self._home.find(LEASES, NAME, namespace=NAMESPACE))
        own = entries.pop(self._key, None)
        others = frozenset().union(*entries.values())
        return OwnershipEntries(own, others, fresh=self.fresh, adopts=self._is_takeover())

    async def write(self, entries: Collection[str]) -> None:
        """Replaces this node's namespaces; creates the Lease if there is none. Raises
        KubeError."""
        meta: Object = {"annotations": {self._key: ",".join(entries)}}
        try:
            await self._home.patch(LEASES, NAME, {"metadata": meta}, namespace=NAMESPACE)
        except NotFound:
            await self._create(meta)

    async def _create(self, meta: Object) -> None:
        lease = LEASES.manifest({**meta, "name": NAME, "namespace": NAMESPACE})
        try:
            await lease_namespace.create_with_namespace(
                self._home, lambda: self._home.create(LEASES, lease, namespace=NAMESPACE)
            )
        except AlreadyExists:  # By another node's bridge.
            await self._home.patch(LEASES, NAME, {"metadata": meta}, namespace=NAMESPACE)


async def recorded_namespaces(home: KubeClient, node: str) -> frozenset[str]:
    """The namespaces that the virtual node recorded. Raises KubeError."""
    lease = await home.find(LEASES, NAME, namespace=NAMESPACE)
    return _entries(lease).get(_key(node), frozenset())


async def recorded_at_home(home: KubeClient, node: str) -> frozenset[str] | None:
    """The namespaces that any virtual node recorded; None if this one has no record, so that its
    namespaces are known only by their labels. Raises KubeError."""
    entries = _entries(await home.find(LEASES, NAME, namespace=NAMESPACE))
    return frozenset().union(*entries.values()) if _key(node) in entries else None


async def remove_record(home: KubeClient, node: str, staying: Collection[str]) -> None:
    """Removes a virtual node's namespaces except ``staying``, and the Lease with its last entry.
    Raises KubeError."""
    lease = await home.find(LEASES, NAME, namespace=NAMESPACE)
    entries = _entries(lease)
    if lease is None or _key(node) not in entries:
        return
    if staying or len(entries) > 1:
        text = ",".join(staying) or None
        patch = {"metadata": {"uid": uid_of(lease), "annotations": {_key(node): text}}}
        await home.patch(LEASES, NAME, patch, namespace=NAMESPACE)
    else:
        version = str(metadata(lease).get("resourceVersion") or "")
        await home.delete(
            LEASES, NAME, namespace=NAMESPACE, uid=uid_of(lease), resource_version=version
        )


def _entries(lease: Object | None) -> dict[str, frozenset[str]]:
    annotations = metadata(lease or {}).get("annotations") or {}
    return {
        key: frozenset(filter(None, str(text).split(",")))
        for key, text in annotations.items()
        if key.startswith(_PREFIX)
    }


def _key(node: str) -> str:
    return _PREFIX + label_value(node)
